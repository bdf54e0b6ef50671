//! A pod whose containers are replaced again and again in one way, and the assertions about it afterwards.

use std::{
    cell::{Cell, RefCell},
    fmt::Write as _,
    fs, iter,
    ops::RangeInclusive,
    path::PathBuf,
    sync::Arc,
};

use inplace::api::status::{Phase, Status};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    agent::{state, status},
    cluster::Cluster,
    crash::{DEADLINE, LONG, back_off, monitor::Seen},
    pod::{Pod, container, is, is_ready},
    support::facts::{Facts, Instance},
    support::wait::{eventually, eventually_or},
};

/// The ways to replace a container beside a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    /// A restart over the runtime's socket.
    Recreate,
    /// The same with a drain.
    Drain,
    /// A swap that the kubelet carries out.
    Respec,
    /// A swap that the kubelet delays by its back-off, finished over the runtime's socket.
    Finish,
    /// A swap to an image that exits at once, with the rollback.
    Back,
    /// A stop, after which the kubelet starts the container again.
    Stop,
}

impl Way {
    pub(super) const ALL: [Self; 6] =
        [Self::Recreate, Self::Drain, Self::Respec, Self::Finish, Self::Back, Self::Stop];

    /// The number of containers that are used alternately: the kubelet delays a container that it has restarted
    /// recently.
    fn containers(self) -> usize {
        if matches!(self, Self::Respec | Self::Back | Self::Stop) { 6 } else { 1 }
    }

    fn phase(self) -> Phase {
        if self == Self::Back { Phase::RolledBack } else { Phase::Succeeded }
    }

    /// The image to swap to.
    fn image(self, from: &str) -> Option<&'static str> {
        match self {
            Self::Recreate | Self::Drain | Self::Stop => None,
            Self::Respec | Self::Finish if from == "v1" => Some("v2"),
            Self::Respec | Self::Finish => Some("v1"),
            Self::Back => Some("v3"),
        }
    }

    /// Whether exactly the expected instances were started. The kubelet restarts a crashing container until it
    /// observes the new spec. Until it has observed the rollback, it kills the replacement, so the rollback is
    /// tried at most `tries` times.
    fn are_right(self, from: &str, starts: &[Start], tries: usize) -> bool {
        match (self.image(from), starts) {
            (Some("v3"), [first, between @ .., last]) => {
                let returned = starts.iter().filter(|start| start.version == from).count();
                first.version == "v3"
                    && between.iter().all(|start| start.version == "v3" || start.version == from)
                    && last.version == from
                    && returned <= tries
            }
            (image, [only]) => only.version == image.unwrap_or(from),
            _ => false,
        }
    }
}

/// A pod under test.
pub(super) struct TestedPod<'a> {
    pub(super) pod: Pod<'a>,
    pub(super) way: Way,
    /// Maximum number of starts of the previous image during the rollback: one by the agent, one more if the
    /// kubelet had just started a sync with the spec of the swap, and one by the kubelet.
    pub(super) tries: Cell<usize>,
    /// Maximum number of instances that were lost before they wrote their line, because the runtime or the kubelet died during
    /// their start.
    pub(super) lost: Cell<u32>,
    /// What is recorded about the containers of the node.
    seen: Arc<Seen>,
    /// When the node's kubelet was restarted, in seconds.
    kubelets: RefCell<Vec<u64>>,
    /// Number of requests so far.
    cycle: Cell<usize>,
}

/// The line that an instance writes: its version, and its start in seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Start {
    version: String,
    at: u64,
}

impl Start {
    fn parse(line: &str) -> Self {
        let (version, at) = line.split_once(' ').unwrap();
        Self { version: version.to_owned(), at: at.parse().unwrap() }
    }
}

/// One request, and the state before it.
pub(super) struct Ask {
    pub(super) id: String,
    /// The name of the container.
    name: String,
    before: Facts,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} on {}", self.id, self.name)
    }
}

impl<'a> TestedPod<'a> {
    pub(super) fn create(cluster: &'a Cluster, way: Way, seen: Arc<Seen>) -> Self {
        // A stop takes as long as its handler, which starts late on a busy machine.
        let mut spec = "terminationGracePeriodSeconds: 30\n".to_owned();
        if way == Way::Drain {
            spec += "readinessGates: [{conditionType: InPlaceUpdateReady}]\n";
        }
        spec += "containers:\n- {name: side, image: lab/app:v1}\n";
        for name in (0..way.containers()).map(name_of) {
            // Each instance writes a line, and its preStop handler another one. v3 exits at once.
            let start = format!(
                "echo $(cat /etc/version) $(date +%s) >>/dev/shm/starts-{name}; \
                 grep -q v3 /etc/version && exit 3; exec app"
            );
            let stop = format!("echo stop >>/dev/shm/stops-{name}");
            write!(
                spec,
                "- name: {name}\n  image: lab/app:v1\n  command: [sh, -c, '{start}']\n  \
                 lifecycle: {{preStop: {{exec: {{command: [sh, -c, '{stop}']}}}}}}\n"
            )
            .unwrap();
        }
        let pod = Pod::create(cluster, &format!("{way:?}").to_lowercase(), &spec);
        Self {
            pod,
            way,
            tries: Cell::new(3),
            lost: Cell::new(0),
            seen,
            kubelets: RefCell::default(),
            cycle: Cell::new(0),
        }
    }

    /// Needs an agent, which opens the readiness gate.
    pub(super) fn wait_ready(&self) {
        self.pod.wait_for(LONG, "it is Ready", is_ready);
    }

    pub(super) fn uid(&self) -> &str {
        &self.pod.uid
    }

    /// Records a restart of the kubelet: the new process has no memory of earlier crashes.
    pub(super) fn has_another_kubelet(&self, since: Timestamp) {
        self.kubelets.borrow_mut().push(since.as_second().unsigned_abs());
    }

    /// Writes the next request.
    pub(super) fn ask(&self, round: &str) -> Ask {
        self.ask_with(round, &json!({}))
    }

    /// The same with additional fields.
    pub(super) fn ask_with(&self, round: &str, more: &Value) -> Ask {
        let cycle = self.cycle.replace(self.cycle.get() + 1);
        // Two requests per container: the kubelet does not delay a swap to v2 and back.
        let name = name_of(if self.way == Way::Respec { cycle / 2 } else { cycle } % self.way.containers());
        let file = format!("starts-{name}");
        let before = eventually("the first line", || {
            let facts = self.pod.facts();
            let last = facts.lines(&file).last().map(|line| Start::parse(line).version);
            (last.as_ref() == Some(&facts.running(&name).version)).then_some(facts)
        });
        let before = self.without_lost(before).settled();
        let id = format!("{:?}-{round}-{cycle}", self.way);
        let mut target = json!({"name": name});
        if let Some(image) = self.way.image(&before.running(&name).version) {
            target["image"] = self.pod.cluster.image(&format!("app:{image}")).into();
        }
        let mut request = json!({"id": id, "containers": [target], "deadlineSeconds": DEADLINE});
        match self.way {
            Way::Drain => request["gracePeriodSeconds"] = 1.into(),
            Way::Stop => request["engine"] = "Stop".into(),
            // On a busy machine the crash takes a while.
            Way::Back => request["minReadySeconds"] = 15.into(),
            _ => {}
        }
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        self.pod.request(&request.to_string());
        Ask { id, name, before }
    }

    /// True when the pod's status for the request is terminal.
    pub(super) fn has_ended(&self, ask: &Ask) -> bool {
        let ended = |status: Status| status.id == ask.id && status.phase.is_terminal();
        self.pod.seen().last().and_then(status).is_some_and(ended)
    }

    /// The pod's journal on the node.
    pub(super) fn journal(&self) -> Value {
        let path = state(&self.pod.cluster.node()).join(format!("journal/{}.json", self.uid()));
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    /// Waits for the end of the request; the result must be as if nothing had happened.
    pub(super) fn ends(&self, ask: &Ask, what: &str, stops: RangeInclusive<usize>) {
        let reported = self.pod.answer_within(LONG, &ask.id);
        assert_eq!(reported.phase, self.way.phase(), "{what}: {reported:#?}");
        let old = ask.before.running(&ask.name);
        let instances =
            self.holds(ask, what, |starts| self.way.are_right(&old.version, starts, self.tries.get()), stops);
        let new = instances.running(&ask.name);
        // Log shippers find its log by this link, whoever created the container.
        let link = self.link(ask, &new.id);
        eventually(&format!("{what}: {}", link.display()), || link.is_symlink().then_some(()));
        let report = &reported.containers[0];
        assert_eq!(report.from.container_id, old.id, "{what}");
        if reported.phase == Phase::Succeeded {
            assert_eq!(report.to.as_ref().unwrap().container_id, new.id, "{what}: {reported:#?}");
        }
    }

    /// The link to the log of an instance of the container.
    fn link(&self, ask: &Ask, id: &str) -> PathBuf {
        let link = format!("var/log/containers/{}_default_{}-{id}.log", self.pod.name, ask.name);
        self.pod.cluster.node().dir.join(link)
    }

    /// Removes the link of another instance of the container, once it runs and has one.
    pub(super) fn unlink_new(&self, ask: &Ask) {
        let old = ask.before.running(&ask.name).id.clone();
        let link = eventually("the link of the new instance", || {
            let facts = self.pod.facts();
            let new = facts.of(&ask.name).find(|instance| instance.pid != 0 && instance.id != old)?;
            Some(self.link(ask, &new.id)).filter(|link| link.is_symlink())
        });
        fs::remove_file(link).unwrap();
    }

    /// Without the containers that the kubelet created in vain in the rounds so far.
    fn without_lost(&self, facts: Facts) -> Facts {
        facts.without_lost(self.lost.get() * u32::try_from(self.cycle.get()).unwrap())
    }

    /// Another instance of the container runs.
    pub(super) fn is_replaced(&self, ask: &Ask) -> bool {
        let old = ask.before.running(&ask.name);
        self.pod.facts().of(&ask.name).any(|instance| instance.pid != 0 && instance.id != old.id)
    }

    /// Asserts that the request changed nothing.
    pub(super) fn is_untouched(&self, ask: &Ask) {
        let facts = self.pod.facts().settled();
        assert_eq!((&facts.instances, &facts.shm), (&ask.before.instances, &ask.before.shm), "{ask:?}");
    }

    /// Asserts that the instances started since the request are right, and that nothing else changed. Returns the
    /// state afterwards.
    pub(super) fn holds(
        &self,
        ask: &Ask,
        what: &str,
        right: impl Fn(&[Start]) -> bool,
        stops: RangeInclusive<usize>,
    ) -> Facts {
        let Ask { name, before, .. } = ask;
        let since = |facts: &Facts, file: &str| -> Vec<String> {
            let file = format!("{file}-{name}");
            facts.lines(&file).iter().skip(before.lines(&file).len()).map(|&line| line.to_owned()).collect()
        };
        let starts = |facts: &Facts| -> Vec<Start> {
            let all = since(facts, "starts").iter().map(|line| Start::parse(line)).collect();
            without_failed(all, facts.of(name).filter_map(Instance::failed_start))
        };
        let after = eventually_or(&format!("{what}: the new instance's line"), || {
            let facts = self.pod.facts();
            let starts = starts(&facts);
            // A kubelet that observes the rollback late kills the container once more (docs/limits.md), and
            // starts it again.
            let runs = facts.of(name).any(|instance| instance.pid != 0);
            if runs && right(&starts) { Ok(facts) } else { Err(format!("{starts:?}, {facts:#?}")) }
        });
        let crashed: Vec<_> =
            starts(&after).iter().filter(|start| start.version == "v3").map(|start| start.at).collect();
        let (kubelets, anew) = (self.kubelets.borrow(), self.seen.counted_anew(&before.sandbox, name));
        assert!(
            back_off::allows(&crashed, &kubelets, &anew),
            "{what}: not all of {crashed:?} are the kubelet's own, kubelets since {kubelets:?}, attempts 0 at {anew:?}"
        );
        let started = u32::try_from(starts(&after).len()).unwrap();
        let (attempt, old) = (after.running(name).attempt, before.running(name));
        let id = &after.running(name).id;
        // A kubelet before 1.24 restarts its count when it has collected the exited instance (once a minute).
        let counts_anew = attempt <= old.attempt && after.of(name).all(|instance| instance.id != old.id);
        let counted = old.attempt + started..=old.attempt + started + self.lost.get();
        assert!(counts_anew || counted.contains(&attempt), "{what}: {after:#?}");
        // The kubelet's report is later than the runtime's state.
        self.pod.wait_for(LONG, &format!("{what}: it is Ready with {attempt} restarts"), |pod| {
            let restarts = container(pod, name).map(|status| u32::try_from(status.restart_count).unwrap());
            let is_another = self.way == Way::Back && restarts > Some(attempt);
            assert!(
                counts_anew || is_another || restarts <= Some(attempt),
                "{what}: {restarts:?} restarts instead of {attempt}"
            );
            assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Running"), "{what}");
            let is_open = self.way != Way::Drain || is(pod, "InPlaceUpdateReady");
            is_another || restarts == Some(attempt) && is_ready(pod) && is_open
        });
        // Nothing more was started meanwhile. Only a kubelet that observes the rollback late kills the container also after its
        // report (docs/limits.md): then the next one is awaited.
        let now = self.pod.facts();
        if self.way == Way::Back && !now.of(name).any(|instance| instance.pid != 0 && instance.id == *id) {
            return self.holds(ask, what, right, stops);
        }
        let after = self.without_lost(now).settled();
        assert!(right(&starts(&after)), "{what}: {after:#?}");
        let stopped = since(&after, "stops").len();
        // An instance of the previous image that the kubelet killed during the rollback had its handler run, too.
        let returned = starts(&after).iter().filter(|start| start.version == old.version).count();
        let again = if self.way == Way::Back { returned - 1 } else { 0 };
        assert!(
            (*stops.start()..=stops.end() + again).contains(&stopped),
            "{what}: preStop ran {stopped} times"
        );
        assert_eq!(after.running(name).attempt, attempt, "{what}");
        for other in before.instances.iter().filter(|instance| instance.pid != 0 && instance.name != *name) {
            assert_eq!(after.running(&other.name), other, "{what}");
        }
        assert_eq!((&after.sandbox, &after.ip), (&before.sandbox, &before.ip), "{what}");
        // A write that a slow disk delays is repeated after 2 s.
        eventually_or(&format!("{what}: the end in the journal"), || {
            let journal = self.journal();
            let is_over = journal["open"].is_null() && journal["last"]["id"] == *ask.id;
            if is_over { Ok(()) } else { Err(journal) }
        });
        after
    }
}

/// Without the lines of instances whose start failed: a process may have written its line by then. For each of them the seconds in
/// which it can have run are given.
fn without_failed(mut starts: Vec<Start>, failed: impl Iterator<Item = RangeInclusive<u64>>) -> Vec<Start> {
    for seconds in failed {
        if let Some(line) = starts.iter().position(|start| seconds.contains(&start.at)) {
            starts.remove(line);
        }
    }
    starts
}

#[test]
fn the_line_of_an_instance_whose_start_failed_does_not_count() {
    let starts = |lines: &[&str]| lines.iter().map(|line| Start::parse(line)).collect::<Vec<_>>();
    let lines = starts(&["v1 485", "v1 493"]);
    assert_eq!(without_failed(lines.clone(), [484..=485].into_iter()), starts(&["v1 493"]));
    // It wrote none, or none failed: two starts are two.
    assert_eq!(without_failed(lines.clone(), [486..=487].into_iter()), lines);
    assert_eq!(without_failed(lines.clone(), iter::empty()), lines);
}

/// Preconditions: the kubelet delays an image that it started recently.
pub(super) fn prepare(tested_pods: &[TestedPod<'_>]) {
    let held_back = || tested_pods.iter().filter(|tested_pod| tested_pod.way == Way::Finish);
    for round in ["prepare", "and-back"] {
        let asks: Vec<_> = held_back().map(|tested_pod| (tested_pod, tested_pod.ask(round))).collect();
        for (tested_pod, ask) in &asks {
            tested_pod.ends(ask, round, 1..=1);
        }
    }
}

fn name_of(index: usize) -> String {
    if index == 0 { "app".to_owned() } else { format!("app{index}") }
}
