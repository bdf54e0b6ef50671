//! kubectl's `JSONPath` templates: text, `{.path}`, `{range .path}...{end}` and `{"text"}`. Pure.
//!
//! A path is translated to RFC 9535, which `jsonpath-rust` evaluates. kubectl's own notation has no `$` in front and
//! escapes a dot in a name: `{.metadata.annotations.inplace\.dev/status}`.

use std::fmt::Write as _;

use jsonpath_rust::parser::model::JpQuery;
use jsonpath_rust::parser::parse_json_path;
use jsonpath_rust::query::{QueryRef, js_path_process};
use serde_json::Value;

/// Why a template or a path cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Invalid {
    /// A `{` or a quote without its end.
    #[error("`{0}` is not closed")]
    Open(String),
    /// `{end}` without `{range}`, or `{range}` without `{end}`.
    #[error("each `{{range}}` needs one `{{end}}`")]
    Range,
    /// Something that kubectl's templates do not have, or this program does not support.
    #[error("`{{{0}}}` is not supported: write {{.path}}, {{range .path}}...{{end}} or {{\"text\"}}")]
    Unsupported(String),
    /// A path that cannot be parsed.
    #[error("`{path}` is not a valid path: {problem}")]
    Path {
        /// The path as it was written.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// A parsed template.
#[derive(Clone, Debug)]
pub(super) struct Template(Vec<Part>);

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Value(Path),
    Range(Path, Vec<Part>),
}

impl Template {
    /// Parses a template; a bare path needs no braces.
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        if !text.contains('{') && text.starts_with(['.', '$', '[']) {
            return Ok(Self(vec![Part::Value(Path::parse(text)?)]));
        }
        let mut open: Vec<(Option<Path>, Vec<Part>)> = vec![(None, Vec::new())];
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            let (before, from) = rest.split_at(start);
            let inside = &from[1..];
            let end = closing(inside).ok_or_else(|| Invalid::Open(from.to_owned()))?;
            let (inner, after) = (inside[..end].trim(), &inside[end + 1..]);
            add(&mut open, (!before.is_empty()).then(|| Part::Text(before.to_owned())));
            if let Some(path) = inner.strip_prefix("range").filter(|rest| rest.starts_with([' ', '.', '['])) {
                open.push((Some(Path::parse(path.trim())?), Vec::new()));
            } else if inner == "end" {
                match (open.pop(), open.is_empty()) {
                    (Some((Some(path), parts)), false) => add(&mut open, Some(Part::Range(path, parts))),
                    _ => return Err(Invalid::Range),
                }
            } else {
                add(&mut open, Some(part(inner)?));
            }
            rest = after;
        }
        add(&mut open, (!rest.is_empty()).then(|| Part::Text(rest.to_owned())));
        match (open.pop(), open.is_empty()) {
            (Some((None, parts)), true) => Ok(Self(parts)),
            _ => Err(Invalid::Range),
        }
    }

    /// The text for `root`.
    pub(super) fn text(&self, root: &Value) -> String {
        let mut text = String::new();
        write(&self.0, root, root, &mut text);
        text
    }
}

fn add(open: &mut [(Option<Path>, Vec<Part>)], part: Option<Part>) {
    if let Some((_, parts)) = open.last_mut() {
        parts.extend(part);
    }
}

fn write(parts: &[Part], root: &Value, here: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(plain) => text.push_str(plain),
            Part::Value(path) => text.push_str(&path.texts(root, here).join(" ")),
            Part::Range(path, inner) => {
                for value in path.values(root, here) {
                    write(inner, root, value, text);
                }
            }
        }
    }
}

/// The place of the `}` that ends an expression; braces in quotes do not count.
fn closing(text: &str) -> Option<usize> {
    let (mut quote, mut escaped) = (None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (_, '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '}') => return Some(at),
            (Some(_) | None, _) => {}
        }
    }
    None
}

fn part(inner: &str) -> Result<Part, Invalid> {
    let first = inner.chars().next();
    match first {
        Some(quote @ ('"' | '\'')) => {
            let text = inner[1..].strip_suffix(quote);
            let text = text.filter(|_| inner.len() > 1).ok_or_else(|| Invalid::Open(inner.to_owned()))?;
            Ok(Part::Text(unescaped(text)))
        }
        Some('.' | '$' | '@' | '[') => Path::parse(inner).map(Part::Value),
        _ => Err(Invalid::Unsupported(inner.to_owned())),
    }
}

fn unescaped(text: &str) -> String {
    let (mut plain, mut chars) = (String::new(), text.chars());
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some(other) => other,
                None => '\\',
            },
            c => c,
        });
    }
    plain
}

/// A parsed path.
#[derive(Clone, Debug)]
pub(super) struct Path {
    query: JpQuery,
    /// The path begins at the whole value, also within a range.
    is_absolute: bool,
}

impl Path {
    /// Parses a path in kubectl's notation, or in that of RFC 9535.
    pub(super) fn parse(text: &str) -> Result<Self, Invalid> {
        let wrong = |problem: String| Invalid::Path { path: text.to_owned(), problem };
        let (is_absolute, rest) = match text.trim() {
            rest if rest.starts_with('$') => (true, &rest[1..]),
            rest => (false, rest.strip_prefix('@').unwrap_or(rest)),
        };
        if !(rest.is_empty() || rest.starts_with(['.', '['])) {
            return Err(wrong("it begins with `.`, `[`, `$` or `@`".to_owned()));
        }
        let translated = format!("${}", translated(rest.strip_suffix('.').unwrap_or(rest)));
        let query = parse_json_path(&translated);
        let query = query.map_err(|_| wrong("it does not follow RFC 9535".to_owned()))?;
        Ok(Self { query, is_absolute })
    }

    /// The values at the path, as text.
    pub(super) fn texts(&self, root: &Value, here: &Value) -> Vec<String> {
        self.values(root, here).into_iter().map(plain).collect()
    }

    fn values<'a>(&self, root: &'a Value, here: &'a Value) -> Vec<&'a Value> {
        let from = if self.is_absolute { root } else { here };
        let hits = js_path_process(&self.query, from).unwrap_or_default();
        hits.into_iter().map(QueryRef::val).collect()
    }
}

/// A value as kubectl prints it.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The path with each name that RFC 9535 does not allow behind a dot in brackets.
fn translated(path: &str) -> String {
    let mut out = String::new();
    let (mut quote, mut chars) = (None, path.chars().peekable());
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => {
                out.push(c);
                out.extend(chars.next());
            }
            (Some(open), _) => {
                quote = (c != open).then_some(open);
                out.push(c);
            }
            (None, '"' | '\'') => {
                quote = Some(c);
                out.push(c);
            }
            (None, '.') => {
                let is_deep = chars.next_if_eq(&'.').is_some();
                let mut name = String::new();
                while let Some(c) = chars.next_if(|c| c.is_alphanumeric() || "_-/\\".contains(*c)) {
                    name.extend(if c == '\\' { chars.next() } else { Some(c) });
                }
                let digits = |text: &str| text.ends_with(|c: char| c.is_ascii_digit());
                // `1.5` in a filter is a number.
                let is_number = digits(&out) && name.chars().all(|c| c.is_ascii_digit());
                let is_plain = is_number
                    || name.chars().all(|c| c.is_alphanumeric() || c == '_')
                        && !name.starts_with(|c: char| c.is_ascii_digit());
                // kubectl also takes `.[0]`.
                let is_bracket = !is_plain || name.is_empty() && chars.peek() == Some(&'[');
                out.push_str(if is_deep {
                    ".."
                } else if is_bracket {
                    ""
                } else {
                    "."
                });
                if is_plain {
                    out.push_str(&name);
                } else {
                    let _ = write!(out, "['{}']", name.replace('\'', "\\'"));
                }
            }
            (None, c) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(template: &str) -> String {
        let root = json!({"items": [
            {"metadata": {"name": "a", "annotations": {"inplace.dev/status": "ok", "my-key": "x"}}, "n": 1,
             "conditions": [{"type": "Ready", "status": "True"}, {"type": "Gate", "status": "False"}]},
            {"metadata": {"name": "b"}, "n": 2.50, "none": null, "list": [1, 2, 3], "ok": true},
        ]});
        Template::parse(template).unwrap_or_else(|error| panic!("{template}: {error}")).text(&root)
    }

    #[test]
    fn templates_are_those_of_kubectl() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            (".items[*].metadata.name", "a b"),
            ("{$.items[0].metadata.name}", "a"),
            ("{.items[-1:].metadata.name}", "b"),
            ("{.items[0:2].n}", "1 2.5"),
            ("{..name}", "a b"),
            ("{.items[1].list[0,2]}", "1 3"),
            ("{.items[1].list}", "[1,2,3]"),
            ("{.items[1].ok} {.items[1].none}", "true "),
            ("{.items[*].nothing}", ""),
            (r"{.items[0].metadata.annotations.inplace\.dev/status}", "ok"),
            ("{.items[0].metadata.annotations['inplace.dev/status']}", "ok"),
            ("{.items[0].metadata.annotations.my-key}", "x"),
            (r#"{.items[0].conditions[?(@.type=="Ready")].status}"#, "True"),
            (r#"{.items[?(@.metadata.name=="b")].n}"#, "2.5"),
            ("{range .items[*]}{.metadata.name}={.n}{\"\\n\"}{end}done", "a=1\nb=2.5\ndone"),
            ("{range .items[*]}{@.n}{'\\t'}{end}", "1\t2.5\t"),
            ("{range .items[*]}[{range .conditions[*]}{.type},{end}]{end}", "[Ready,Gate,][]"),
            ("{range .items[*]}{$.items[0].n}{end}", "11"),
            (r#"{"a } b"}"#, "a } b"),
            ("plain", "plain"),
            ("{.items.[0].metadata.name}", "a"),
            ("{.items[?(@.n > 1.5)].metadata.name}", "b"),
            ("{.items[0].metadata.*}", r#"{"inplace.dev/status":"ok","my-key":"x"} a"#),
        ] {
            assert_eq!(text(template), expected, "{template}");
        }
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (template, says) in [
            ("{if .a}", "`{if .a}` is not supported"),
            ("{len .items}", "`{len .items}` is not supported"),
            ("{.a", "`{.a` is not closed"),
            ("{range .items[*]}{.a}", "each `{range}` needs one `{end}`"),
            ("{.a}{end}", "each `{range}` needs one `{end}`"),
            ("{.items[}", "`.items[` is not a valid path"),
            ("{.items[?(@.a==)]}", "is not a valid path"),
            ("{\"open}", "is not closed"),
        ] {
            let error = Template::parse(template).unwrap_err().to_string();
            assert!(error.contains(says), "{template}: {error}");
        }
    }
}
