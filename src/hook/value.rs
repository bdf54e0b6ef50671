//! The value that a provider measured. Must not contain a verdict.

use crate::hook::json::Json;

/// Maximum length of a value in a status, in bytes.
const MAX_PRINTED: usize = 1024;
/// Maximum length of a message in a status, in bytes.
pub(crate) const MAX_MESSAGE: usize = 512;

/// The value that a provider measured.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text: the result of a `jsonPath`, a body that is not JSON, the output of a command.
    Text(String),
    /// A Prometheus scalar.
    Number(f64),
    /// The values of a Prometheus vector.
    Numbers(Vec<f64>),
    /// A JSON body without `jsonPath`.
    Json(Json),
    /// No value to judge: the measurement itself is the result (kubernetes, an empty body).
    None,
}

impl Value {
    /// The value of a body without `jsonPath`: JSON if it is JSON, otherwise text.
    pub fn of_body(body: &[u8]) -> Self {
        if body.is_empty() {
            return Self::None;
        }
        match Json::parse(body) {
            Ok(Json::Text(text)) => Self::Text(text),
            Ok(json) => Self::Json(json),
            Err(_) => Self::Text(String::from_utf8_lossy(body).trim_end_matches(['\r', '\n']).to_owned()),
        }
    }

    /// The value for people and for `status`, cut to a kibibyte.
    pub fn printed(&self) -> String {
        match self {
            Self::Text(text) => cut(text, MAX_PRINTED),
            Self::Number(number) => number.to_string(),
            Self::Numbers(numbers) => {
                let numbers: Vec<_> = numbers.iter().take(MAX_PRINTED).map(f64::to_string).collect();
                cut(&format!("[{}]", numbers.join(",")), MAX_PRINTED)
            }
            Self::Json(json) => cut(&json.to_string(), MAX_PRINTED),
            Self::None => String::new(),
        }
    }

    /// True if it is or contains NaN.
    pub(crate) fn has_nan(&self) -> bool {
        match self {
            Self::Number(number) => number.is_nan(),
            Self::Numbers(numbers) => numbers.iter().any(|number| number.is_nan()),
            _ => false,
        }
    }
}

/// The beginning of a text, with an ellipsis if it was cut.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let end = (0..=bytes.saturating_sub('…'.len_utf8())).rev().find(|end| text.is_char_boundary(*end));
    format!("{}…", &text[..end.unwrap_or(0)])
}

/// The same for a text that takes at most `bytes` in the JSON of an API server.
pub(crate) fn cut_json(text: &str, bytes: usize) -> String {
    let (mut size, mut end) = (0, 0);
    for (index, character) in text.char_indices() {
        size += size_in_json(character);
        if size > bytes {
            return format!("{}…", &text[..end]);
        }
        if size + '…'.len_utf8() <= bytes {
            end = index + character.len_utf8();
        }
    }
    text.to_owned()
}

/// The size of a character in the JSON that an API server stores: it also escapes the characters of HTML.
fn size_in_json(character: char) -> usize {
    match character {
        '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        '"' | '\\' => 2,
        other => other.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_without_exponents() {
        assert_eq!(Value::Number(1_234_567.0).printed(), "1234567");
        assert_eq!(Value::Numbers(vec![1.0, 0.25]).printed(), "[1,0.25]");
        assert_eq!(Value::None.printed(), "");
    }

    #[test]
    fn a_body_is_json_or_text() {
        assert_eq!(Value::of_body(b"ok\n"), Value::Text("ok".into()));
        assert_eq!(Value::of_body(b"\"ok\""), Value::Text("ok".into()));
        assert_eq!(Value::of_body(b""), Value::None);
        assert_eq!(Value::of_body(b"{\"a\": 1}").printed(), r#"{"a":1}"#);
        assert_eq!(Value::of_body(b"\xff").printed(), "\u{fffd}");
    }

    #[test]
    fn a_long_value_is_cut_between_characters() {
        let printed = Value::Text("é".repeat(2000)).printed();
        assert!(printed.len() <= MAX_PRINTED && printed.ends_with("é…"), "{}", printed.len());
        assert_eq!(cut("short", 5), "short");
    }

    #[test]
    fn a_text_is_cut_by_its_size_in_json() {
        assert_eq!(cut_json("short", 5), "short");
        assert_eq!(cut_json("shorter", 6), "sho…");
        assert_eq!(cut_json("<<", 12), "<<");
        assert_eq!(cut_json("<<<", 12), "<…");
        assert_eq!(cut_json("é\u{1}\"", 10), "é\u{1}\"");
        assert_eq!(cut_json("é\u{1}\"", 9), "é…");
    }
}
