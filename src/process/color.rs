//! Whether output is coloured: `--color`, `NO_COLOR` and whether the output is a terminal.

use std::env;
use std::ffi::OsStr;
use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ValueEnum;

/// The value of `--color`.
static GIVEN: OnceLock<When> = OnceLock::new();

/// When output is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless the environment has `NO_COLOR`
    #[default]
    Auto,
    /// Always, also in a file or a pipe
    Always,
    /// Never
    Never,
}

/// The flag about colour.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct ColorArgs {
    /// When output is coloured
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub color: When,
}

impl ColorArgs {
    /// Remembers the choice for the process. A second call has no effect.
    pub fn start(self) {
        let _ = GIVEN.set(self.color);
    }
}

/// True if output to `stream` is coloured.
#[expect(
    clippy::disallowed_methods,
    reason = "both variables are conventions of terminals, and no settings of this program"
)]
pub fn is_wanted(stream: &impl IsTerminal) -> bool {
    let when = GIVEN.get().copied().unwrap_or_default();
    decide(when, env::var_os("NO_COLOR").as_deref(), env::var_os("TERM").as_deref(), stream.is_terminal())
}

fn decide(when: When, no_color: Option<&OsStr>, term: Option<&OsStr>, is_terminal: bool) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => {
            is_terminal && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_is_coloured_unless_it_is_asked_for() {
        let some = |text: &'static str| Some(OsStr::new(text));
        for (when, no_color, term, is_terminal, wanted) in [
            (When::Auto, None, some("xterm"), true, true),
            (When::Auto, None, None, true, true),
            (When::Auto, some(""), None, true, true),
            (When::Auto, some("1"), None, true, false),
            (When::Auto, None, some("dumb"), true, false),
            (When::Auto, None, some("xterm"), false, false),
            (When::Always, some("1"), None, false, true),
            (When::Never, None, some("xterm"), true, false),
        ] {
            assert_eq!(decide(when, no_color, term, is_terminal), wanted, "{when:?} {no_color:?} {term:?}");
        }
    }
}
