//! Turns a source with constants of keys into a table: key and description, from the comments. Must not know any key.

use std::collections::BTreeMap;
use std::fs;

use regex::{Captures, Regex};

use super::page;

/// The constants of the source at `path`.
pub(super) fn table(path: &str) -> String {
    let source = fs::read_to_string(path).unwrap();
    let mut rows = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    let constant = Regex::new(r#"^pub const (\w+): &str = "([^"]*)";$"#).unwrap();
    for line in source.lines() {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else {
            if let Some(found) = constant.captures(line) {
                rows.push((found[1].to_owned(), found[2].to_owned(), comment.join(" ")));
            }
            comment.clear();
        }
    }
    assert_eq!(rows.len(), source.matches("pub const ").count(), "{path} has a constant that is not read");
    let values: BTreeMap<_, _> =
        rows.iter().map(|(name, value, _)| (name.as_str(), value.as_str())).collect();
    let link = Regex::new(r"\[`(?:\w+::)*(\w+)`\]").unwrap();
    let row = |(_, value, text): &(String, String, String)| {
        let text = link.replace_all(text, |found: &Captures<'_>| {
            format!("`{}`", values.get(&found[1]).copied().unwrap_or(&found[1]))
        });
        vec![format!("`{}`", page::cell(value)), page::cell(&text)]
    };
    page::table(&["key or value", "description"], &rows.iter().map(row).collect::<Vec<_>>())
}
