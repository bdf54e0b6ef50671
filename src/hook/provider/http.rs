//! One HTTP exchange of a hook: bounded in time, size and redirects, and only with addresses that the hook may
//! reach.
//!
//! Must not repeat a request, use a proxy, keep a connection open, or print a possible secret: of a URL only
//! scheme, host, port and path are printed, of headers and bodies nothing.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_LENGTH, HOST, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Certificate, Client, Method, Response, StatusCode, Url, redirect, retry};

use crate::api::hook_template::Tls;
use crate::hook::address_policy::{AddressPolicy, literal};
use crate::hook::value::cut;
use crate::process::cause;

/// Maximum size of an answer's body in bytes: the result of a hook is small.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: usize = 5;
/// Maximum length of the host and of the path of a URL in a message, in bytes.
const MAX_PRINTED: usize = 256;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request<'a> {
    /// The namespace of the hook.
    pub(super) namespace: &'a str,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<String>,
    pub(super) tls: Option<&'a Tls>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// Empty if the status was not wanted.
    pub(super) body: Vec<u8>,
}

/// Parses a URL of a hook.
pub(super) fn url(text: &str) -> Result<Url, String> {
    // The parser's message contains nothing of the text.
    let url = Url::parse(text.trim()).map_err(|error| format!("the URL cannot be read: {error}"))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        scheme => Err(format!("the URL must begin with http:// or https://, not {scheme}:")),
    }
}

/// The printable part of a URL: no user, no password, no query, and of a long path the beginning.
pub(super) fn redacted(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let host = cut(url.host_str().unwrap_or_default(), MAX_PRINTED);
    format!("{}://{host}{port}{}", url.scheme(), cut(url.path(), MAX_PRINTED))
}

/// Sends a request and reads the answer, all within `limit`. A redirect is followed unless its status is
/// `wanted`.
///
/// # Errors
/// What failed, for people.
pub(super) async fn exchange(
    policy: &AddressPolicy,
    request: Request<'_>,
    limit: Duration,
    wanted: impl Fn(StatusCode) -> bool,
) -> Result<Answer, String> {
    let (asked, waits) = (redacted(&request.url), AtomicBool::new(false));
    let reported = tokio::time::timeout(limit, Box::pin(follow(policy, request, wanted, &waits))).await;
    reported.unwrap_or_else(|_| {
        let seconds = limit.as_secs_f32();
        Err(if waits.load(Ordering::Relaxed) {
            format!(
                "no answer of {asked} within {seconds} s: the lookup of the name waited, because too many other \
                 lookups of hooks, of the namespace or in all, do not end"
            )
        } else {
            format!("{asked} did not answer completely within {seconds} s")
        })
    })
}

async fn follow(
    policy: &AddressPolicy,
    mut request: Request<'_>,
    wanted: impl Fn(StatusCode) -> bool,
    waits: &AtomicBool,
) -> Result<Answer, String> {
    let first = request.url.clone();
    for _ in 0..=MAX_REDIRECTS {
        let response = send(policy, &request, waits).await?;
        let status = response.status();
        if wanted(status) {
            return Ok(Answer { status, body: body(&request.url, response).await? });
        }
        let Some(location) = moved(&response) else { return Ok(Answer { status, body: Vec::new() }) };
        request = next(request, location?)?;
    }
    Err(format!("{} redirects more than {MAX_REDIRECTS} times", redacted(&first)))
}

/// The target of a redirect, if the answer is one.
fn moved(response: &Response) -> Option<Result<&str, String>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    Some(location.to_str().map_err(|_| format!("{} redirects to an invalid URL", redacted(response.url()))))
}

/// The request that follows a redirect.
fn next<'a>(request: Request<'a>, location: &str) -> Result<Request<'a>, String> {
    let from = redacted(&request.url);
    let to = request.url.join(location).map_err(|_| format!("{from} redirects to an invalid URL"))?;
    let refused = |why: &str| Err(format!("{from} redirects to {}: {why}", redacted(&to)));
    if !matches!(to.scheme(), "http" | "https") || !to.has_host() {
        return Err(format!("{from} redirects to a scheme other than http and https"));
    }
    if request.url.scheme() == "https" && to.scheme() == "http" {
        return refused("not followed, because it leaves TLS");
    }
    if request.method != Method::GET && request.method != Method::HEAD {
        return refused("only GET and HEAD requests follow a redirect: use that URL in the hook");
    }
    let same_host = to.host_str() == request.url.host_str();
    let upgrade = (request.url.port_or_known_default(), to.port_or_known_default()) == (Some(80), Some(443));
    let same_port = to.port_or_known_default() == request.url.port_or_known_default();
    // Headers and body are meant for the host in the hook only.
    let trusted = same_host && (same_port || upgrade);
    Ok(Request {
        headers: if trusted { request.headers } else { HeaderMap::new() },
        body: request.body.filter(|_| trusted),
        url: to,
        ..request
    })
}

async fn send(policy: &AddressPolicy, request: &Request<'_>, waits: &AtomicBool) -> Result<Response, String> {
    let Request { namespace, method, headers, body, tls, .. } = request;
    let (mut url, mut headers) = (request.url.clone(), headers.clone());
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or_default();
    let addresses = policy.addresses(namespace, &host, port, waits).await;
    let addresses = addresses.map_err(|error| error.to_string())?;
    if let Some(name) = tls.and_then(|tls| tls.server_name.as_deref())
        && url.scheme() == "https"
    {
        // TLS checks the name in the URL; so `serverName` goes into the URL, and the URL's own host into the
        // `Host` header.
        let authority = url.port().map_or_else(|| host.clone(), |port| format!("{host}:{port}"));
        let authority = HeaderValue::from_str(&authority).map_err(|_| "the URL's host cannot be sent")?;
        let named = url.set_host(Some(name)).is_ok() && literal(url.host_str().unwrap_or_default()).is_none();
        if !named {
            return Err(format!("tls.serverName {name:?} is not a DNS name"));
        }
        headers.entry(HOST).or_insert(authority);
    }
    let client = client(url.scheme() == "https", *tls, addresses)?;
    let mut sent = client.request(method.clone(), url).headers(headers);
    if let Some(body) = body {
        sent = sent.body(body.clone());
    }
    sent.send().await.map_err(|error| failed(&request.url, &error))
}

/// A client for one request.
fn client(https: bool, tls: Option<&Tls>, addresses: Vec<SocketAddr>) -> Result<Client, String> {
    let builder = Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .pool_max_idle_per_host(0)
        .user_agent(concat!("inplace/", env!("CARGO_PKG_VERSION"), " hook"))
        .dns_resolver(Checked(addresses));
    let bundle = tls.and_then(|tls| tls.ca_bundle.as_deref());
    let builder = match bundle {
        // Without https no certificates are loaded: a small image has none.
        _ if !https => builder.tls_certs_only([]),
        _ if tls.is_some_and(|tls| tls.insecure_skip_verify) => builder.tls_danger_accept_invalid_certs(true),
        Some(bundle) => {
            let certificates = Certificate::from_pem_bundle(bundle.as_bytes()).unwrap_or_default();
            if certificates.is_empty() {
                return Err("tls.caBundle contains no PEM certificate".to_owned());
            }
            builder.tls_certs_only(certificates)
        }
        None => builder,
    };
    builder.build().map_err(|error| {
        let hint = if https && bundle.is_none() {
            " (if no public certificates are installed, set tls.caBundle)"
        } else {
            ""
        };
        format!("TLS cannot be used: {}{hint}", bottom(&error))
    })
}

/// Reads the body up to the limit.
async fn body(url: &Url, mut response: Response) -> Result<Vec<u8>, String> {
    let too_long = || format!("the answer of {} is longer than {} MiB", redacted(url), MAX_BODY_BYTES >> 20);
    let announced =
        response.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > MAX_BODY_BYTES as u64) {
        return Err(too_long());
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| failed(url, &error))? {
        if body.len() + chunk.len() > MAX_BODY_BYTES {
            return Err(too_long());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// A resolver that returns the addresses that were checked, for any name.
struct Checked(Vec<SocketAddr>);

impl Resolve for Checked {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

fn failed(url: &Url, error: &reqwest::Error) -> String {
    let what = if error.is_connect() { "cannot be reached" } else { "returned no usable answer" };
    format!("{} {what}: {}", redacted(url), bottom(error))
}

/// The innermost cause of a failure, which is the one that users can fix.
fn bottom(error: &(dyn StdError + 'static)) -> String {
    let (bottom, kind) = cause::bottom(error);
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused: no process listens there".to_owned(),
        _ => bottom.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(text: &str) -> Request<'static> {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", HeaderValue::from_static("Bearer s3cret"));
        let url = url(text).unwrap();
        Request { namespace: "shop", method: Method::GET, url, headers, body: None, tls: None }
    }

    #[test]
    fn of_a_url_no_secret_is_shown() {
        let url = url("https://user:s3cret@example.org:8443/path?token=s3cret#s3cret").unwrap();
        assert_eq!(redacted(&url), "https://example.org:8443/path");
        assert_eq!(redacted(&super::url("http://[fd00::1]/").unwrap()), "http://[fd00::1]/");
    }

    #[tokio::test]
    async fn a_lookup_that_waits_for_others_is_not_the_fault_of_the_host() {
        let policy = AddressPolicy::default();
        let held = policy.hold_lookups("shop").await;
        let request = get("http://a.example/x?token=s3cret");
        let error = exchange(&policy, request, Duration::from_millis(20), |_| true).await.unwrap_err();
        assert!(error.contains("http://a.example/x within 0.02 s: the lookup of the name waited"), "{error}");
        drop(held);
    }

    #[test]
    fn only_http_urls_are_read() {
        for text in ["ftp://host/x", "file:///etc/shadow", "unix:/run/x.sock", "data:text/plain,x"] {
            assert!(url(text).unwrap_err().contains("http://"), "{text}");
        }
        for text in ["", "host/x", "http://", "http://a b/", "http://:80/"] {
            let error = url(text).unwrap_err();
            assert!(error.contains("cannot be read"), "{text}: {error}");
        }
    }

    #[test]
    fn given_headers_stay_with_the_host_they_were_given_for() {
        for (from, to, kept) in [
            ("http://a.example/x", "/y", true),
            ("http://a.example/x", "http://A.example:80/y", true),
            ("http://a.example/x", "https://a.example/y", true),
            ("https://a.example:8443/x", "y?z", true),
            ("http://a.example/x", "http://b.example/x", false),
            ("http://a.example/x", "http://a.example:81/x", false),
            ("http://a.example/x", "https://a.example:8443/x", false),
            ("http://a.example/x", "//a.example.evil/x", false),
            ("http://a.example/x", "http://sub.a.example/x", false),
        ] {
            let next = next(get(from), to).unwrap();
            assert_eq!(!next.headers.is_empty(), kept, "{from} -> {to}");
        }
    }

    #[test]
    fn not_every_redirect_is_followed() {
        for (method, from, to, why) in [
            (Method::GET, "https://a.example/", "http://a.example/", "leaves TLS"),
            (Method::GET, "http://a.example/", "file:///etc/shadow", "a scheme other than http"),
            (Method::GET, "http://a.example/", "http://", "an invalid URL"),
            (Method::POST, "http://a.example/", "/y", "only GET and HEAD"),
        ] {
            let request = Request { method, ..get(from) };
            let error = next(request, to).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
