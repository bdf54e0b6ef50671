//! Part E: the cost of an idle agent.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use inplace::api::manifest::Manifest;
use inplace::api::status::{Phase, Status};
use inplace::node::launch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::Scale;
use crate::report::{Report, ms};
use crate::support::process::Process;
use crate::test_node::{TestNode, manifest};

/// Budget: mebibytes of resident memory.
const RSS: f64 = 15.0;
/// Budget: percent of a core.
const CPU: f64 = 0.2;
/// Time limit for creating the pods, and for restarting them.
pub(crate) const WAIT_LIMIT: Duration = Duration::from_secs(600);

/// Measures the agent with many pods: just after its start, and after one request to each pod.
pub(crate) async fn idle(test_node: &TestNode, scale: &Scale, report: &mut Report) {
    let pods = scale.pods;
    report.title(&format!("E. The agent at rest, {pods} pods"));
    let began = Instant::now();
    timeout(WAIT_LIMIT, make(test_node, pods)).await.expect("the pods take too long");
    let making = began.elapsed();
    let folder = test_node.lab.dir.join("pods");
    fs::create_dir(&folder).unwrap();
    write(&folder, pods, "");
    let mut command = Command::new(&scale.agent);
    command.args(["agent", "--standalone", "--listen", "127.0.0.1:0", "--pods-dir"]).arg(&folder);
    command.arg("--state-dir").arg(test_node.lab.dir.join("agent"));
    command.arg("--runtime-endpoint").arg(&test_node.lab.endpoint);
    let agent = Agent::start(command, &test_node.lab.dir.join("agent.log"));
    let fresh = agent.rest(scale).await;
    write(&folder, pods, ", annotations: {inplace.dev/request: restart app}");
    let began = Instant::now();
    timeout(WAIT_LIMIT, served(&test_node.lab.dir.join("agent/status"), pods))
        .await
        .expect("restarts take too long");
    let serving = began.elapsed();
    let worked = agent.rest(scale).await;
    record("E", report, scale, [making, serving], [&fresh, &worked]);
}

/// Reports the figures: the times of creating and of restarting all pods, and the costs before and after the
/// restarts.
pub(crate) fn record(
    part: &str,
    report: &mut Report,
    scale: &Scale,
    [making, serving]: [Duration; 2],
    [fresh, worked]: [&Cost; 2],
) {
    let percent = |value: f64| format!("{value:.3}");
    report.values(
        &format!("idle {part}"),
        &["", "value"],
        &[
            ("binary", vec![scale.agent.display().to_string()]),
            ("pods made in, s", vec![ms(making.as_secs_f64())]),
            ("all restarted in, s", vec![ms(serving.as_secs_f64())]),
            ("just started: RSS, MiB", vec![ms(fresh.rss)]),
            ("just started: private and dirty, MiB", vec![ms(fresh.dirty)]),
            ("just started: % of a core", vec![percent(fresh.cpu)]),
            ("after all restarts: RSS, MiB", vec![ms(worked.rss)]),
            ("after all restarts: private and dirty, MiB", vec![ms(worked.dirty)]),
            ("after all restarts: % of a core", vec![percent(worked.cpu)]),
            ("after all restarts: highest RSS, MiB", vec![ms(worked.peak)]),
        ],
    );
    report.budget(&format!("{part} agent at rest: RSS, MiB"), fresh.rss, RSS);
    report.budget(&format!("{part} agent at rest: % of a core"), fresh.cpu, CPU);
    report.budget(&format!("{part} agent at rest after work: RSS, MiB"), worked.rss, RSS);
    report.budget(&format!("{part} agent at rest after work: % of a core"), worked.cpu, CPU);
}

fn name(number: usize) -> String {
    format!("idle-{number}")
}

/// The manifest of the lightest pod: one waiting process in the node's network.
fn light(number: usize, metadata: &str) -> String {
    manifest(&name(number), "localhost/pause:1", metadata) + "  hostNetwork: true\n"
}

/// Creates the pods, four at a time.
async fn make(test_node: &TestNode, pods: usize) {
    let mut tasks = JoinSet::new();
    for number in 0..pods {
        if number >= 4 {
            tasks.join_next().await.unwrap().unwrap();
        }
        let (client, dirs) = (test_node.client.clone(), test_node.dirs.clone());
        let pod = Manifest::parse(&light(number, "")).unwrap();
        tasks.spawn(async move {
            Box::pin(launch::run(&client, &pod, &dirs, Duration::from_secs(60))).await.unwrap();
        });
    }
    while let Some(made) = tasks.join_next().await {
        made.unwrap();
    }
}

/// Writes all manifests, each by an atomic rename.
fn write(folder: &Path, pods: usize, metadata: &str) {
    for number in 0..pods {
        let fresh = folder.join(".new");
        fs::write(&fresh, light(number, metadata)).unwrap();
        fs::rename(&fresh, folder.join(format!("{}.yaml", name(number)))).unwrap();
    }
}

/// Waits until the request of every pod has succeeded.
async fn served(results: &Path, pods: usize) {
    let answered = |number| {
        let text = fs::read(results.join(format!("bench_{}.json", name(number)))).unwrap_or_default();
        serde_json::from_slice::<Status>(&text).is_ok_and(|status| has_succeeded(&status))
    };
    while !(0..pods).all(answered) {
        sleep(Duration::from_millis(500)).await;
    }
}

/// Whether a request has ended. A restart that has not succeeded costs less than one that has.
pub(crate) fn has_succeeded(status: &Status) -> bool {
    assert!(!status.phase.is_terminal() || status.phase == Phase::Succeeded, "{status:#?}");
    status.phase.is_terminal()
}

/// A running agent; killed when dropped.
pub(crate) struct Agent(Child);

/// The measured cost.
pub(crate) struct Cost {
    rss: f64,
    dirty: f64,
    peak: f64,
    cpu: f64,
}

impl Agent {
    pub(crate) fn start(mut command: Command, log: &Path) -> Self {
        let log = fs::File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Self(command.spawn().unwrap())
    }

    /// Measures the agent over a period without requests.
    pub(crate) async fn rest(&self, scale: &Scale) -> Cost {
        sleep(Duration::from_secs(5)).await;
        let process = Process(self.0.id());
        let (before, began) = (process.cpu(), Instant::now());
        sleep(scale.rest).await;
        let used = process.cpu().saturating_sub(before);
        // In percent of one processor.
        let cpu = 100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64();
        let (rss, peak, dirty) = (process.resident(), process.peak(), process.private_dirty());
        Cost { rss, dirty, peak, cpu }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
