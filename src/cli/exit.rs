//! Exit codes: one per kind of end, so that scripts need not read text.

use std::process::ExitCode;

use crate::api::status::Phase;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, and observed.
    Done,
    /// 1: it failed; the message says what was touched.
    Failed,
    /// 3: it cannot be done as written, nothing was touched. (2 is a wrong command line.)
    Refused,
    /// 4: the new image did not come up, the old one runs again.
    RolledBack,
    /// 5: ended from outside before anything was touched, or left to the journal.
    Interrupted,
    /// 6: the runtime cannot be reached.
    RuntimeAway,
    /// 7: an agent or another command is at work.
    Busy,
}

/// Printed below `--help`.
pub const HELP: &str = "\
Exit codes:
  0  done, and observed on the runtime
  1  failed; the message says what was touched
  2  the command line is wrong
  3  refused: it cannot be done as written, nothing was touched
  4  rolled back: the new image did not come up, the old one runs again
  5  interrupted: before anything was touched, or what is left is in the journal
  6  the container runtime cannot be reached
  7  an inplace agent or another command is at work";

impl From<Phase> for Exit {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Succeeded => Self::Done,
            Phase::Failed => Self::Failed,
            Phase::RolledBack => Self::RolledBack,
            Phase::Refused => Self::Refused,
            Phase::Cancelled | Phase::Pending | Phase::Running => Self::Interrupted,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Refused => 3,
            Exit::RolledBack => 4,
            Exit::Interrupted => 5,
            Exit::RuntimeAway => 6,
            Exit::Busy => 7,
        })
    }
}
