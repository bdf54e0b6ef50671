//! What hooks may do in this process, and with what.

use crate::cluster::server::Server;
use crate::cri::client::Client;
use crate::hook::reach::{Cidr, Reach};

/// What an engine works with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who measures, for messages: `the agent of node n1`, `the controller`.
    pub role: String,
    /// For `exec`; `None` away from the node.
    pub runtime: Option<Client>,
    /// For `kubernetes`; `None` without a cluster.
    pub server: Option<Server>,
    /// Which addresses may be talked to.
    pub reach: Reach,
    /// Measurements at once; more wait for their turn. At least 1.
    pub max_at_once: usize,
}

/// What people decide about hooks; for every role that runs them.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Hooks")]
pub struct HookArgs {
    /// Addresses that hooks may reach though they are denied by default: link-local, cloud metadata, loopback
    #[arg(long, env = "INPLACE_HOOK_ALLOW", value_name = "CIDR,...", value_delimiter = ',')]
    hook_allow: Vec<Cidr>,
    /// Measurements of hooks at once; more wait for their turn
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
    /// With more addresses that may be reached.
    #[must_use]
    pub fn and_allow(mut self, more: &[Cidr]) -> Self {
        self.hook_allow.extend_from_slice(more);
        self
    }

    /// With what is at hand in this process.
    pub fn settings(
        self,
        role: impl Into<String>,
        runtime: Option<Client>,
        server: Option<Server>,
    ) -> Settings {
        Settings {
            role: role.into(),
            runtime,
            server,
            reach: Reach::new(self.hook_allow),
            max_at_once: usize::from(self.max_hooks),
        }
    }
}
