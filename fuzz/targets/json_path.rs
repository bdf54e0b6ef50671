//! Evaluates any path over any body. What this parser accepts as JSON, `serde_json` accepts with the same meaning.

use inplace::hook::json::Json;
use inplace::hook::json_path;

pub(super) fn run(data: &[u8]) {
    // The first line is the path, the rest is the body.
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (path, body) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    match (Json::parse(body), serde_json::from_slice::<serde_json::Value>(body)) {
        (Ok(ours), Ok(theirs)) => {
            let again: serde_json::Value = serde_json::from_str(&ours.to_string()).expect("we print JSON");
            assert_eq!(again, theirs);
        }
        (Ok(_), Err(error)) => assert!(error.to_string().contains("out of range"), "{error}"),
        (Err(error), Ok(_)) => assert!(error.to_string().contains("deeper"), "{error}"),
        (Err(_), Err(_)) => {}
    }
    let Ok(path) = str::from_utf8(path) else { return };
    let plain = json_path::select(body, path);
    let braces = json_path::select(body, &format!("{{{path}}}"));
    if let (Ok(plain), Ok(braces)) = (plain, braces) {
        assert_eq!(plain, braces, "both spellings find the same");
    }
}
