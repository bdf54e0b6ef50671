//! Parses any annotation: the result is nothing, an error, or a valid request that stays the same when it is
//! written and parsed again.

use inplace::api::request::Request;

pub(super) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let Ok(Some(request)) = Request::parse(Some(text)) else { return };
    request.check().expect("what was parsed is valid");
    let written = serde_json::to_string(&request).expect("a request can be written");
    assert_eq!(Request::parse(Some(&written)), Ok(Some(request)));
}
