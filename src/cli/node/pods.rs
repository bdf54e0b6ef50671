//! `node run` and `node rm`: start and remove pods on a node without a kubelet.

use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::api::manifest::Manifest;
use crate::cli::exit::Exit;
use crate::cli::node::{Failed, Format, PodName, lock, open_node};
use crate::cli::output;
use crate::cli::span::Seconds;
use crate::cri::convert;
use crate::node::launch::{self, Dirs, Started};
use crate::node::settings::NodeArgs;

/// Arguments of `node run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    /// The manifest; `-` for standard input
    #[arg(short, long, value_name = "POD.YAML")]
    file: PathBuf,
    /// Timeout of each image pull
    #[arg(long, value_name = "TIME", default_value_t = Seconds(600))]
    pull_timeout: Seconds,
}

/// Arguments of `node rm`.
#[derive(Debug, Args)]
pub(super) struct Rm {
    /// The pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: PodName,
}

/// JSON output of `node run`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StartedView<'a> {
    pod: &'a crate::api::pod_ref::PodRef,
    #[serde(rename = "sandboxID")]
    sandbox_id: &'a str,
    ip: &'a str,
}

/// JSON output of `node rm`.
#[derive(Serialize)]
struct RemovedView {
    namespace: String,
    name: String,
    /// False: the pod did not exist.
    removed: bool,
}

pub(super) async fn run(settings: &NodeArgs, format: Format, args: Run) -> Result<Exit, Failed> {
    let Run { file, pull_timeout } = args;
    let text = read(&file).map_err(|error| Failed::Other(format!("{}: {error}", file.display())))?;
    let manifest =
        Manifest::parse(&text).map_err(|error| Failed::Manifest(format!("{}: {error}", file.display())))?;
    let dirs = dirs(settings)?;
    let _lock = lock(settings)?;
    let client = settings.client(None)?;
    let started = launch::run(&client, &manifest, &dirs, Duration::from_secs(pull_timeout.0.into())).await?;
    match format {
        Format::Json => {
            let Started { pod, sandbox_id, ip, .. } = &started;
            output::json(&StartedView { pod, sandbox_id, ip });
        }
        Format::Text => {
            output::line(&format!(
                "pod {} runs, uid {}, address {}",
                started.pod, started.pod.uid, started.ip
            ));
        }
    }
    for container in &started.containers {
        if let Some(code) = container.exited {
            output::message(&format!("container {} has already exited with code {code}", container.name));
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn rm(settings: &NodeArgs, format: Format, args: Rm) -> Result<Exit, Failed> {
    let PodName { namespace, name } = args.pod;
    let dirs = dirs(settings)?;
    let _lock = lock(settings)?;
    let node = open_node(settings)?;
    let pods = convert::find_pod(&node.client, &namespace, &name).await?;
    // A pod is not removed during an operation on it.
    let _held = pods.iter().map(|pod| node.journal.hold(pod)).collect::<Result<Vec<_>, _>>()?;
    let removed = launch::rm(&node.client, &namespace, &name, &dirs).await?;
    for pod in pods {
        node.journal.forget(&pod)?;
    }
    match format {
        Format::Json => output::json(&RemovedView { namespace, name, removed: !removed.nothing() }),
        Format::Text => {
            let text = if removed.nothing() { "did not exist" } else { "was removed" };
            output::line(&format!("pod {namespace}/{name} {text}"));
        }
    }
    Ok(Exit::Done)
}

fn dirs(settings: &NodeArgs) -> Result<Dirs, Failed> {
    let absolute = std::path::absolute(&settings.state_dir)
        .map_err(|error| Failed::Other(format!("--state-dir {}: {error}", settings.state_dir.display())))?;
    Dirs::new(absolute).ok_or_else(|| Failed::Other("--state-dir must be a UTF-8 path".to_owned()))
}

fn read(file: &PathBuf) -> std::io::Result<String> {
    if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().lock().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
}
