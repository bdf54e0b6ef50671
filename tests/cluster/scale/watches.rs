//! Measures what watches cost the API server: its memory after a garbage collection, and its processor time while
//! nothing happens and for a write.

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;

use super::figures::load;
use crate::support::process::Process;

/// How long nothing is written.
const IDLE: Duration = Duration::from_secs(10);
/// Writes to pods of different nodes, one after the other.
const WRITES: usize = 1000;

/// The cost of an API server with the watches that it has at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Mebibytes that are in use after a garbage collection: heap and stacks.
    pub(super) used: f64,
    /// Mebibytes that are resident.
    resident: f64,
    goroutines: f64,
    /// Milliseconds of processor time in a second without writes.
    idle: f64,
    /// Milliseconds of processor time for a write.
    pub(super) write: f64,
}

impl Cost {
    /// Measures it; writes to pods with the label `app=WORKLOAD`.
    pub(super) async fn of(client: &Client, process: Process, workload: &str) -> Self {
        let api: Api<Pod> = Api::default_namespaced(client.clone());
        let selection = ListParams::default().labels(&format!("app={workload}"));
        let pods = api.list_metadata(&selection).await.unwrap().items;
        let before = process.cpu();
        for (number, pod) in pods.iter().cycle().take(WRITES).enumerate() {
            let patch = Patch::Merge(json!({"metadata": {"annotations": {"noise": number.to_string()}}}));
            let name = pod.metadata.name.as_deref().unwrap();
            api.patch_metadata(name, &PatchParams::default(), &patch).await.unwrap();
        }
        let write = process.cpu().saturating_sub(before).as_secs_f64() * 1000.0
            / f64::from(u32::try_from(WRITES).unwrap());
        drop(pods);
        text(client, "/debug/pprof/heap?gc=1&debug=1").await;
        let before = process.cpu();
        sleep(IDLE).await;
        let idle = process.cpu().saturating_sub(before).as_secs_f64() * 1000.0 / IDLE.as_secs_f64();
        text(client, "/debug/pprof/heap?gc=1&debug=1").await;
        let metrics = text(client, "/metrics").await;
        let metric = |name: &str| {
            let found = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.unwrap().parse::<f64>().unwrap()
        };
        let bytes = metric("go_memstats_heap_alloc_bytes") + metric("go_memstats_stack_inuse_bytes");
        Self {
            used: bytes / f64::from(1 << 20),
            resident: process.resident(),
            goroutines: metric("go_goroutines"),
            idle,
            write,
        }
    }
}

/// Prints a column for each cost.
pub(super) fn print(costs: &[(String, Cost)]) {
    type Row = (&'static str, fn(&Cost) -> f64);
    let rows: [Row; 5] = [
        ("memory in use after a collection, MiB", |cost| cost.used),
        ("resident memory, MiB", |cost| cost.resident),
        ("goroutines", |cost| cost.goroutines),
        ("processor time without writes, ms per s", |cost| cost.idle),
        ("processor time of a write of a pod, ms", |cost| cost.write),
    ];
    let line = |first: &str, cells: &mut dyn Iterator<Item = String>| {
        eprintln!("| {first} | {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    line("kube-apiserver", &mut costs.iter().map(|(what, _)| what.clone()));
    line("---", &mut costs.iter().map(|_| "---".to_owned()));
    for (what, figure) in rows {
        line(what, &mut costs.iter().map(|(_, cost)| format!("{:.2}", figure(cost))));
    }
    eprintln!("load of the machine: {}", load());
}

async fn text(client: &Client, path: &str) -> String {
    client.request_text(http::Request::get(path).body(Vec::new()).unwrap()).await.unwrap()
}
