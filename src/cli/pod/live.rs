//! The progress view of running requests: one updated line per pod on a terminal, one line per change elsewhere.
//! Formats only.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::cli::escape::escaped;
use crate::cli::output::message;

/// The lines of several pods. Cheap to clone.
#[derive(Clone)]
pub(super) struct Live {
    bars: Option<MultiProgress>,
}

/// The line of one pod.
pub(super) struct Line {
    name: String,
    bars: Option<MultiProgress>,
    bar: ProgressBar,
    shown: String,
}

impl Live {
    pub(super) fn new() -> Self {
        Self { bars: io::stderr().is_terminal().then(MultiProgress::new) }
    }

    /// Adds a line for `name`.
    pub(super) fn line(&self, name: String) -> Line {
        let bar = match &self.bars {
            Some(bars) => {
                let bar = bars.add(ProgressBar::new_spinner());
                if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed:>3} {msg}") {
                    bar.set_style(style);
                }
                bar.enable_steady_tick(Duration::from_millis(80));
                bar
            }
            None => ProgressBar::hidden(),
        };
        Line { name, bars: self.bars.clone(), bar, shown: String::new() }
    }

    /// Prints something else without disturbing the lines.
    pub(super) fn aside(&self, print: impl FnOnce()) {
        match &self.bars {
            Some(bars) => bars.suspend(print),
            None => print(),
        }
    }

    /// Removes all lines from the terminal.
    pub(super) fn clear(&self) {
        if let Some(bars) = &self.bars {
            // If the terminal is gone, there is nothing to clear.
            let _ = bars.clear();
        }
    }
}

impl Line {
    /// Shows the current state; a repeated state is printed once.
    pub(super) fn show(&mut self, text: &str) {
        if self.shown == text {
            return;
        }
        text.clone_into(&mut self.shown);
        let line = self.escaped(text);
        if self.bars.is_some() { self.bar.set_message(line) } else { message(&line) }
    }

    /// Prints a message that stays above the lines.
    pub(super) fn remark(&self, text: &str) {
        let line = self.escaped(text);
        match &self.bars {
            Some(bars) => bars.suspend(|| message(&line)),
            None => message(&line),
        }
    }

    /// One line about the pod; the text may come from its annotations.
    fn escaped(&self, text: &str) -> String {
        escaped(&format!("{}: {text}", self.name))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
