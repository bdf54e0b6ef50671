//! Part I: all pods of a Deployment on two nodes restarted at once, in different ways. Part K: what a Job without this
//! project does after all its pods have failed at once.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use inplace::api::annotation;
use inplace::cri::client::Client;
use inplace::cri::endpoint::Endpoint;
use inplace::cri::proto::v1::{Container, ContainerState};
use inplace::process::clock;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::Scale;
use crate::agent::{Agent, Setup};
use crate::cluster::{Cluster, Node, block_on};
use crate::report::{Report, Samples};

/// Budget of the median downtime of a pod, in milliseconds.
const DOWNTIME: f64 = 500.0;
/// Budget of the median time until the last container has started, in milliseconds.
const LAST_START: f64 = 4000.0;
const LONGEST: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);
/// The pause between two rounds: longer than the window in which an earlier group restart delays the next one.
const PAUSE: Duration = Duration::from_secs(3);
/// The policy of a restart after a failure.
const POLICY: &str = "max-restarts=100,window=2s";
/// The name of what part K measures.
const JOB: &str = "a Job makes its pods again (backoffLimit)";

/// A way to start the containers of all pods again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rollout,
    Together { barrier: bool },
    Failure { barrier: bool },
    Delete,
}

impl Way {
    const ALL: [Self; 6] = [
        Self::Rollout,
        Self::Together { barrier: true },
        Self::Together { barrier: false },
        Self::Failure { barrier: true },
        Self::Failure { barrier: false },
        Self::Delete,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Rollout => "restart --max-unavailable 100%",
            Self::Together { barrier: true } => "restart --together",
            Self::Together { barrier: false } => "restart --together, no barrier",
            Self::Failure { barrier: true } => "kill -9 of one, group restart",
            Self::Failure { barrier: false } => "kill -9 of one, group restart, no barrier",
            Self::Delete => "delete the pods",
        }
    }
}

/// What was measured in all rounds of one way.
#[derive(Default)]
struct Measured {
    last_start: Samples,
    downtime: Samples,
}

/// A container and the node that it is on.
#[derive(Clone, Debug)]
struct Instance {
    id: String,
    node: usize,
}

/// The containers that run, by the uid of their pod.
type Running = BTreeMap<String, Instance>;

struct Pods<'a> {
    cluster: &'a Cluster,
    nodes: [Node; 2],
    runtimes: [Client; 2],
    count: usize,
}

/// Runs part I on a private Kubernetes.
pub(crate) fn at_once(scale: &Scale, report: &mut Report) {
    let (count, rounds) = (scale.at_once, scale.rounds);
    report.title(&format!("I. {count} pods on two nodes restarted at once, {rounds} times in each way"));
    let cluster = Cluster::own();
    let pods = Pods::new(&cluster, count);
    let _agents = pods.nodes.each_ref().map(|node| Agent::start_on(&cluster, node, &Setup::default()));
    let _controller = Agent::controller(&cluster, "bench");
    pods.create();
    let measured = Way::ALL.map(|way| {
        let mut measured = Measured::default();
        for _ in 0..rounds {
            pods.restart(way, &mut measured);
        }
        report.title(&format!("   {}", way.name()));
        report.show(&[("last start", &measured.last_start), ("downtime", &measured.downtime)]);
        (way.name(), measured)
    });
    report.title("   From the command, or the death of the one, to the last start");
    let rows = measured.each_ref().map(|(name, measured)| (*name, &measured.last_start));
    report.distributions("at once, last start", &rows);
    report.title("   Downtime of each pod");
    let rows = measured.each_ref().map(|(name, measured)| (*name, &measured.downtime));
    // A deleted pod has no successor of its own.
    report.distributions("at once, downtime", &rows[..rows.len() - 1]);
    let (_, rollout) = &measured[0];
    report.budget("I pods at once: p50 of the downtime, ms", rollout.downtime.p50(), DOWNTIME);
    report.budget("I pods at once: p50 to the last start, ms", rollout.last_start.p50(), LAST_START);
}

/// Runs part K on a private Kubernetes, without agents.
pub(crate) fn job(scale: &Scale, report: &mut Report) {
    let (count, rounds) = (scale.at_once, scale.rounds);
    report.title(&format!("K. {count} pods of a Job on two nodes fail at once, {rounds} times"));
    let cluster = Cluster::own();
    let pods = Pods::new(&cluster, count);
    let mut last_start = Samples::default();
    for _ in 0..rounds {
        last_start.add_ms(pods.job());
    }
    report.title("   From the death of all to the last start");
    report.distributions("at once, a Job", &[(JOB, &last_start)]);
}

impl<'a> Pods<'a> {
    fn new(cluster: &'a Cluster, count: usize) -> Self {
        let nodes = [cluster.node(), cluster.add_node("node-2")];
        let runtime =
            |node: &Node| block_on(async { Client::new(&Endpoint::parse(&node.endpoint).unwrap(), None) });
        let runtimes = nodes.each_ref().map(runtime);
        Self { cluster, nodes, runtimes, count }
    }

    fn create(&self) {
        let labels = json!({"matchLabels": {"app": "train"}});
        let spread = json!([{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "DoNotSchedule", "labelSelector": labels}]);
        let mut template = template();
        template["spec"]["topologySpreadConstraints"] = spread;
        let manifest = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"},
            "spec": {"replicas": self.count, "selector": labels, "template": template}});
        self.cluster.apply(&self.cluster.named(&manifest.to_string()));
        self.cluster.kubectl(&["rollout", "status", "deployment/train", "--timeout=180s"]);
    }

    /// All workers of a Job end at once, as those of a training job do after the first one has failed. Returns the milliseconds
    /// until the last new start. Each call has a Job of its own, because the back-off of a Job gets longer with each failure.
    fn job(&self) -> f64 {
        thread::sleep(PAUSE);
        let mut template = template();
        template["spec"]["restartPolicy"] = json!("Never");
        let manifest = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
            "spec": {"parallelism": self.count, "completions": self.count, "backoffLimit": 1000, "template": template}});
        self.cluster.apply(&self.cluster.named(&manifest.to_string()));
        let before = self.until("all workers run", |running| running.len() == self.count);
        let pids: Vec<_> = before.values().map(|instance| self.pid(instance)).collect();
        let began = now();
        for pid in pids {
            kill(pid, Signal::SIGKILL).unwrap();
        }
        let after = self.until("all workers run again", |running| {
            running.len() == self.count && running.keys().all(|uid| !before.contains_key(uid))
        });
        let last = after.values().map(|new| self.times(new).unwrap()[0]).max().unwrap();
        self.cluster.kubectl(&["delete", "job/train", "--timeout=60s"]);
        self.until("all containers have ended", Running::is_empty);
        millis(last - began)
    }

    /// Waits until the containers that run are as wanted, and returns them.
    fn until(&self, what: &str, is_so: impl Fn(&Running) -> bool) -> Running {
        let end = Instant::now() + LONGEST;
        loop {
            let running = self.running();
            if is_so(&running) {
                return running;
            }
            assert!(Instant::now() < end, "not within {LONGEST:?}: {what}");
            thread::sleep(POLL);
        }
    }

    /// Restarts all pods once, and waits until nothing is left to do.
    fn restart(&self, way: Way, measured: &mut Measured) {
        thread::sleep(PAUSE);
        let (before, rollouts) = (self.running(), self.rollouts().len());
        assert_eq!(before.len(), self.count);
        let began = self.begin(way, &before);
        let after = self.end(way, &before, rollouts);
        let starts: Vec<_> = after.values().map(|new| self.times(new).unwrap()[0]).collect();
        measured.last_start.add_ms(millis(starts.iter().max().unwrap() - began));
        for (uid, old) in &before {
            // A kubelet keeps one instance that has ended.
            if let (Some(new), Some([_, ended])) = (after.get(uid), self.times(old)) {
                measured.downtime.add_ms(millis(self.times(new).unwrap()[0] - ended));
            }
        }
        if matches!(way, Way::Failure { .. }) {
            self.of_all("label", &format!("{}-", annotation::GROUP_RESTART));
        }
    }

    /// Begins a restart. Returns when, in nanoseconds since 1970, as the runtime counts.
    fn begin(&self, way: Way, before: &Running) -> i64 {
        let restart = ["restart", "deploy/train", "-c", "app"];
        let together = [&restart[..], &["--together"]].concat();
        let mut began = now();
        match way {
            Way::Rollout => self.inplace(&[&restart[..], &["--max-unavailable", "100%"]].concat()),
            Way::Together { barrier: true } => self.inplace(&together),
            Way::Together { barrier: false } => self.inplace(&[&together[..], &["--no-barrier"]].concat()),
            Way::Delete => {
                self.cluster.kubectl(&["delete", "pods", "-l", "app=train", "--wait=false"]);
            }
            Way::Failure { barrier } => {
                let policy = format!("{}={POLICY},barrier={barrier}", annotation::GROUP_RESTART_POLICY);
                self.of_all("annotate", &policy);
                self.of_all("label", &format!("{}=train", annotation::GROUP_RESTART));
                thread::sleep(PAUSE);
                let pid = self.pid(before.first_key_value().unwrap().1);
                began = now();
                kill(pid, Signal::SIGKILL).unwrap();
            }
        }
        began
    }

    /// Waits until all containers run again, their pods are Ready, and the rollout has ended. Returns the containers.
    fn end(&self, way: Way, before: &Running, rollouts: usize) -> Running {
        let end = Instant::now() + LONGEST;
        loop {
            thread::sleep(POLL);
            assert!(Instant::now() < end, "{} takes too long", way.name());
            let after = self.running();
            let is_new =
                |(uid, new): (&String, &Instance)| before.get(uid).is_none_or(|old| old.id != new.id);
            if after.len() != self.count || !after.iter().all(is_new) {
                continue;
            }
            let phases = self.rollouts();
            let has_begun = way == Way::Delete || phases.len() > rollouts;
            if has_begun && phases.iter().all(|phase| phase == "Succeeded") {
                self.cluster.kubectl(&["rollout", "status", "deployment/train", "--timeout=60s"]);
                return self.running();
            }
        }
    }

    /// The containers that run. Fences do not count.
    fn running(&self) -> Running {
        let mut running = Running::new();
        for (node, runtime) in self.runtimes.iter().enumerate() {
            let is_app = |container: &Container| {
                let name = container.labels.get(annotation::CONTAINER_NAME);
                container.state() == ContainerState::ContainerRunning
                    && name.is_some_and(|name| name == "app")
            };
            for container in block_on(runtime.containers(None)).unwrap().into_iter().filter(is_app) {
                let uid = container.labels[annotation::POD_UID].clone();
                running.insert(uid, Instance { id: container.id, node });
            }
        }
        running
    }

    /// When the container started and when it ended, in nanoseconds; `None` if it was removed.
    fn times(&self, instance: &Instance) -> Option<[i64; 2]> {
        let answer = block_on(self.runtimes[instance.node].container(&instance.id, false)).unwrap()?;
        answer.status.map(|status| [status.started_at, status.finished_at])
    }

    fn pid(&self, instance: &Instance) -> Pid {
        let answer = block_on(self.runtimes[instance.node].container(&instance.id, true)).unwrap().unwrap();
        let info: Value = serde_json::from_str(&answer.info["info"]).unwrap();
        Pid::from_raw(info["pid"].as_i64().unwrap().try_into().unwrap())
    }

    /// The phases of all rollouts.
    fn rollouts(&self) -> Vec<String> {
        let phases = "jsonpath={range .items[*]}{.status.phase}{\"\\n\"}{end}";
        let phases = self.cluster.kubectl(&["get", "inplacerollouts", "-o", phases]);
        phases.lines().map(str::to_owned).collect()
    }

    fn inplace(&self, args: &[&str]) {
        let output = self.cluster.inplace(args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn of_all(&self, verb: &str, what: &str) {
        self.cluster.kubectl(&[verb, "--overwrite", "pods", "-l", "app=train", what]);
    }
}

/// The template of the pods, without what only one kind of owner has.
fn template() -> Value {
    json!({"metadata": {"labels": {"app": "train"}}, "spec": {"terminationGracePeriodSeconds": 2,
        "containers": [{"name": "app", "image": "lab/app:v1"}]}})
}

fn now() -> i64 {
    clock::now().as_nanosecond().try_into().unwrap()
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn millis(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e6
}
