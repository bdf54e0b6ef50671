//! Measures the cost: the API server's request counters, and the kernel's figures of a process.

#![expect(clippy::print_stderr, reason = "the figures are for whoever wants them")]

use std::{collections::BTreeMap, fs, time::Duration};

use kube::Client;
use tokio::time::{Instant, sleep};

use super::nodes::Nodes;
use crate::support::process::Process;

/// Requests by verb and resource, as in `PATCH pods/status`.
pub(super) type Calls = BTreeMap<String, f64>;

/// The resources that the controller may request. All others are requested by the API server itself.
const RESOURCES: [&str; 8] = [
    "pods",
    "events",
    "gamedeployments",
    "inplacerollouts",
    "controllerrevisions",
    "hookruns",
    "hooktemplates",
    "nodes",
];

/// The figures at one moment.
pub(super) struct Figures {
    at: Instant,
    cpu: Duration,
    calls: Calls,
    /// Peak resident memory so far, in mebibytes.
    pub(super) rss: f64,
}

/// The difference between two moments.
pub(super) struct Span {
    took: Duration,
    cpu: Duration,
    calls: Calls,
    rss: f64,
}

impl Figures {
    /// The figures up to now, without the requests of the simulated nodes.
    pub(super) async fn now(client: &Client, process: Process, nodes: &Nodes) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let mut calls = requests(&client.request_text(request).await.unwrap());
        for (call, count) in nodes.calls() {
            *calls.entry(call).or_default() -= count;
        }
        Self { at: Instant::now(), cpu: process.cpu(), calls, rss: process.peak() }
    }

    pub(super) fn until(&self, later: &Self) -> Span {
        let more = |(call, count): (&String, &f64)| {
            let more = count - self.calls.get(call).unwrap_or(&0.0);
            (more > 0.0).then(|| (call.clone(), more))
        };
        Span {
            took: later.at - self.at,
            cpu: later.cpu.saturating_sub(self.cpu),
            calls: later.calls.iter().filter_map(more).collect(),
            rss: later.rss,
        }
    }
}

impl Span {
    /// How long it took.
    pub(super) fn seconds(&self) -> f64 {
        self.took.as_secs_f64()
    }

    /// All calls, divided by the number of pods.
    pub(super) fn calls_per(&self, pods: u32) -> f64 {
        self.calls.values().sum::<f64>() / f64::from(pods)
    }

    /// The calls that write, divided by the number of pods.
    pub(super) fn writes_per(&self, pods: u32) -> f64 {
        let reads = ["GET ", "LIST "];
        let writes = self.calls.iter().filter(|(call, _)| !reads.iter().any(|read| call.starts_with(read)));
        writes.map(|(_, count)| count).sum::<f64>() / f64::from(pods)
    }

    pub(super) fn print(&self, what: &str, pods: u32) {
        eprintln!("| {pods} pods {what} | |\n|---|---|");
        eprintln!("| load of the machine at the end | {} |", load());
        eprintln!("| time | {:.1} s |", self.took.as_secs_f64());
        eprintln!("| controller: processor | {:.1} s |", self.cpu.as_secs_f64());
        eprintln!("| controller: memory, at most | {:.1} MiB |", self.rss);
        eprintln!("| calls per pod | {:.2} |", self.calls_per(pods));
        for (call, count) in &self.calls {
            eprintln!("| {call} | {count} |");
        }
    }
}

/// The load of the whole machine: the averages of the last minute, of five and of fifteen.
pub(super) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Time limit for a process to rest after what was awaited before.
const REST: Duration = Duration::from_secs(600);

/// Waits until the process has been idle for half a second; returns its processor time.
pub(super) async fn at_rest(process: Process) -> Duration {
    let end = Instant::now() + REST;
    loop {
        let before = process.cpu();
        sleep(Duration::from_millis(500)).await;
        if process.cpu() == before {
            return before;
        }
        assert!(Instant::now() < end, "{process:?} does not rest");
    }
}

/// The API server's counts of requests, without watches.
fn requests(metrics: &str) -> Calls {
    let mut calls = Calls::new();
    for line in metrics.lines().filter(|line| line.starts_with("apiserver_request_total{")) {
        let label =
            |name: &str| line.split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
        let (verb, resource) = (label("verb").unwrap(), label("resource").unwrap());
        if verb == "WATCH" || !RESOURCES.contains(&resource) {
            continue;
        }
        let part = label("subresource").filter(|part| !part.is_empty());
        let part = part.map(|part| format!("/{part}")).unwrap_or_default();
        let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
        *calls.entry(format!("{verb} {resource}{part}")).or_default() += count;
    }
    calls
}
