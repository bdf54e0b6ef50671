//! Output of all commands: results go to standard output, everything else to standard error. What people read is
//! escaped here (`escape`), because it may come from the cluster; what programs read is written as it is.

use std::fmt::{Display, Write as _};
use std::io::{self, Write};

use jiff::Timestamp;
use serde::Serialize;

use crate::api::status::Phase;
use crate::cli::{escape, paint};
use crate::process::color;

/// Writes one line for people to standard output.
pub(super) fn line(text: &str) {
    raw(&escape::escaped(text));
}

/// Writes how a request about `what` has ended to standard output; the phase is coloured if that is.
pub(super) fn end(what: impl Display, phase: Phase, message: &str) {
    let (what, message) = (escape::escaped(&what.to_string()), escape::escaped(message));
    let phase = phase.to_string();
    let phase = if color::is_wanted(&io::stdout()) { paint::word(&phase) } else { phase };
    raw(&format!("{what}: {phase}: {message}"));
}

/// Writes one line to standard output as it is: for programs, or of a table.
pub(super) fn raw(text: &str) {
    // If the reader has closed the pipe, the rest is dropped.
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Writes text without a line break after it, as kubectl does for a template.
pub(super) fn text(text: &str) {
    let mut out = io::stdout().lock();
    // If the reader has closed the pipe, the rest is dropped.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Writes a message to standard error. Of the control characters only line breaks stay, each with an indent after it.
pub(super) fn message(text: &str) {
    let text = escape::paragraph(text);
    let text = if color::is_wanted(&io::stderr()) { paint::error(&text) } else { text };
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a result as JSON on one line.
pub(super) fn json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => raw(&text),
        Err(error) => message(&format!("the result cannot be written as JSON: {error}")),
    }
}

/// Writes a result as a YAML document.
pub(super) fn yaml(value: &impl Serialize) {
    match serde_saphyr::to_string(value) {
        Ok(text) => raw(&format!("---\n{}", text.trim_end())),
        Err(error) => message(&format!("the result cannot be written as YAML: {error}")),
    }
}

/// Writes rows under headings; each column is as wide as its widest cell.
pub(super) fn table(headings: &[&str], cells: &[Vec<String>]) {
    for text in stdout_rows(headings, cells, &mut Vec::new()) {
        raw(&text);
    }
}

/// The lines of a table for standard output, with colours if it has any.
pub(super) fn stdout_rows(headings: &[&str], cells: &[Vec<String>], widths: &mut Vec<usize>) -> Vec<String> {
    painted_rows(headings, cells, widths, color::is_wanted(&io::stdout()))
}

/// The lines of a table, headings first. `widths` carries the widths of the previous lines; they never shrink.
pub(super) fn rows(headings: &[&str], cells: &[Vec<String>], widths: &mut Vec<usize>) -> Vec<String> {
    painted_rows(headings, cells, widths, false)
}

fn painted_rows(
    headings: &[&str],
    cells: &[Vec<String>],
    widths: &mut Vec<usize>,
    has_color: bool,
) -> Vec<String> {
    // Before the widths are measured and the colours are set.
    let cells: Vec<Vec<_>> =
        cells.iter().map(|row| row.iter().map(|cell| escape::escaped(cell)).collect()).collect();
    let width = |column: usize| {
        let cells = cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    widths.resize(headings.len(), 0);
    for (column, known) in widths.iter_mut().enumerate() {
        *known = width(column).max(*known);
    }
    let row = |cells: Vec<&str>, is_heading: bool| {
        let mut text = String::new();
        let mut gap = 0;
        for ((cell, width), heading) in cells.iter().zip(&*widths).zip(headings) {
            let _ = write!(text, "{:gap$}", "");
            text.push_str(&match (has_color, is_heading) {
                (false, _) => (*cell).to_owned(),
                (true, true) => paint::heading(cell),
                (true, false) => paint::cell(heading, cell),
            });
            gap = width.saturating_sub(cell.chars().count()) + 2;
        }
        text.trim_end().to_owned()
    };
    let cells = cells.iter().map(|cells| row(cells.iter().map(String::as_str).collect(), false));
    std::iter::once(row(headings.to_vec(), true)).chain(cells).collect()
}

/// The elapsed time in one unit, close to kubectl's ages.
pub(super) fn age(at: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(at).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_escaped_before_it_is_measured_and_coloured() {
        let cells = [["ok\nb\u{1b}[2J", "Failed"], ["für 漢字", "Failed\u{1b}[0m"]];
        let cells = cells.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            rows(&["MESSAGE", "PHASE"], &cells, &mut Vec::new()),
            ["MESSAGE         PHASE", r"ok\nb\u{1b}[2J  Failed", r"für 漢字          Failed\u{1b}[0m"]
        );
        let colored = painted_rows(&["MESSAGE", "PHASE"], &cells, &mut Vec::new(), true);
        assert_eq!(colored[1], format!(r"ok\nb\u{{1b}}[2J  {}", paint::word("Failed")));
        assert_eq!(colored[2], r"für 漢字          Failed\u{1b}[0m");
    }
}
