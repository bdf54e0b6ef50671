//! The roles that are for Linux only, beside `inplace node`: the two that run in a cluster, and the hidden commands of a
//! fence. `main.rs` leaves this file out elsewhere.

use std::process::ExitCode;

use clap::Subcommand;
use inplace::cli::exit::Exit;
use inplace::node::lock::LockError;
use inplace::process::hold::HoldCommand;
use inplace::process::log::chain;
use inplace::process::sockets::SocketsCommand;
use inplace::{agent, controller};
use tokio::runtime::Runtime;

use crate::fail;

#[derive(Debug, Subcommand)]
pub(crate) enum LinuxRole {
    Agent(agent::Args),
    Controller(controller::Args),
    #[command(hide = true)]
    Sockets(SocketsCommand),
    #[command(hide = true)]
    Hold(HoldCommand),
}

impl LinuxRole {
    /// Runs the role and returns its exit code. Errors go to standard error.
    pub(crate) fn run(self, runtime: &Runtime) -> ExitCode {
        match self {
            Self::Agent(args) => match runtime.block_on(agent::run(args)) {
                Ok(()) => Exit::Done.into(),
                Err(error) => {
                    let code = fail(&chain(&error));
                    match error {
                        agent::Error::Lock(LockError::Held { .. }) => Exit::Busy.into(),
                        agent::Error::Endpoint(_) => Exit::RuntimeAway.into(),
                        _ => code,
                    }
                }
            },
            Self::Controller(args) => ended(runtime.block_on(controller::run(args))),
            Self::Sockets(command) => ended(command.run()),
            Self::Hold(command) => ended(runtime.block_on(command.run())),
        }
    }
}

fn ended<E: std::error::Error + 'static>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => Exit::Done.into(),
        Err(error) => fail(&chain(&error)),
    }
}
