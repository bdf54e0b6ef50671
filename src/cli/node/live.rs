//! The progress of a running operation on standard error. Formats only.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::api::status::Status;
use crate::cli::escape::escaped;
use crate::cli::node::Format;
use crate::node::drive::{Observer, OperationEvent};

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
        OperationEvent::Progress(text) => shown.set_message(escaped(text)),
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
