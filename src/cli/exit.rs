//! The exit codes: one per kind of result, so that scripts need not parse text. Prints nothing.

use std::process::ExitCode;

use crate::api::status::Phase;

/// How a command ended. The variants map to exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, and observed on the runtime.
    Done,
    /// 1: failed; the message says what was touched.
    Failed,
    /// 2: the command line, or the kubeconfig, is wrong.
    Usage,
    /// 3: refused; it cannot be done as written, and nothing was touched.
    Refused,
    /// 4: the new image did not come up; the old one runs again.
    RolledBack,
    /// 5: interrupted, cancelled or replaced before anything was touched, or the remaining work is in the
    /// journal.
    Interrupted,
    /// 6: the container runtime cannot be reached.
    RuntimeAway,
    /// 6 as well: the API server cannot be reached.
    ClusterAway,
    /// 7: an agent or another command is working on the node.
    Busy,
    /// 8: not finished within the time of `--wait` or `--timeout`; the operation continues.
    TimedOut,
}

/// The table of exit codes that is printed below `inplace --help`.
pub const HELP: &str = "\
Exit codes:
  0  done, and observed on the runtime
  1  failed; the message says what was touched
  2  the command line or the kubeconfig is wrong
  3  refused: the request cannot be executed as written, nothing was touched
  4  rolled back: the new image did not come up, the old one runs again
  5  interrupted, cancelled or replaced: nothing was touched, or the remaining work is in the journal
  6  the container runtime, or the API server, cannot be reached
  7  an inplace agent or another command is running
  8  not finished within the time of --wait or --timeout; it continues";

impl Exit {
    /// Returns the more serious of two results. A command with several results exits with it.
    #[must_use]
    pub fn worse(self, other: Self) -> Self {
        if other.weight() > self.weight() { other } else { self }
    }

    /// Orders the results: a result that may have left changes behind weighs more than one that touched nothing.
    fn weight(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Interrupted => 1,
            Self::Busy => 2,
            Self::Usage => 3,
            Self::Refused => 4,
            Self::RuntimeAway | Self::ClusterAway => 5,
            Self::TimedOut => 6,
            Self::RolledBack => 7,
            Self::Failed => 8,
        }
    }
}

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
            Exit::Usage => 2,
            Exit::Refused => 3,
            Exit::RolledBack => 4,
            Exit::Interrupted => 5,
            Exit::RuntimeAway | Exit::ClusterAway => 6,
            Exit::Busy => 7,
            Exit::TimedOut => 8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_ends_the_worse_one_is_reported() {
        for (a, b, worse) in [
            (Exit::Done, Exit::Interrupted, Exit::Interrupted),
            (Exit::Refused, Exit::Done, Exit::Refused),
            (Exit::Failed, Exit::RolledBack, Exit::Failed),
            (Exit::RolledBack, Exit::TimedOut, Exit::RolledBack),
            (Exit::Done, Exit::Done, Exit::Done),
        ] {
            assert_eq!((a.worse(b), b.worse(a)), (worse, worse));
        }
    }
}
