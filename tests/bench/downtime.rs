//! Part H: what a client notices while a server is restarted and updated in different ways. The servers and their pods are
//! those of `docs/zero-downtime-servers.md`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use inplace::cri::client::Client as Runtime;
use inplace::cri::endpoint::Endpoint;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Scale;
use crate::agent::Agent;
use crate::beside;
use crate::blocks::{self, Block};
use crate::client::{Client, Connections, Requests};
use crate::cluster::{Cluster, block_on};
use crate::endpoints::Target;
use crate::plot::downtime::{Figure, Figures};
use crate::report::{Report, ms};
use crate::support::lab::run;
use crate::ways::{Group, Server, Way};

/// The page with the manifests.
const PAGE: &str = "docs/zero-downtime-servers.md";
/// The headings of the servers that are measured, and the images in their manifests.
const SERVERS: [(&str, &str); 2] = [("nginx", "nginx:1.22.1"), ("HAProxy", "haproxy:2.6.12")];
/// Budget of the longest time without an answer, in milliseconds, with `StartFirst`.
const GAP: f64 = 50.0;
/// How long a client asks before an operation.
const BEFORE: Duration = Duration::from_secs(1);
/// How long it asks at least after it.
const AFTER: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(10);
const COLUMNS: [&str; 8] =
    ["", "requests", "failed", "sent again", "gap ms", "p99 ms", "gap ms, quiet", "p99 ms, quiet"];

/// The ways that the plot has.
const PLOTTED: [Way; 5] =
    [Way::StartFirstRestart, Way::StartFirstSwap, Way::StopFirstSwap, Way::KubeletSwap, Way::Recreate];

/// All operations in one way on one server through one target.
#[derive(Debug)]
struct Row {
    way: Way,
    operations: usize,
    /// For each of [`Connections::ALL`].
    requests: [Requests; 2],
}

/// Runs the part on a private Kubernetes. Returns the figures of the plot.
pub(crate) fn downtime(scale: &Scale, report: &mut Report) -> Figures {
    report.title("H. Requests to nginx and HAProxy during restarts and updates");
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let versions = push(&cluster);
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    let runtime = block_on(async { Runtime::new(&endpoint, None) });
    let servers = SERVERS.map(|(heading, image)| server(&cluster, heading, image));
    let mut plotted = Vec::new();
    for target in [Target::Pod, Target::TwoEndpoints] {
        for ((heading, _), server) in SERVERS.iter().zip(&servers) {
            let rows = rows(&cluster, &runtime, server, target, scale);
            let what = match target {
                Target::Pod => "on the pod's address",
                Target::TwoEndpoints => "through two endpoints",
            };
            record(report, &format!("{heading} {}", versions[server.name]), what, &rows);
            if target == Target::Pod {
                plotted.extend(rows);
            }
        }
    }
    let [kubernetes, containerd] = beside::versions(&cluster, &runtime);
    let names = SERVERS.map(|(heading, _)| format!("{heading} {}", versions[&heading.to_lowercase()]));
    figures([kubernetes, containerd, names.join(" and ")], &plotted)
}

/// The figures of the plot: a connection per request, both servers together.
fn figures([kubernetes, containerd, servers]: [String; 3], rows: &[Row]) -> Figures {
    let of = |way: Way| rows.iter().filter(move |row| row.way == way);
    let first = |row: &Row| row.requests[Connections::PerRequest as usize].clone();
    let figure = |way: Way| Figure {
        way: way.name().to_owned(),
        starts_first: way.starts_first(),
        operations: of(way).map(|row| row.operations).sum(),
        requests: of(way).map(|row| first(row).count).sum(),
        failed: of(way).map(|row| first(row).failed).sum(),
        gap: of(way).map(|row| millis(first(row).during.gap).round()).fold(0.0, f64::max),
    };
    // The pace is that of undisturbed requests.
    let all = || rows.iter().filter(|row| row.way.starts_first()).map(first);
    let seconds: f64 = all().map(|requests| requests.lasted.as_secs_f64()).sum();
    let count: f64 = all().map(|requests| number(requests.count)).sum();
    let rate = (count / seconds / 100.0).round() * 100.0;
    Figures { kubernetes, containerd, servers, rate, ways: PLOTTED.map(figure).into() }
}

/// A number of requests.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn number(count: usize) -> f64 {
    count as f64
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Creates the images and pushes them. Returns the versions of the servers.
fn push(cluster: &Cluster) -> BTreeMap<String, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/servers.sh");
    let folder = PathBuf::from(run(Command::new("bash").arg(script)).trim());
    for image in lines(&folder.join("digests")).into_keys() {
        cluster.lab().push(&folder.join(format!("{}.tar", image.replace(':', "-"))), &image);
    }
    lines(&folder.join("versions"))
}

/// The lines of a file as pairs of words.
fn lines(file: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(file).unwrap();
    let pairs = text.lines().map(|line| line.split_once(' ').unwrap());
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Applies the manifests below a heading, except that of the pod, and returns the server with that pod's spec. Afterwards
/// the node has both images, because a pull is not what is measured.
fn server(cluster: &Cluster, heading: &str, image: &'static str) -> Server {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let parsed = |block: Block| serde_saphyr::from_str::<Value>(&block.lines.join("\n")).unwrap();
    let blocks = blocks::blocks(&text).into_iter().filter(|block| block.heading == heading);
    let objects: Vec<_> = blocks.map(parsed).collect();
    let [config, pod] = objects.as_slice() else { panic!("{PAGE}, {heading}: not two manifests") };
    cluster.apply(&config.to_string());
    let name = image.split(':').next().unwrap();
    let mut server = Server { name, spec: pod["spec"].clone() };
    assert_eq!(server.spec["containers"][0]["image"], json!(image));
    for tag in ["v2", "v1"] {
        server.spec["containers"][0]["image"] = json!(cluster.image(&format!("{name}:{tag}")));
        Group::create(cluster, &server, Target::Pod).await_ready();
    }
    server
}

/// Measures every way; through two endpoints, where most of them differ little, those of the plot with fewer operations.
fn rows(cluster: &Cluster, runtime: &Runtime, server: &Server, target: Target, scale: &Scale) -> Vec<Row> {
    let operations = if target == Target::Pod { scale.operations } else { scale.operations.div_ceil(2) };
    let create = || -> Vec<_> {
        let groups: Vec<_> = (0..operations).map(|_| Group::create(cluster, server, target)).collect();
        groups.iter().for_each(Group::await_ready);
        groups
    };
    let mut groups = create();
    let row = |way: Way| {
        if way.needs_new_pods() {
            groups.clear();
            groups = create();
        }
        let mut requests: [Requests; 2] = Default::default();
        for group in &mut groups {
            measure(group, way, runtime, scale.requests / scale.operations, &mut requests);
        }
        for Requests { versions, .. } in requests.iter().filter(|_| way.swaps()) {
            assert_eq!(versions.len(), 2, "{way:?}: {versions:?}");
        }
        Row { way, operations, requests }
    };
    let ways = if target == Target::Pod { &Way::ALL[..] } else { &PLOTTED };
    ways.iter().copied().map(row).collect()
}

/// Carries out one operation while a client asks, and adds the client's requests.
fn measure(group: &mut Group<'_>, way: Way, runtime: &Runtime, requests: usize, figures: &mut [Requests; 2]) {
    let client = Client::start(&group.endpoints.addresses);
    thread::sleep(BEFORE);
    let begin = Instant::now();
    group.operate(way, runtime);
    let end = Instant::now();
    while client.sent() < requests || end.elapsed() < AFTER {
        thread::sleep(POLL);
    }
    client.stop(begin, end, figures);
}

/// Prints and records the rows, and the budgets of those that start first.
fn record(report: &mut Report, server: &str, what: &str, rows: &[Row]) {
    for (index, connections) in Connections::ALL.into_iter().enumerate() {
        let title = format!("{server}, {what}, {connections}");
        let operations = rows.first().map_or(0, |row| row.operations);
        report.title(&format!("   {title}; figures of {operations} operations each"));
        let values: Vec<_> = rows.iter().map(|row| (row.way.name(), cells(&row.requests[index]))).collect();
        report.values(&title, &COLUMNS, &values);
        for row in rows {
            let requests = &row.requests[index];
            if !requests.errors.is_empty() {
                println!("    {}: {:?}", row.way.name(), requests.errors);
            }
            if row.way.starts_first() {
                let budget = |figure: &str| format!("H {title}, {}: {figure}", row.way.name());
                report.budget(&budget("failed"), number(requests.failed), 0.0);
                report.budget(&budget("gap ms"), millis(requests.during.gap), GAP);
            }
        }
    }
}

fn cells(requests: &Requests) -> Vec<String> {
    let counts = [requests.count, requests.failed, requests.again].map(|count| count.to_string());
    let times = [&requests.during, &requests.quiet];
    let times = times.into_iter().flat_map(|times| [ms(millis(times.gap)), ms(times.took.p99())]);
    counts.into_iter().chain(times).collect()
}
