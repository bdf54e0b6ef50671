//! A JSON parser that preserves the spelling of numbers, so that 12345678901234567890 is not rounded.
//!
//! It reads input of an untrusted server: size, depth and the number of values are bounded, and the work is
//! linear in the bytes. Must not interpret a number.
//!
//! This is not a visitor of `serde_json`, which gets numbers as `u64`, `i64` or `f64`. Their spelling is available with
//! its feature `arbitrary_precision`, which cargo would enable for every type of this program, or with `RawValue`,
//! which scans each value again at each level of nesting and counts the position of an error from the inner value.
//! Strings are decoded by `serde_json`, and a property test compares the rest with it.

use std::fmt;

/// Maximum length of a text that is parsed, in bytes.
pub const MAX_BYTES: usize = 1024 * 1024;
/// Maximum nesting.
const MAX_DEPTH: usize = 64;
/// Maximum number of values in one document; each element and member counts.
const MAX_VALUES: usize = 100_000;

/// One JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of JSON")]
pub enum Json {
    Null,
    Bool(bool),
    /// As it was spelled.
    Number(String),
    Text(String),
    List(Vec<Json>),
    /// Members in their order. Of several members with the same name only the last one is stored.
    Map(Vec<(String, Json)>),
}

/// Why a text is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotJson {
    /// Longer than [`MAX_BYTES`].
    #[error("it is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// Nested too deeply.
    #[error("it is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// Too many values.
    #[error("it holds more than {MAX_VALUES} values")]
    TooMany,
    /// Not valid JSON.
    #[error("{wanted} is missing at byte {at}")]
    Syntax {
        /// What was expected.
        wanted: &'static str,
        /// The offset in bytes.
        at: usize,
    },
}

impl Json {
    /// Parses a whole text; only white space may follow the value.
    pub fn parse(text: &[u8]) -> Result<Self, NotJson> {
        if text.len() > MAX_BYTES {
            return Err(NotJson::TooLong);
        }
        let text =
            str::from_utf8(text).map_err(|e| NotJson::Syntax { wanted: "UTF-8", at: e.valid_up_to() })?;
        let mut reader = Reader { text, at: 0, values: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at < text.len() { reader.missing("the end") } else { Ok(value) }
    }

    /// The member of that name.
    pub fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Map(members) => members.iter().find(|(key, _)| key == name).map(|(_, value)| value),
            _ => None,
        }
    }

    /// As text: a string without its quotes, everything else as JSON.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Bool(yes) => write!(f, "{yes}"),
            Self::Number(spelling) => f.write_str(spelling),
            Self::Text(text) => quoted(f, text),
            Self::List(items) => {
                f.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "" } else { "," })?;
                }
                f.write_str("]")
            }
            Self::Map(members) => {
                f.write_str("{")?;
                for (index, (name, value)) in members.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { "," })?;
                    quoted(f, name)?;
                    write!(f, ":{value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

fn quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str(&serde_json::to_string(text).map_err(|_| fmt::Error)?)
}

/// The parser, with its position in the text.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    values: usize,
}

impl Reader<'_> {
    fn value(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(NotJson::TooMany);
        }
        if depth > MAX_DEPTH {
            return Err(NotJson::TooDeep);
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.map(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => self.string().map(Json::Text),
            Some(b'-' | b'0'..=b'9') => self.number().map(Json::Number),
            Some(b't') => self.word("true").map(|()| Json::Bool(true)),
            Some(b'f') => self.word("false").map(|()| Json::Bool(false)),
            Some(b'n') => self.word("null").map(|()| Json::Null),
            _ => self.missing("a value"),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.took(b']') {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.took(b']') {
                return Ok(Json::List(items));
            }
            if !self.took(b',') {
                return self.missing("`,` or `]`");
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Json, NotJson> {
        self.at += 1;
        let mut members = Vec::new();
        self.space();
        if self.took(b'}') {
            return Ok(Json::Map(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return self.missing("a member's name");
            }
            let name = self.string()?;
            self.space();
            if !self.took(b':') {
                return self.missing("`:`");
            }
            members.push((name, self.value(depth + 1)?));
            self.space();
            if self.took(b'}') {
                return Ok(Json::Map(last_of_each_name(members)));
            }
            if !self.took(b',') {
                return self.missing("`,` or `}`");
            }
        }
    }

    /// Finds the end of a string here; `serde_json` decodes its escapes.
    fn string(&mut self) -> Result<String, NotJson> {
        let start = self.at;
        let rest = &self.text.as_bytes()[start + 1..];
        let mut escaped = false;
        let length = rest.iter().position(|&byte| {
            let end = byte == b'"' && !escaped;
            escaped = byte == b'\\' && !escaped;
            end
        });
        let Some(length) = length else { return self.missing("the end of a string") };
        self.at = start + length + 2;
        serde_json::from_str(&self.text[start..self.at])
            .map_err(|_| NotJson::Syntax { wanted: "a valid string", at: start })
    }

    fn number(&mut self) -> Result<String, NotJson> {
        let start = self.at;
        self.took(b'-');
        if !self.took(b'0') {
            self.digits()?;
        }
        if self.took(b'.') {
            self.digits()?;
        }
        if self.took(b'e') || self.took(b'E') {
            let _sign = self.took(b'+') || self.took(b'-');
            self.digits()?;
        }
        Ok(self.text[start..self.at].to_owned())
    }

    fn digits(&mut self) -> Result<(), NotJson> {
        let count = self.text.as_bytes()[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { self.missing("a digit") } else { Ok(()) }
    }

    fn word(&mut self, word: &'static str) -> Result<(), NotJson> {
        if !self.text[self.at..].starts_with(word) {
            return self.missing("a value");
        }
        self.at += word.len();
        Ok(())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn took(&mut self, byte: u8) -> bool {
        let here = self.peek() == Some(byte);
        self.at += usize::from(here);
        here
    }

    fn missing<T>(&self, wanted: &'static str) -> Result<T, NotJson> {
        Err(NotJson::Syntax { wanted, at: self.at })
    }
}

fn last_of_each_name(members: Vec<(String, Json)>) -> Vec<(String, Json)> {
    let mut seen = std::collections::HashSet::new();
    let keep: Vec<bool> = members.iter().rev().map(|(name, _)| seen.insert(name.clone())).collect();
    members
        .into_iter()
        .zip(keep.into_iter().rev())
        .filter_map(|(member, keep)| keep.then_some(member))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_written_is_what_is_read() {
        for text in [
            r#"{"a":12345678901234567890123,"b":[1.50,-0,1e3],"c":"x\"y\n","d":null,"e":true,"f":{}}"#,
            "[]",
            "1000000",
            "\"\"",
        ] {
            assert_eq!(Json::parse(text.as_bytes()).unwrap().to_string(), text);
        }
        assert_eq!(Json::parse(b" { \"a\" : [ 1 , 2 ] } ").unwrap().to_string(), r#"{"a":[1,2]}"#);
        assert_eq!(Json::parse(br#"{"a":1,"b":2,"a":3}"#).unwrap().get("a"), Some(&Json::Number("3".into())));
        assert_eq!(Json::parse("\"\\u00e9\\ud83d\\ude00\"".as_bytes()).unwrap().text(), "é😀");
    }

    #[test]
    fn what_is_no_json_is_said_with_its_place() {
        for (text, expect) in [
            ("", "a value is missing at byte 0"),
            ("<html>", "a value is missing at byte 0"),
            ("[1 2]", "`,` or `]` is missing at byte 3"),
            ("[1,]", "a value is missing at byte 3"),
            ("{1:2}", "a member's name is missing"),
            (r#"{"a" 1}"#, "`:` is missing"),
            (r#"{"a":1,}"#, "a member's name"),
            ("01", "the end is missing at byte 1"),
            ("1.", "a digit"),
            ("\"a", "the end of a string"),
            ("\"\\q\"", "a valid string"),
            ("\"\\ud800\"", "a valid string"),
            ("nul", "a value"),
            ("{} x", "the end"),
        ] {
            let error = Json::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expect), "{text} -> {error}");
        }
        assert!(Json::parse(b"\"\xff\"").unwrap_err().to_string().contains("UTF-8"));
    }

    #[test]
    fn it_is_bounded() {
        let deep = "[".repeat(500_000);
        assert_eq!(Json::parse(deep.as_bytes()), Err(NotJson::TooDeep));
        let many = format!("[{}0]", "0,".repeat(MAX_VALUES));
        assert_eq!(Json::parse(many.as_bytes()), Err(NotJson::TooMany));
        assert_eq!(Json::parse(" ".repeat(MAX_BYTES + 1).as_bytes()), Err(NotJson::TooLong));
    }

    proptest! {
        #[test]
        fn it_agrees_with_serde_json(text in r#"[\[\]{}:, "\\a0-3.eEu+-]{0,24}|null|\{"a":[-0-9.e]{1,6}\}"#) {
            let ours = Json::parse(text.as_bytes());
            let theirs = serde_json::from_str::<serde_json::Value>(&text);
            match (ours, theirs) {
                (Ok(ours), Ok(theirs)) => {
                    let ours: serde_json::Value = serde_json::from_str(&ours.to_string()).unwrap();
                    prop_assert_eq!(ours, theirs);
                }
                (Err(_), Err(_)) => {}
                // A number beyond the range of f64 still has a spelling.
                (Ok(_), Err(error)) => prop_assert!(error.to_string().contains("out of range"), "{}", error),
                (Err(error), Ok(_)) => prop_assert!(false, "{}", error),
            }
        }
    }
}
