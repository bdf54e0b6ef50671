//! `inplace top`: operations, downtime and failures by workload or node, from the statuses of pods. Reads only.

pub(super) mod tally;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use crate::cli::cluster::{ClusterArgs, Failed, label_selector, listed};
use crate::cli::exit::Exit;
use crate::cli::form::{Data, DataParser, HasName};
use crate::cli::output::{self, message};
use crate::cli::span::Seconds;
use crate::cli::top::tally::{By, Sum, sums};
use crate::process::clock;

/// Show operations, downtime and failures by workload or node
///
/// It sees the status of the last operation of each pod that exists. Earlier operations of a pod, and those of pods that
/// were deleted, are not in the API server: their metrics are (docs/observability.md).
#[derive(Debug, clap::Args)]
pub struct TopCommand {
    /// What the operations are summed by
    #[arg(value_name = "BY", value_enum, default_value_t)]
    by: By,
    /// Only operations that ended within this time, and those in progress
    #[arg(long, value_name = "TIME", default_value = "24h")]
    since: Seconds,
    /// Only pods with these labels
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = label_selector)]
    selector: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Form of the result
    #[arg(short, long, value_name = "FORM", value_parser = DataParser)]
    output: Option<Data>,
    #[command(flatten)]
    cluster: ClusterArgs,
}

impl HasName for Sum {
    fn full_name(&self) -> String {
        if self.namespace.is_some() { self.name.clone() } else { format!("node/{}", self.name) }
    }
}

impl TopCommand {
    /// Runs the command and returns its exit code.
    pub async fn run(self) -> Exit {
        run(self).await.unwrap_or_else(|failed| {
            message(&format!("inplace: {failed}"));
            failed.exit()
        })
    }
}

async fn run(args: TopCommand) -> Result<Exit, Failed> {
    let TopCommand { by, since, selector, all_namespaces, output, cluster } = args;
    let (client, namespace) = cluster.connect().await?;
    let api: Api<Pod> = if all_namespaces { Api::all(client) } else { Api::namespaced(client, &namespace) };
    let params = ListParams { label_selector: selector, ..ListParams::default() };
    let pods = listed("listing pods", &api, params).await?;
    let sums = sums(&pods, by, SignedDuration::from_secs(since.0.into()), clock::now());
    match output {
        Some(form) => form.print_list(&sums),
        None if sums.is_empty() => message(&format!("no pod has an operation that ended within {since}")),
        None => print(&sums, by, all_namespaces),
    }
    Ok(Exit::Done)
}

fn print(sums: &[Sum], by: By, has_namespace: bool) {
    let has_namespace = has_namespace && by == By::Workloads;
    let mut headings = Vec::new();
    headings.extend(has_namespace.then_some("NAMESPACE"));
    headings.push(if by == By::Nodes { "NODE" } else { "WORKLOAD" });
    headings.extend(["OPERATIONS", "RUNNING", "FAILED", "ROLLED-BACK", "REFUSED"]);
    headings.extend(["DOWN-MEDIAN", "DOWN-LONGEST", "LAST-FAILURE"]);
    let row = |sum: &Sum| {
        let ms = |ms: Option<i64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms}ms"));
        let mut row = Vec::new();
        row.extend(has_namespace.then(|| sum.namespace.clone().unwrap_or_default()));
        row.push(sum.name.clone());
        let counts = [sum.operations, sum.running, sum.failed, sum.rolled_back, sum.refused];
        row.extend(counts.map(|count| count.to_string()));
        row.extend([ms(sum.median_downtime_ms), ms(sum.longest_downtime_ms)]);
        row.push(sum.last_failure.clone().unwrap_or_else(|| "-".to_owned()));
        row
    };
    output::table(&headings, &sums.iter().map(row).collect::<Vec<_>>());
}
