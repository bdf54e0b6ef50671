//! The runtime and the API server of a world, and the agent's snapshot of them. Decides nothing for the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use inplace::operation::effect::Effect;
use inplace::operation::snapshot::{
    Container, Declared, DeclaredContainer, Gate, GroupSignal, Owner, PullPolicy, Sandbox, Snapshot, State,
    UserSource,
};
use inplace::operation::spec_hash;
use inplace::operation::standby::counts_sockets;
use inplace::operation::state::Operation;
use jiff::Timestamp;

use super::Sabotage;
use super::kubelet::Kubelet;
use super::names::{ALIAS, NEW, OLD, index_of, name_of, port_of};
use super::scenario::{Image, Scenario};
use crate::model::{Dice, epoch, ms, pod, within};

/// One container in the simulated runtime.
pub(super) type Instance = Container;

/// What a container is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    Instance,
    Fence,
    Standby,
}

/// An event in the future of the world.
#[derive(Clone, Debug)]
pub(super) enum Event {
    Exit(String),
    Relist,
    Relook,
    Sync,
    Act { generation: u32 },
    Killed { id: String, generation: u32 },
    Creates { generation: u32 },
    Starts { id: String, generation: u32 },
    Tells,
    Probe,
    KubeletGoes,
    KubeletComes,
    Late(Effect),
    Deleted,
    Stops,
    Vanishes,
    Swept,
}

/// The pod in the API server.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Api {
    pub(super) images: Vec<String>,
    pub(super) gate: Gate,
    pub(super) deleting: bool,
    pub(super) reported: Vec<Reported>,
}

/// The kubelet's report about one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reported {
    pub(super) id: Option<String>,
    pub(super) running: bool,
    pub(super) unstarted: bool,
    pub(super) ready: bool,
    pub(super) restarts: u32,
    pub(super) image_id: String,
}

#[expect(clippy::struct_excessive_bools, reason = "facts, each by itself")]
pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) sabotage: Sabotage,
    pub(super) now: Timestamp,
    pub(super) dice: Dice,
    ids: u32,
    pub(super) instances: Vec<Instance>,
    pub(super) sandbox: Option<Sandbox>,
    events: Vec<(Timestamp, Event)>,
    pub(super) api: Api,
    history: Vec<(Timestamp, Api)>,
    /// The state of the API server that the agent has received so far.
    seen_at: Timestamp,
    /// Until when a restarted agent has not received the pod from the API server.
    pub(super) unsynced_until: Timestamp,
    /// What the agent knows about the group restart that the pod is part of.
    pub(super) group: GroupSignal,
    pub(super) kubelet: Kubelet,
    pub(super) gate_closed_at: Option<Timestamp>,
    /// True once an instance was created here although the kubelet was expected to create it.
    pub(super) helped: bool,
    /// True when the last change of the gate got no successful response.
    pub(super) gate_failed: bool,
    /// Set when a change of the spec arrived after it had been given up.
    pub(super) late_respec: bool,
    pub(super) pre_stopped: BTreeSet<String>,
    /// True once an effect of the agent could affect a running container.
    pub(super) felt: bool,
    pub(super) late: bool,
    pub(super) broken: Option<String>,
    pub(super) log: Vec<String>,
}

impl World {
    pub(super) fn new(scenario: Scenario, sabotage: Sabotage) -> Self {
        let sandbox = Sandbox { id: "sandbox-1".into(), pod: pod(), ready: true, owner: Owner::Kubelet };
        let count = scenario.swaps.len();
        let api = Api {
            images: vec![OLD.to_owned(); count],
            gate: Gate::Open,
            deleting: false,
            reported: vec![Reported::default(); count],
        };
        let mut world = Self {
            sabotage,
            now: epoch() - ms(3_600_000),
            dice: Dice(scenario.seed),
            ids: 0,
            instances: Vec::new(),
            sandbox: Some(sandbox),
            events: Vec::new(),
            history: Vec::new(),
            api,
            seen_at: epoch(),
            unsynced_until: epoch(),
            group: GroupSignal::Unknown,
            kubelet: Kubelet::new(epoch()),
            gate_closed_at: None,
            helped: false,
            gate_failed: false,
            late_respec: false,
            pre_stopped: BTreeSet::new(),
            felt: false,
            late: false,
            broken: None,
            log: Vec::new(),
            scenario,
        };
        world.populate();
        world
    }

    /// Creates two instances of each container, and schedules the events of the scenario.
    fn populate(&mut self) {
        let ended = epoch() - ms(1000 * self.scenario.last_exit);
        for index in 0..self.scenario.swaps.len() {
            let name = name_of(index);
            let hash = self.hash(&name, OLD);
            for attempt in 0..2 {
                let id = self.create(&name, attempt, OLD, "sha:old", &hash, None, Kind::Instance);
                self.now += ms(1);
                let instance = self.instance(&id).unwrap();
                instance.started_at = Some(instance.created_at);
                instance.state = State::Running;
                if attempt == 0 {
                    (instance.state, instance.finished_at, instance.exit_code) =
                        (State::Exited, Some(ended), 1);
                }
            }
            for (image, seconds) in [OLD, ALIAS, NEW].into_iter().zip(self.scenario.back_off) {
                if let Some(seconds) = seconds {
                    let key = (name.clone(), image.to_owned());
                    self.kubelet.back_off.insert(key, (1000 * seconds, ended));
                }
            }
        }
        self.now = epoch();
        if self.scenario.down && self.scenario.swaps[0] {
            self.exit("id-2", 1);
        }
        self.history.push((epoch() - ms(10_000), self.api.clone()));
        self.kubelet_reports(true);
        let scenario = self.scenario.clone();
        self.at(1, Event::Relist);
        self.at(1, Event::Tells);
        if let Some(period) = scenario.startup_probe {
            self.at(period, Event::Probe);
        }
        let planned = [
            (scenario.dies_at, Event::Exit("id-2".into())),
            (scenario.deleted_at, Event::Deleted),
            (scenario.swept_at, Event::Swept),
            (scenario.kubelet_away.map(|(from, _)| from), Event::KubeletGoes),
            (scenario.kubelet_away.map(|(from, long)| from + long), Event::KubeletComes),
        ];
        for (when, event) in planned {
            if let Some(when) = when {
                self.at(when, event);
            }
        }
    }

    pub(super) fn at(&mut self, delay: i64, event: Event) {
        self.events.push((self.now + ms(delay), event));
    }

    pub(super) fn instance(&mut self, id: &str) -> Option<&mut Instance> {
        self.instances.iter_mut().find(|instance| instance.id == id)
    }

    /// The running instances of `name`.
    pub(super) fn running(&self, name: &str) -> Vec<&Instance> {
        let runs = |instance: &&Instance| {
            instance.is_instance() && instance.name == name && instance.state == State::Running
        };
        self.instances.iter().filter(runs).collect()
    }

    /// How many containers of `name` listen on their shared port, standbys included.
    pub(super) fn listening(&self, name: &str) -> usize {
        let listens = |instance: &&Instance| {
            let since = instance.started_at.filter(|_| !instance.fence && instance.state == State::Running);
            instance.name == name
                && since.is_some_and(|since| self.now >= since + ms(self.scenario.ready_after))
        };
        self.instances.iter().filter(listens).count()
    }

    /// The snapshot with the sockets that the process of a fence counts, if one runs.
    pub(super) fn count_sockets(&mut self, operation: &Operation, snapshot: Snapshot) -> Snapshot {
        let counted =
            counts_sockets(operation, &snapshot).is_some() && self.dice.roll(100) >= self.scenario.faults;
        let listeners = counted.then(|| {
            let of = |index: usize| (port_of(index), u32::try_from(self.listening(&name_of(index))).unwrap());
            (0..self.scenario.swaps.len()).map(of).filter(|(_, count)| *count > 0).collect()
        });
        Snapshot { listeners, ..snapshot }
    }

    pub(super) fn say(&mut self, what: impl FnOnce() -> String) {
        let at = self.now.duration_since(epoch()).as_millis();
        self.log.push(format!("{at:>7} {}", what()));
    }

    pub(super) fn violate(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    /// The hash that the kubelet writes on a container.
    pub(super) fn hash(&self, name: &str, image: &str) -> String {
        let computed = spec_hash::of(name, image);
        if self.scenario.old_kubelet { format!("1{computed}") } else { computed }
    }

    pub(super) fn image(&self, image_id: &str) -> Image {
        if image_id == "sha:new" { self.scenario.new_image } else { self.scenario.old_image }
    }

    pub(super) fn reserved(&self, name: &str, attempt: u32) -> bool {
        let holds = |instance: &Instance| !(instance.fence && self.sabotage.fences_hold_nothing);
        let same =
            |instance: &Instance| instance.name == name && instance.attempt == attempt && !instance.standby;
        self.instances.iter().any(|instance| same(instance) && holds(instance))
    }

    #[expect(clippy::too_many_arguments, reason = "what a container is")]
    pub(super) fn create(
        &mut self,
        name: &str,
        attempt: u32,
        image: &str,
        image_id: &str,
        spec_hash: &str,
        by: Option<&str>,
        kind: Kind,
    ) -> String {
        self.ids += 1;
        let id = format!("id-{}", self.ids);
        self.instances.push(Container {
            id: id.clone(),
            name: name.into(),
            fence: kind == Kind::Fence,
            holder: kind == Kind::Fence && !self.sabotage.fences_do_not_run,
            standby: kind == Kind::Standby,
            attempt,
            state: State::Created,
            image: image.into(),
            image_id: image_id.into(),
            spec_hash: spec_hash.into(),
            operation: by.map(str::to_owned),
            created_at: self.now,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            start_error: None,
            grace: Duration::from_secs(self.scenario.grace),
            has_pre_stop: self.scenario.pre_stop,
            ports: vec![port_of(index_of(name))],
        });
        id
    }

    /// Starts the process of a fence.
    pub(super) fn hold(&mut self, id: &str) {
        let now = self.now;
        if let Some(fence) = self.instance(id) {
            (fence.state, fence.started_at) = (State::Running, Some(now));
        }
    }

    /// Simulates the start of `id` by the runtime; false when the image does not start.
    pub(super) fn start(&mut self, id: &str) -> bool {
        let now = self.now;
        let image_id = self.instance(id).unwrap().image_id.clone();
        let image = self.image(&image_id);
        let instance = self.instance(id).unwrap();
        if image == Image::NeverStarts {
            (instance.state, instance.exit_code, instance.finished_at) = (State::Exited, 128, Some(now));
            return false;
        }
        instance.state = State::Running;
        instance.started_at = Some(now);
        let name = instance.name.clone();
        if let Image::DiesAfter(after) = image {
            self.at(after, Event::Exit(id.to_owned()));
        }
        let count = self.running(&name).len();
        if count > 1 {
            self.violate(format!("{count} of {name} run at once"));
        }
        true
    }

    pub(super) fn exit(&mut self, id: &str, code: i32) {
        let now = self.now;
        if let Some(instance) = self.instance(id).filter(|instance| instance.state == State::Running) {
            (instance.state, instance.finished_at, instance.exit_code) = (State::Exited, Some(now), code);
            self.say(|| format!("{id} exits"));
        }
    }

    pub(super) fn advance(&mut self, until: Timestamp) {
        while let Some(first) = (0..self.events.len()).min_by_key(|index| self.events[*index].0)
            && self.events[first].0 <= until
        {
            let (at, event) = self.events.swap_remove(first);
            self.now = self.now.max(at);
            self.happen(event);
        }
        self.now = self.now.max(until);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Exit(id) => self.exit(&id, 1),
            Event::Late(effect) => {
                let before = self.api.images.clone();
                let came = self.apply(&effect);
                self.late_respec |= before != self.api.images;
                self.say(|| format!("late {effect:?}: {came:?}"));
            }
            Event::Deleted => {
                self.say(|| "the pod is deleted".into());
                self.change(|api| api.deleting = true);
            }
            Event::Stops => {
                let ids: Vec<_> = self.instances.iter().map(|instance| instance.id.clone()).collect();
                for id in ids {
                    self.exit(&id, 137);
                }
                self.sandbox.iter_mut().for_each(|sandbox| sandbox.ready = false);
                if self.api.deleting {
                    self.at(1500, Event::Vanishes);
                }
            }
            Event::Vanishes => {
                self.instances.clear();
                self.sandbox = None;
            }
            Event::Swept => {
                // Of the containers of one name that do not run, the newest is kept. A fence
                // has the name that it reserves.
                let mut newest = BTreeMap::new();
                let idle = |instance: &&Instance| instance.state != State::Running && !instance.standby;
                for instance in self.instances.iter().filter(idle) {
                    newest.insert(instance.name.clone(), instance.id.clone());
                }
                self.instances.retain(|instance| {
                    instance.standby
                        || instance.state == State::Running
                        || newest[&instance.name] == instance.id
                });
            }
            event => self.kubelet_does(event),
        }
    }

    pub(super) fn change(&mut self, how: impl FnOnce(&mut Api)) {
        let before = self.api.clone();
        how(&mut self.api);
        if self.api != before {
            self.history.push((self.now, self.api.clone()));
        }
        if self.api.images != before.images || self.api.deleting != before.deleting {
            let lag = self.dice.ms(0, self.scenario.kubelet_lag);
            self.at(lag, Event::Sync);
        }
    }

    /// The pod as the API server had it at that time.
    pub(super) fn api_at(&self, at: Timestamp) -> &Api {
        &self.history.iter().rev().find(|(since, _)| *since <= at).unwrap_or(&self.history[0]).1
    }

    pub(super) fn api_away(&self) -> bool {
        within(self.now, self.scenario.api_away)
    }

    /// The agent's snapshot.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        let mut containers = self.instances.clone();
        if !containers.is_empty() {
            let by = usize::try_from(self.dice.roll(64)).unwrap() % containers.len();
            containers.rotate_left(by);
        }
        Snapshot {
            observed_at: None,
            sandbox: self.sandbox.clone(),
            containers,
            declared: self.declared(),
            absent: false,
            serving: None,
            listeners: None,
            probed: None,
            group: self.group,
        }
    }

    fn declared(&mut self) -> Option<Declared> {
        let current = !self.api_away();
        if self.now < self.unsynced_until {
            return None;
        }
        if current {
            let lag = self.dice.ms(0, self.scenario.lag);
            self.seen_at = self.seen_at.max(self.now - ms(lag));
        }
        let api = self.api_at(self.seen_at);
        let containers =
            api.images.iter().zip(&api.reported).enumerate().map(|(index, (image, reported))| {
                DeclaredContainer {
                    name: name_of(index),
                    sidecar: false,
                    image: image.clone(),
                    pull_policy: if self.scenario.pull.is_some() {
                        PullPolicy::Always
                    } else {
                        PullPolicy::IfNotPresent
                    },
                    restart_policy: self.scenario.policy,
                    has_restart_rules: false,
                    has_post_start: false,
                    is_probed: true,
                    readiness: None,
                    liveness: None,
                    has_startup_probe: self.scenario.startup_probe.is_some(),
                    startup_period: self.scenario.startup_probe.map(|_| Duration::from_secs(1)),
                    devices: Vec::new(),
                    env_from_objects: false,
                    sub_path_of_objects: false,
                    user: UserSource::Spec,
                    container_id: reported.id.clone(),
                    ready: reported.ready || self.sabotage.everything_is_ready,
                    started: reported.ready || self.sabotage.everything_is_ready,
                    running: reported.running,
                    unstarted: reported.unstarted,
                    restarts: reported.restarts,
                    image_id: reported.image_id.clone(),
                }
            });
        Some(Declared {
            current,
            deleting: api.deleting,
            ending: None,
            gate: api.gate.clone(),
            unready_since: self.gate_closed_at.filter(|_| api.gate != Gate::Open),
            has_pull_secrets: false,
            memory_limit: None,
            containers: containers.collect(),
        })
    }
}
