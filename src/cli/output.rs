//! Output of all commands: results go to standard output, everything else to standard error.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use serde::Serialize;

use crate::api::status::Status;
use crate::node::drive::{Observer, OperationEvent};

/// The form of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// The form of a result for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Data {
    /// On one line
    Json,
    /// A document
    Yaml,
}

impl Data {
    pub(super) fn print(self, value: &impl Serialize) {
        match self {
            Self::Json => json(value),
            Self::Yaml => yaml(value),
        }
    }
}

/// The form of a result that may be only a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Form {
    /// On one line
    Json,
    /// A document
    Yaml,
    /// The name of the rollout that was created for a workload
    Name,
}

impl Form {
    /// `None` for the output form `name`.
    pub(super) fn data(self) -> Option<Data> {
        match self {
            Self::Json => Some(Data::Json),
            Self::Yaml => Some(Data::Yaml),
            Self::Name => None,
        }
    }
}

/// Writes one line to standard output.
pub(super) fn line(text: &str) {
    // If the reader has closed the pipe, the rest is dropped.
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Writes one line to standard error.
pub(super) fn message(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Writes a result as JSON on one line.
pub(super) fn json(value: &impl Serialize) {
    match serde_json::to_string(value) {
        Ok(text) => line(&text),
        Err(error) => message(&format!("the result cannot be written as JSON: {error}")),
    }
}

/// Writes a result as a YAML document.
pub(super) fn yaml(value: &impl Serialize) {
    match serde_saphyr::to_string(value) {
        Ok(text) => line(&format!("---\n{}", text.trim_end())),
        Err(error) => message(&format!("the result cannot be written as YAML: {error}")),
    }
}

/// Writes rows under headings; each column is as wide as its widest cell.
pub(super) fn table(headings: &[&str], cells: &[Vec<String>]) {
    for text in rows(headings, cells, &mut Vec::new()) {
        line(&text);
    }
}

/// The lines of a table, headings first. `widths` carries the widths of the previous lines; they never shrink.
pub(super) fn rows(headings: &[&str], cells: &[Vec<String>], widths: &mut Vec<usize>) -> Vec<String> {
    let width = |column: usize| {
        let cells = cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([headings[column].chars().count()]).max().unwrap_or(0)
    };
    widths.resize(headings.len(), 0);
    for (column, known) in widths.iter_mut().enumerate() {
        *known = width(column).max(*known);
    }
    let row = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&*widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let cells = cells.iter().map(|cells| row(cells.iter().map(String::as_str).collect()));
    std::iter::once(row(headings.to_vec())).chain(cells).collect()
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

/// Shows the steps of a running operation: one updated line on a terminal, one line per step elsewhere, nothing
/// with JSON output.
pub(super) fn live(format: Format) -> (Observer, ProgressBar) {
    let bar = if format == Format::Text && io::stderr().is_terminal() {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(80));
        bar
    } else {
        ProgressBar::hidden()
    };
    let shown = bar.clone();
    let observer: Observer = Arc::new(move |operation_event| match operation_event {
        OperationEvent::Status(status) if !status.phase.is_terminal() => shown.set_message(step_of(status)),
        OperationEvent::Progress(text) => shown.set_message(text.to_owned()),
        OperationEvent::Effect { verb, container, .. } => {
            shown.set_message(format!("{container}: {verb:?} done"));
        }
        OperationEvent::Status(_) => {}
    });
    (observer, bar)
}

fn step_of(status: &Status) -> String {
    let names =
        status.containers.iter().map(|container| container.name.as_str()).collect::<Vec<_>>().join(", ");
    match status.step {
        Some(step) => format!("{names}: {step}"),
        None => names,
    }
}
