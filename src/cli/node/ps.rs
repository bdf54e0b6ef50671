//! `node ps`: lists the pods, the current instance of each container, and the last operation. Reads only.

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use crate::api::pod_ref::PodRef;
use crate::api::status::{ContainerInstance, ContainerReport, Status, millis};
use crate::cli::exit::Exit;
use crate::cli::node::{Failed, Format, PodName, open_node};
use crate::cli::output::{self, age};
use crate::cri::convert;
use crate::cri::identity::{Asked, Origin};
use crate::node::Node;
use crate::node::settings::NodeArgs;
use crate::process::clock;

/// Arguments of `node ps`.
#[derive(Debug, Args)]
pub(super) struct Ps {
    /// Only this pod
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pod: Option<PodName>,
}

/// JSON output for one pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodView {
    pod: PodRef,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    ready: bool,
    containers: Vec<ContainerView>,
    /// The open request, or the last one.
    last_operation: Option<Status>,
    /// Why the journal of this pod cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    journal_error: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerView {
    name: String,
    #[serde(flatten)]
    instance: ContainerInstance,
    state: String,
    created_at: String,
    started_at: Option<String>,
}

pub(super) async fn run(settings: &NodeArgs, format: Format, args: &Ps) -> Result<Exit, Failed> {
    let node = open_node(settings)?;
    let mut views = Vec::new();
    for pod in convert::list_pods(&node.client).await? {
        let wanted = |only: &PodName| only.namespace == pod.namespace && only.name == pod.name;
        if args.pod.as_ref().is_none_or(wanted) {
            views.extend(view(&node, pod).await?);
        }
    }
    match format {
        Format::Json => output::json(&views),
        Format::Text => print(&views, clock::now()),
    }
    Ok(Exit::Done)
}

async fn view(node: &Node, pod: PodRef) -> Result<Option<PodView>, Failed> {
    let asked = Asked { pod: pod.clone(), origin: Origin::Unknown };
    let snapshot = convert::observe(&node.client, &asked, None).await?;
    let Some(sandbox) = &snapshot.sandbox else { return Ok(None) };
    let (last_operation, journal_error) = match node.journal.load(&pod) {
        Ok(entry) => (entry.open.as_ref().map(crate::operation::report::status).or(entry.last), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let present =
        snapshot.names().into_iter().filter_map(|name| snapshot.instances(name).into_iter().next_back());
    let containers = present
        .map(|instance| ContainerView {
            name: instance.name.clone(),
            instance: instance.reported(),
            state: instance.state.to_string(),
            created_at: millis::text(instance.created_at),
            started_at: instance.started_at.map(millis::text),
        })
        .collect();
    let (sandbox_id, ready) = (sandbox.id.clone(), sandbox.ready);
    Ok(Some(PodView { pod, sandbox_id, ready, containers, last_operation, journal_error }))
}

fn print(views: &[PodView], now: Timestamp) {
    let mut rows = Vec::new();
    for view in views {
        for container in &view.containers {
            let (last, downtime) = last_of(view, &container.name, now);
            let age = container.created_at.parse().map_or_else(|_| "-".to_owned(), |at| age(at, now));
            let (attempt, image) = (container.instance.attempt.to_string(), container.instance.image.clone());
            let (pod, name, state) = (view.pod.to_string(), container.name.clone(), container.state.clone());
            rows.push(vec![pod, name, attempt, state, image, age, last, downtime]);
        }
    }
    let headings = ["POD", "CONTAINER", "ATTEMPT", "STATE", "IMAGE", "AGE", "LAST OPERATION", "DOWNTIME"];
    output::table(&headings, &rows);
}

/// The last operation on a container, and the downtime.
fn last_of(view: &PodView, name: &str, now: Timestamp) -> (String, String) {
    if view.journal_error.is_some() {
        return ("journal unreadable".to_owned(), "-".to_owned());
    }
    let Some(status) = &view.last_operation else { return ("-".to_owned(), "-".to_owned()) };
    let Some(report) = status.containers.iter().find(|report| report.name == name) else {
        return ("-".to_owned(), "-".to_owned());
    };
    let ago = status.finished_at.map_or_else(String::new, |at| format!(" {} ago", age(at, now)));
    (format!("{} {}{ago}", report.action, status.phase), downtime(report))
}

fn downtime(report: &ContainerReport) -> String {
    report.downtime_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"))
}
