//! `node run` and `node rm`: pods on a node without a kubelet.

use std::path::PathBuf;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::node::{Failed, PodName};
use crate::cli::output::Format;
use crate::node::settings::NodeArgs;

/// Arguments of `node run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The manifest; `-` for standard input
    #[arg(short, long, value_name = "POD.YAML")]
    file: PathBuf,
}

/// Arguments of `node rm`.
#[derive(Debug, Args)]
pub(super) struct Rm {
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: PodName,
}

pub(super) async fn run(_settings: &NodeArgs, _format: Format, args: Run) -> Result<Exit, Failed> {
    Err(Failed::Other(format!("{}", args.file.display())))
}

pub(super) async fn rm(_settings: &NodeArgs, _format: Format, args: Rm) -> Result<Exit, Failed> {
    Err(Failed::Other(args.pod.name))
}
