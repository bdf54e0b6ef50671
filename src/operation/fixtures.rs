//! Shared fixtures for the tests of the decisions: a pod, requests for it, and a fake runtime that executes every
//! effect unless a test decides otherwise.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::pod_ref::PodRef;
use crate::api::request::Request;
use crate::failure::Class;
use crate::operation::effect::{Effect, EffectError, EffectOutput, GateAction, ImageChoice, Verb};
use crate::operation::next::{Next, next};
use crate::operation::outcome::Outcome;
use crate::operation::plan::Plan;
use crate::operation::port::{Listeners, Port};
use crate::operation::preflight::{Admitted, Hashes, Hooks, Refusal, Runtime, Situation, Source, admit};
use crate::operation::snapshot::{
    Container, Declared, DeclaredContainer, Gate, Owner, Probed, PullPolicy, RestartPolicy, Sandbox,
    Snapshot, State, UserSource,
};
use crate::operation::spec_hash;
use crate::operation::standby::{counts_sockets, due_probe};
use crate::operation::state::Operation;

/// The time so many milliseconds after the start of the test.
pub(super) fn at(ms: i64) -> Timestamp {
    "2026-11-20T10:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_millis(ms)
}

/// An instance of the container `name` with the ID `name-attempt` and the image `repo/app:v1`.
pub(super) fn instance(name: &str, attempt: u32, state: State) -> Container {
    Container {
        id: format!("{name}-{attempt}"),
        name: name.into(),
        fence: false,
        holder: false,
        standby: false,
        attempt,
        state,
        image: "repo/app:v1".into(),
        image_id: "sha:v1".into(),
        spec_hash: String::new(),
        operation: None,
        created_at: at(-60_000),
        started_at: (state != State::Created).then(|| at(-60_000)),
        finished_at: (state == State::Exited).then(|| at(-50_000)),
        exit_code: 0,
        start_error: None,
        grace: Duration::from_secs(30),
        has_pre_stop: false,
        ports: Vec::new(),
    }
}

/// A pod with the containers `app` and `side`, each with a running instance of attempt 2.
pub(super) fn pod(owner: Owner) -> Snapshot {
    let pod = PodRef { namespace: "default".into(), name: "web".into(), uid: "u-1".into() };
    let mut containers = Vec::new();
    for name in ["app", "side"] {
        containers.extend([0, 1].map(|attempt| instance(name, attempt, State::Exited)));
        containers.push(instance(name, 2, State::Running));
    }
    let sandbox = Some(Sandbox { id: "sandbox-1".into(), pod, ready: true, owner });
    Snapshot::of_runtime(sandbox, containers)
}

/// Another reference to the image of [`pod_in_cluster`].
pub(super) const ALIAS: &str =
    "repo/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The same pod with a kubelet and an API server: Ready, with an open gate.
pub(super) fn pod_in_cluster() -> Snapshot {
    let mut snapshot = pod(Owner::Kubelet);
    for container in &mut snapshot.containers {
        container.spec_hash = spec_hash::of(&container.name, &container.image);
        // Long enough ago for every back-off to be over.
        container.finished_at = container.finished_at.map(|_| at(-400_000));
    }
    let containers = ["app", "side"].map(|name| DeclaredContainer {
        name: name.into(),
        sidecar: false,
        image: "repo/app:v1".into(),
        pull_policy: PullPolicy::IfNotPresent,
        restart_policy: RestartPolicy::Always,
        has_restart_rules: false,
        has_post_start: false,
        is_probed: true,
        readiness: None,
        liveness: None,
        has_startup_probe: false,
        startup_period: None,
        devices: Vec::new(),
        env_from_objects: false,
        sub_path_of_objects: false,
        user: UserSource::Spec,
        container_id: Some(format!("{name}-2")),
        ready: true,
        started: true,
        running: true,
        unstarted: false,
        restarts: 2,
        image_id: "sha:v1".into(),
    });
    let gate = Gate::Open;
    snapshot.declared = Some(Declared {
        current: true,
        deleting: false,
        ending: None,
        gate,
        unready_since: None,
        has_pull_secrets: false,
        memory_limit: None,
        containers: containers.into(),
    });
    snapshot
}

/// The API server's view of `app`.
pub(super) fn declared(snapshot: &mut Snapshot) -> &mut DeclaredContainer {
    &mut snapshot.declared.as_mut().unwrap().containers[0]
}

/// All facts about the pod in the cluster, with an alias for its image.
pub(super) fn situation_in_cluster(snapshot: Snapshot) -> Situation {
    let mut situation = situation(snapshot);
    situation.sources.values_mut().for_each(|source| source.alias = Some(ALIAS.into()));
    situation
}

/// The behaviour of the simulated kubelet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kubelet {
    /// It does nothing and reports nothing.
    Silent,
    /// It reports what it observes, and does nothing.
    Watching,
    /// It stops a container whose hash differs from the spec's, and delays the replacement.
    HoldingBack,
    /// It replaces containers at once, and reports every running one as Ready.
    Prompt,
}

/// A container that can be cloned.
pub(super) fn source() -> Source {
    Source { image_present: true, runs_declared: true, ..Source::default() }
}

/// All facts about a pod for which nothing prevents an operation.
pub(super) fn situation(snapshot: Snapshot) -> Situation {
    Situation {
        snapshot,
        runtime: Runtime { name: "containerd".into(), version: "2.1.9".into() },
        hashes: Hashes::new(),
        hooks: Hooks::default(),
        memory: None,
        group: None,
        now: at(0),
        sources: ["app", "side"].map(|name| (name.to_owned(), source())).into(),
    }
}

/// Runs the preflight for a request, as written in the annotation.
pub(super) fn ask(text: &str, situation: &Situation) -> Result<Admitted, Refusal> {
    admit(Request::parse(Some(text))?.unwrap(), situation)
}

/// The result of an effect.
#[derive(Clone, Copy)]
pub(super) enum Answer {
    /// It happens.
    Obey,
    /// It happens, and the response is lost.
    Lost,
    /// It does not happen.
    No(Class),
}

/// An operation and its simulated runtime.
pub(super) struct Bench {
    pub(super) operation: Operation,
    pub(super) snapshot: Snapshot,
    pub(super) now: Timestamp,
    /// The executed effects, such as `Stop app-2`.
    pub(super) log: Vec<String>,
    /// Containers of this image exit so many milliseconds after their start.
    pub(super) dies: Option<(&'static str, i64)>,
    /// So many milliseconds after its start, a container listens on the port 8080, which all of them share.
    pub(super) listens_after: Option<i64>,
    /// The image ID of which no instance listens; standbys of it do.
    pub(super) deaf_instance: Option<String>,
    /// True when a standby never listens.
    pub(super) deaf_standby: bool,
    /// How many sockets an instance has on the port 8080, and how many a standby.
    pub(super) sockets: [u32; 2],
    /// True while the sockets cannot be counted.
    pub(super) count_fails: bool,
    /// So many milliseconds after its start, the readiness probe of a standby passes.
    pub(super) passes_after: i64,
    /// The times at which that probe was run, since the start of the standby.
    pub(super) probed_at: Vec<SignedDuration>,
    /// The simulated kubelet.
    pub(super) kubelet: Kubelet,
    /// The function by which that kubelet computes its hashes, from name and image.
    pub(super) hash: fn(&str, &str) -> String,
}

impl Bench {
    pub(super) fn new(text: &str, snapshot: Snapshot) -> Self {
        Self::of(text, situation(snapshot), Kubelet::Silent)
    }

    /// A pod in a cluster with the kubelet `kubelet`.
    pub(super) fn beside(kubelet: Kubelet, text: &str) -> Self {
        Self::of(text, situation_in_cluster(pod_in_cluster()), kubelet)
    }

    pub(super) fn of(text: &str, situation: Situation, kubelet: Kubelet) -> Self {
        let operation = Plan::of(ask(text, &situation).unwrap()).begin(at(0), None);
        let (snapshot, hash) = (situation.snapshot, spec_hash::of);
        Self {
            operation,
            snapshot,
            now: at(0),
            log: Vec::new(),
            dies: None,
            listens_after: None,
            deaf_instance: None,
            deaf_standby: false,
            sockets: [1, 1],
            count_fails: false,
            passes_after: 0,
            probed_at: Vec::new(),
            kubelet,
            hash,
        }
    }

    /// Runs to the end with a runtime that executes everything.
    pub(super) fn obey(&mut self) -> Outcome {
        self.play(|_, _| Answer::Obey)
    }

    /// Runs to the end; `world` decides the result of each effect.
    pub(super) fn play(&mut self, mut world: impl FnMut(&Effect, &mut Snapshot) -> Answer) -> Outcome {
        for _ in 0..10_000 {
            if let Some(outcome) = self.step(&mut world) {
                self.operation.finish(outcome.clone(), self.now);
                return outcome;
            }
        }
        panic!("no end: {:?}, {:?}", self.operation, self.log);
    }

    /// Asserts that the notes that follow from one observation come to an end: the node applies all of them before it
    /// observes the pod again.
    fn assert_notes_end(&self) {
        let mut operation = self.operation.clone();
        for _ in 0..100 {
            match next(&operation, &self.snapshot, self.now) {
                Next::Note(note) => operation.note(note),
                _ => return,
            }
        }
        panic!("notes without end: {:?}", next(&operation, &self.snapshot, self.now));
    }

    /// One decision and its execution.
    pub(super) fn step(
        &mut self,
        world: &mut impl FnMut(&Effect, &mut Snapshot) -> Answer,
    ) -> Option<Outcome> {
        self.let_die();
        self.let_kubelet();
        self.count_sockets();
        self.run_probe();
        self.assert_notes_end();
        match next(&self.operation, &self.snapshot, self.now) {
            Next::Note(note) => self.operation.note(note),
            Next::Wait(waiting) => self.now = waiting.until,
            Next::Done(outcome) => return Some(outcome),
            Next::Do(effect) => {
                self.operation.begin(&effect, self.now);
                self.log.push(short(&effect));
                self.now += SignedDuration::from_millis(10);
                let effect_error = |class| EffectError { class, message: "the runtime said so".into() };
                let result = match world(&effect, &mut self.snapshot) {
                    Answer::Obey => Ok(self.happen(&effect)),
                    Answer::Lost => {
                        self.happen(&effect);
                        Err(effect_error(Class::Unavailable))
                    }
                    Answer::No(class) => Err(effect_error(class)),
                };
                self.operation.record(&effect, result, self.now);
            }
        }
        None
    }

    /// As the process of a fence does.
    fn count_sockets(&mut self) {
        let counts = counts_sockets(&self.operation, &self.snapshot).filter(|_| !self.count_fails);
        self.snapshot.listeners = counts.map(|_| {
            let listens = |container: &&Container| {
                let after = self.listens_after.unwrap_or(i64::MAX);
                let started =
                    container.started_at.filter(|_| container.state == State::Running && !container.fence);
                container.name == "app"
                    && !(container.standby && self.deaf_standby)
                    && (container.standby || self.deaf_instance.as_ref() != Some(&container.image_id))
                    && started.is_some_and(|at| self.now.duration_since(at).as_millis() >= i128::from(after))
            };
            let sockets = |container: &Container| self.sockets[usize::from(container.standby)];
            let count = self.snapshot.containers.iter().filter(listens).map(sockets).sum::<u32>();
            Listeners::from([(Port::Tcp(8080), count)]).into_iter().filter(|(_, count)| *count > 0).collect()
        });
    }

    fn run_probe(&mut self) {
        let due = due_probe(&self.operation, &self.snapshot, self.now);
        let started = due.and_then(|(standby, _)| standby.started_at);
        self.snapshot.probed = started.map(|started| {
            let age = self.now.duration_since(started);
            self.probed_at.push(age);
            let has_passed = age.as_millis() >= i128::from(self.passes_after);
            let result = if has_passed { Ok(()) } else { Err("the command exited with 1".into()) };
            Probed { at: self.now, result }
        });
    }

    fn let_die(&mut self) {
        let Some((image, after)) = self.dies else { return };
        let running =
            |instance: &&mut Container| instance.state == State::Running && instance.image_id == image;
        for instance in self.snapshot.containers.iter_mut().filter(running) {
            let end = instance.started_at.unwrap() + SignedDuration::from_millis(after);
            if self.now >= end {
                (instance.state, instance.finished_at, instance.exit_code) = (State::Exited, Some(end), 3);
            }
        }
    }

    fn let_kubelet(&mut self) {
        let Some(mut declared) = self.snapshot.declared.clone().filter(|declared| declared.current) else {
            return;
        };
        let acts = matches!(self.kubelet, Kubelet::HoldingBack | Kubelet::Prompt);
        for container in &mut declared.containers {
            let hash = (self.hash)(&container.name, &container.image);
            let newest = |snapshot: &Snapshot| {
                let instances = snapshot.instances(&container.name);
                instances
                    .into_iter()
                    .max_by_key(|instance| (instance.created_at, instance.attempt))
                    .unwrap()
                    .clone()
            };
            let mut instance = newest(&self.snapshot);
            if acts && instance.state == State::Running && instance.spec_hash != hash {
                let old = find(&mut self.snapshot, &instance.id);
                (old.state, old.finished_at, old.exit_code) = (State::Exited, Some(self.now), 143);
                instance = old.clone();
            }
            let taken =
                |c: &Container| !c.standby && c.name == container.name && c.attempt == instance.attempt + 1;
            if self.kubelet == Kubelet::Prompt
                && instance.state == State::Exited
                && !self.snapshot.containers.iter().any(taken)
            {
                let mut new = instance.clone();
                (new.attempt, new.operation, new.spec_hash) = (instance.attempt + 1, None, hash);
                new.id = format!("{}-{}", new.name, new.attempt);
                new.image_id =
                    if container.image == ALIAS { "sha:v1".into() } else { image_id(&container.image) };
                new.image.clone_from(&container.image);
                (new.state, new.created_at, new.started_at) = (State::Running, self.now, Some(self.now));
                (new.finished_at, new.exit_code) = (None, 0);
                self.snapshot.containers.push(new);
            }
            let instance = newest(&self.snapshot);
            if self.kubelet != Kubelet::Silent {
                let running = instance.state == State::Running;
                (container.running, container.ready, container.container_id) =
                    (running, running, Some(instance.id));
            }
        }
        self.snapshot.declared = Some(declared);
    }

    fn happen(&mut self, effect: &Effect) -> EffectOutput {
        let now = self.now;
        match effect {
            Effect::Pull { image, .. } => {
                let id = image_id(image);
                return EffectOutput::Image(ImageChoice { reference: image.clone(), id, spec_hash: None });
            }
            Effect::Fence { container, source, attempt, image, .. }
            | Effect::Create { container, source, attempt, image, .. } => {
                let mut new = self.snapshot.by_id(source).unwrap().clone();
                new.fence = effect.verb() == Verb::Fence;
                new.id = format!("{container}-{}{attempt}", if new.fence { "fence-" } else { "" });
                new.attempt = *attempt;
                new.operation = Some(self.operation.request.id.clone());
                new.holder = matches!(effect, Effect::Fence { by_process: true, .. });
                (new.state, new.created_at, new.started_at, new.finished_at) =
                    (State::Created, now, None, None);
                if new.holder {
                    (new.state, new.started_at) = (State::Running, Some(now));
                }
                if let Some(image) = image {
                    (new.image, new.image_id) = (image.reference.clone(), image.id.clone());
                    new.spec_hash = image.spec_hash.clone().unwrap_or(new.spec_hash);
                }
                self.snapshot.containers.push(new);
            }
            Effect::Standby { container, source, attempt, image } => {
                let mut new = self.snapshot.by_id(source).unwrap().clone();
                (new.standby, new.id, new.attempt) = (true, format!("{container}-standby"), *attempt);
                new.operation = Some(self.operation.request.id.clone());
                (new.state, new.created_at, new.started_at, new.finished_at) =
                    (State::Running, now, Some(now), None);
                if let Some(image) = image {
                    (new.image, new.image_id) = (image.reference.clone(), image.id.clone());
                }
                self.snapshot.containers.push(new);
            }
            Effect::PreStop { .. } => {}
            Effect::Gate { gate } => {
                let closed = |reason: &str| Gate::Closed { reason: reason.into() };
                let declared = self.snapshot.declared.as_mut().unwrap();
                declared.unready_since = (*gate != GateAction::Open).then_some(now);
                declared.gate = match gate {
                    GateAction::Open => Gate::Open,
                    GateAction::Drain => closed("InPlaceDrain"),
                    GateAction::Failed => closed("InPlaceFailed"),
                };
            }
            Effect::Respec { container, to, .. } => {
                let declared = self.snapshot.declared.as_mut().unwrap();
                declared.containers.iter_mut().find(|c| c.name == *container).unwrap().image.clone_from(to);
            }
            Effect::Stop { id, .. } | Effect::StopStandby { id, .. } => {
                let old = find(&mut self.snapshot, id);
                (old.state, old.finished_at, old.exit_code) = (State::Exited, Some(now), 143);
            }
            Effect::Start { id, .. } => {
                let new = find(&mut self.snapshot, id);
                (new.state, new.started_at) = (State::Running, Some(now));
            }
            Effect::Remove { id, .. } => self.snapshot.containers.retain(|container| container.id != *id),
        }
        EffectOutput::Nothing
    }
}

fn image_id(reference: &str) -> String {
    reference.replace("repo/app:", "sha:")
}

pub(super) fn find<'a>(snapshot: &'a mut Snapshot, id: &str) -> &'a mut Container {
    snapshot.containers.iter_mut().find(|container| container.id == id).unwrap()
}

fn short(effect: &Effect) -> String {
    let verb = effect.verb();
    match effect {
        Effect::Pull { image, .. } => format!("{verb:?} {image}"),
        Effect::Fence { container, attempt, .. } => format!("{verb:?} {container} {attempt}"),
        Effect::Create { container, attempt, image, .. } => {
            let of = image.as_ref().map_or(String::new(), |image| format!(" of {}", image.id));
            format!("{verb:?} {container} {attempt}{of}")
        }
        Effect::Respec { container, to, .. } => format!("{verb:?} {container} {to}"),
        Effect::Gate { gate } => format!("{verb:?} {gate:?}"),
        Effect::Standby { container, image, .. } => {
            let of = image.as_ref().map_or(String::new(), |image| format!(" of {}", image.id));
            format!("{verb:?} {container}{of}")
        }
        Effect::PreStop { id, .. }
        | Effect::StopStandby { id, .. }
        | Effect::Stop { id, .. }
        | Effect::Start { id, .. }
        | Effect::Remove { id, .. } => format!("{verb:?} {id}"),
    }
}
