//! `--dry-run` with kubectl's values. Decides nothing.

use clap::{Args, ValueEnum};

/// Whether a command writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DryRun {
    /// Carry it out
    #[default]
    None,
    /// Read only, and show what would be written
    Client,
    /// Send it to the API server, which checks it with all admission, and stores nothing
    Server,
}

impl DryRun {
    /// True if the API server gets the write, to check it or to store it.
    pub(super) fn is_sent(self) -> bool {
        self != Self::Client
    }

    /// True if the API server only checks the write.
    pub(super) fn is_check(self) -> bool {
        self == Self::Server
    }

    /// What stands behind a message about a write that was not made, as in kubectl.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }
}

/// The value of a flag that means something else without a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Choice {
    /// Carry it out
    #[default]
    None,
    /// Read only, and show what would be written
    Client,
    /// Send it to the API server, which checks it with all admission, and stores nothing
    Server,
    /// The flag without a value.
    #[value(hide = true)]
    Bare,
}

impl Choice {
    /// The mode; `bare` is that of the flag without a value.
    pub(super) fn or(self, bare: DryRun) -> DryRun {
        match self {
            Self::None => DryRun::None,
            Self::Client => DryRun::Client,
            Self::Server => DryRun::Server,
            Self::Bare => bare,
        }
    }
}

/// The flag of commands that write.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct DryRunArgs {
    /// Change nothing; without a value it is client
    #[arg(long, value_name = "MODE", num_args = 0..=1, require_equals = true, value_enum, default_value_t,
        default_missing_value = "client")]
    pub(super) dry_run: DryRun,
}
