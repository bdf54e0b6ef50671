//! The provider `web`: sends a request to an HTTP server, and converts the answer to a value. Must not judge it.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};

use crate::api::hook_template::{self, Argument, Header, Web};
use crate::hook::address_policy::AddressPolicy;
use crate::hook::json_path;
use crate::hook::measured::Measured;
use crate::hook::provider::http::{self, Request};
use crate::hook::provider::{rendered, seconds};
use crate::hook::value::Value;

/// Time limit of the whole exchange, unless the hook sets another one.
const LIMIT: Duration = Duration::from_secs(10);
/// Headers that frame a message; a hook must not set them.
const FRAMING: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE];

pub(super) async fn measure(
    web: &Web,
    args: &[Argument],
    namespace: &str,
    policy: &AddressPolicy,
) -> Result<Measured, String> {
    let request = request(web, args, namespace)?;
    let (asked, head) = (http::redacted(&request.url), request.method == Method::HEAD);
    let wanted = |status: reqwest::StatusCode| {
        if web.status_codes.is_empty() {
            status.is_success()
        } else {
            web.status_codes.contains(&status.as_u16())
        }
    };
    let limit = seconds(web.timeout_seconds).unwrap_or(LIMIT);
    let answer = http::exchange(policy, request, limit, wanted).await?;
    if !wanted(answer.status) {
        return Err(format!("{asked} answered {}", answer.status));
    }
    value(&answer.body, web.json_path.as_deref().filter(|path| !head && !path.is_empty()))
        .map(Measured::Value)
        .map_err(|why| format!("the answer of {asked} {why}"))
}

fn request<'a>(web: &'a Web, args: &[Argument], namespace: &'a str) -> Result<Request<'a>, String> {
    Ok(Request {
        namespace,
        method: method(web.method.unwrap_or_default()),
        url: http::url(&rendered("url", &web.url, args)?)?,
        headers: headers(&web.headers, args)?,
        body: web.body.as_deref().map(|body| rendered("body", body, args)).transpose()?,
        tls: web.tls.as_ref(),
    })
}

fn method(method: hook_template::Method) -> Method {
    match method {
        hook_template::Method::Get => Method::GET,
        hook_template::Method::Head => Method::HEAD,
        hook_template::Method::Post => Method::POST,
        hook_template::Method::Put => Method::PUT,
        hook_template::Method::Patch => Method::PATCH,
        hook_template::Method::Delete => Method::DELETE,
    }
}

fn headers(given: &[Header], args: &[Argument]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for Header { key, value } in given {
        let name =
            HeaderName::from_bytes(key.as_bytes()).map_err(|_| format!("{key:?} is not a header name"))?;
        if FRAMING.contains(&name) {
            return Err(format!("a hook may not set the header {key}"));
        }
        let value = rendered(&format!("header {key}"), value, args)?;
        let mut value = HeaderValue::from_str(&value).map_err(|_| {
            format!("the value of header {key} cannot be sent: it contains a line break or another control character")
        })?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// The value: the part that `path` selects, or the whole body.
fn value(body: &[u8], path: Option<&str>) -> Result<Value, String> {
    if let Some(path) = path {
        return json_path::select(body, path)
            .map(Value::Text)
            .map_err(|error| format!("has no result: {error}"));
    }
    Ok(Value::of_body(body))
}
