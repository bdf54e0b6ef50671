//! What the person sees while a request is under way: a changing line per pod on a terminal, a line per change elsewhere.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

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

    /// A line for `name`.
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

    /// Prints something else without tearing the lines.
    pub(super) fn aside(&self, print: impl FnOnce()) {
        match &self.bars {
            Some(bars) => bars.suspend(print),
            None => print(),
        }
    }

    /// Takes all lines off the terminal.
    pub(super) fn clear(&self) {
        if let Some(bars) = &self.bars {
            // A terminal that is gone has nothing to be cleared.
            let _ = bars.clear();
        }
    }
}

impl Line {
    /// The present state; the same one again is not shown again.
    pub(super) fn show(&mut self, text: &str) {
        if self.shown == text {
            return;
        }
        text.clone_into(&mut self.shown);
        let line = format!("{}: {text}", self.name);
        if self.bars.is_some() { self.bar.set_message(line) } else { message(&line) }
    }

    /// Something to know, which stays.
    pub(super) fn remark(&self, text: &str) {
        let line = format!("{}: {text}", self.name);
        match &self.bars {
            Some(bars) => bars.suspend(|| message(&line)),
            None => message(&line),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
