//! Compares a generated page below `docs/reference` with the file. If the environment variable `INPLACE_WRITE_REFERENCE`
//! is set, writes the file first. Must not know what a page says.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Fails if the page `name` is not `title` and `body`.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment says whether pages are written, as in `make reference`"
)]
pub(crate) fn check(name: &str, title: &str, body: &str) {
    let note =
        "<!-- Generated from the code by `make reference`. A test compares them: do not edit this page. -->";
    let text = format!("{note}\n\n# {title}\n\n{}\n", body.trim());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
    if std::env::var_os("INPLACE_WRITE_REFERENCE").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let mut lines = committed.lines().zip(text.lines()).enumerate();
    let differs = lines.find(|(_, (committed, made))| committed != made);
    let place = differs.map_or_else(
        || "one of them is longer".to_owned(),
        |(at, (committed, made))| format!("line {}:\n  the page: {committed}\n  the code: {made}", at + 1),
    );
    assert!(
        committed == text,
        "docs/reference/{name} is not what the code generates now: run `make reference`. The first difference: {place}"
    );
}

/// `text` as one cell of a table.
pub(crate) fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut is_code = false;
    let mut cell = String::new();
    for c in line.chars() {
        is_code ^= c == '`';
        match c {
            '|' => cell.push_str("\\|"),
            '<' if !is_code => cell.push_str("&lt;"),
            _ => cell.push(c),
        }
    }
    cell
}

/// A table. Cells must be escaped already.
pub(crate) fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let mut text = format!("| {} |\n|{}\n", heads.join(" | "), "---|".repeat(heads.len()));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}
