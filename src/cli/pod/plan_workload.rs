//! `plan` of a workload: prints field by field what a new manifest does to the pods of a `GameDeployment` or a
//! `GameStatefulSet`. Reads the workload and a file; touches nothing.

use std::io::Read as _;
use std::path::Path;

use kube::core::DynamicObject;
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::workload_manifest;
use crate::cli::cluster::{ClusterArgs, Failed, bounded};
use crate::cli::exit::Exit;
use crate::cli::form::{Data, HasName};
use crate::cli::in_place_rollout::names::{WorkloadName, resource};
use crate::cli::output::line;
use crate::cluster::server::Server;
use crate::workload::check;
use crate::workload::planned::{Effect, PlannedField, planned};
use crate::workload::spec::WorkloadSpec;

/// The largest file that is read, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// The result for programs.
#[derive(Serialize)]
struct Plan {
    workload: String,
    fields: Vec<PlannedField>,
}

impl HasName for Plan {
    fn full_name(&self) -> String {
        self.workload.clone()
    }
}

/// Prints the plan. The exit code is [`Exit::Refused`] if a field is refused or needs new pods.
pub(super) async fn run(
    name: &WorkloadName,
    file: &Path,
    cluster: &ClusterArgs,
    output: Option<Data>,
) -> Result<Exit, Failed> {
    let kind = name.kind.name;
    if !matches!(kind, "GameDeployment" | "GameStatefulSet") {
        return Err(Failed::Usage(format!(
            "`plan` with -f accepts gamedeployment/NAME and gamestatefulset/NAME, not {name}"
        )));
    }
    let shown = file.display();
    let text = read(file).map_err(|error| Failed::Refused(format!("{shown} cannot be read: {error}")))?;
    let new = workload_manifest::find(&text, kind, &name.name)
        .map_err(|error| Failed::Refused(format!("{shown}: {error}")))?;
    let (client, namespace) = cluster.connect().await?;
    let resizes = Server::new(client.clone()).resizes().await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource(name.kind));
    let doing = format!("reading {name} in namespace {namespace}");
    let old = bounded(&doing, api.get(&name.name)).await?;
    let fields = if kind == "GameDeployment" {
        compared::<GameDeployment>(old, new, check::deployment, WorkloadSpec::of_deployment, resizes)
    } else {
        compared::<GameStatefulSet>(old, new, check::stateful_set, WorkloadSpec::of_stateful_set, resizes)
    };
    let fields = fields.map_err(|error| Failed::Refused(format!("{shown}: {error}")))?;
    let hard = |one: &PlannedField| matches!(one.effect, Effect::Refused | Effect::NewPods);
    let exit = if fields.iter().any(hard) { Exit::Refused } else { Exit::Done };
    if let Some(form) = output {
        form.print(&Plan { workload: name.to_string(), fields });
        return Ok(exit);
    }
    for PlannedField { field, effect, message } in &fields {
        line(&format!("{field}: {}: {message}", label(*effect)));
    }
    if fields.is_empty() {
        line(&format!("{name}: the pods do not change"));
    }
    line("nothing was touched");
    Ok(exit)
}

fn label(effect: Effect) -> &'static str {
    match effect {
        Effect::InPlace => "in place",
        Effect::RestartOfContainer => "in place, restarts a container",
        Effect::NewPods => "new pods",
        Effect::Scale => "scales",
        Effect::WaitsForDeletion => "waits for a deletion",
        Effect::Refused => "refused",
    }
}

fn read(file: &Path) -> std::io::Result<String> {
    if file == Path::new("-") {
        return std::io::read_to_string(std::io::stdin().lock().take(MAX_BYTES));
    }
    std::io::read_to_string(std::fs::File::open(file)?.take(MAX_BYTES))
}

/// The planned fields of the change from the stored object to the manifest.
fn compared<K: DeserializeOwned + Resource>(
    old: DynamicObject,
    new: Value,
    check: fn(Option<&K>, &K, bool) -> Vec<String>,
    spec: fn(&K) -> WorkloadSpec,
    resizes: bool,
) -> Result<Vec<PlannedField>, String> {
    let old: K = old.try_parse().map_err(|error| format!("the stored object cannot be read: {error}"))?;
    let new: K =
        serde_json::from_value(new).map_err(|error| format!("the manifest is not valid: {error}"))?;
    let mut problems = check(Some(&old), &new, resizes);
    let existing = check(None, &old, resizes);
    // The template is shown field by field.
    problems.retain(|problem| !existing.contains(problem) && !problem.starts_with("spec.template: spec."));
    Ok(planned(&spec(&old), &spec(&new), &problems, resizes))
}
