//! The settings of hooks in a process: their permissions, limits and clients. Must not decide anything.

use crate::cluster::server::Server;
use crate::cri::client::Client;
use crate::hook::address_policy::{AddressPolicy, Cidr};

/// The settings of hooks in one process.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The role that measures, for messages: `the agent of node n1`, `the controller`.
    pub role: String,
    /// The runtime for `exec`; `None` if the process is not on the node.
    pub runtime: Option<Client>,
    /// The API server for `kubernetes`; `None` without a cluster.
    pub server: Option<Server>,
    /// Which addresses may be connected to.
    pub address_policy: AddressPolicy,
    /// Measurements at the same time; further ones wait for a permit. At least 1.
    pub max_at_once: usize,
    /// Whether commands may be run in containers.
    pub exec: bool,
}

/// The flags about hooks, for every role that runs them.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Hooks")]
pub struct HookArgs {
    /// Addresses that hooks may reach although they are denied by default: link-local, cloud metadata, those of the
    /// node
    #[arg(long, env = "INPLACE_HOOK_ALLOW", value_name = "CIDR,...", value_delimiter = ',')]
    hook_allow: Vec<Cidr>,
    /// Addresses that hooks may not reach, even if --hook-allow allows them: for example the nodes' network
    #[arg(long, env = "INPLACE_HOOK_DENY", value_name = "CIDR,...", value_delimiter = ',')]
    hook_deny: Vec<Cidr>,
    /// Whether hooks may run commands in the containers of their pod
    #[arg(
        long,
        env = "INPLACE_HOOK_EXEC",
        value_name = "BOOL",
        default_value_t = true,
        action = clap::ArgAction::Set
    )]
    hook_exec: bool,
    #[arg(skip)]
    own_machine: bool,
    /// Maximum number of measurements of hooks at the same time; more wait for a permit
    #[arg(
        long,
        env = "INPLACE_MAX_HOOKS",
        value_name = "COUNT",
        default_value_t = 32,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    max_hooks: u16,
}

impl HookArgs {
    /// The same flags for a user who runs a hook on the user's own machine: its addresses are not denied.
    #[must_use]
    pub fn at_own_machine(self) -> Self {
        Self { own_machine: true, ..self }
    }

    /// The settings with the clients of this process.
    pub fn settings(
        self,
        role: impl Into<String>,
        runtime: Option<Client>,
        server: Option<Server>,
    ) -> Settings {
        let policy = AddressPolicy::new(self.hook_allow).and_deny(self.hook_deny);
        Settings {
            role: role.into(),
            runtime,
            server,
            address_policy: if self.own_machine { policy.at_own_machine() } else { policy },
            exec: self.hook_exec,
            max_at_once: usize::from(self.max_hooks),
        }
    }
}
