//! The settings that all commands on a node share. Does not connect to the runtime.

use std::path::PathBuf;

use crate::cri::client::{Client, Observer};
use crate::cri::endpoint::{Endpoint, NoEndpoint};

/// The runtime's socket, the state folder and the disk reserve.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Node")]
pub struct NodeArgs {
    /// Socket of the container runtime [default: the first of the well-known sockets that exists]
    #[arg(long, env = "INPLACE_RUNTIME_ENDPOINT", global = true, value_name = "unix:///PATH")]
    pub runtime_endpoint: Option<String>,
    /// Folder for the journal, results, and the pods of `node run`
    #[arg(
        long,
        env = "INPLACE_STATE_DIR",
        default_value = "/var/lib/inplace",
        global = true,
        value_name = "DIR"
    )]
    pub state_dir: PathBuf,
    /// MiB that must stay free on the image disk in addition to the space for the pulled image
    #[arg(long, env = "INPLACE_IMAGE_RESERVE", default_value_t = 256, global = true, value_name = "MIB")]
    pub image_reserve: u64,
}

impl NodeArgs {
    /// The runtime's socket.
    ///
    /// # Errors
    /// When none is given and none of the known sockets exists.
    pub fn endpoint(&self) -> Result<Endpoint, NoEndpoint> {
        Endpoint::find(self.runtime_endpoint.as_deref())
    }

    /// A client of the runtime's socket.
    ///
    /// # Errors
    /// See [`NodeArgs::endpoint`].
    pub fn client(&self, observe: Option<Observer>) -> Result<Client, NoEndpoint> {
        Ok(Client::new(&self.endpoint()?, observe))
    }
}
