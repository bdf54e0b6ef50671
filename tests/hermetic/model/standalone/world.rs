//! The state of a world without an API server: containers, sandbox, clock and future events. Does not decide what a
//! call of the agent or an event does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use inplace::operation::effect::Effect;
use inplace::operation::snapshot::{Container, Owner, Sandbox, Snapshot, State};
use jiff::{SignedDuration, Timestamp};

use super::scenario::{Fate, Image, Scenario};
use crate::model::hooks::{self, Forgetful};
use crate::model::{Dice, epoch, ms, pod};

/// How long an operation waits for the state of a container.
const UNCLEAR: SignedDuration = SignedDuration::from_secs(5);

/// Planted defects. The checks must detect each of them.
#[derive(Clone, Copy, Default)]
pub(super) struct Sabotage {
    pub(super) fences_hold_nothing: bool,
    pub(super) journal_is_not_written: bool,
    pub(super) hooks: Forgetful,
}

#[derive(Clone, Debug)]
pub(super) struct Instance {
    pub(super) seen: Container,
    /// True when a Stop by the agent ended it.
    pub(super) stopped_by_us: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Exit(String),
    KubeletSync,
    KubeletCreates { name: String, attempt: u32 },
    KubeletStarts(String),
    Late(Effect),
    Sandbox(Fate),
    Swept,
    Meddled,
}

pub(super) struct World {
    pub(super) scenario: Scenario,
    pub(super) sabotage: Sabotage,
    pub(super) now: Timestamp,
    pub(super) dice: Dice,
    pub(super) ids: u32,
    pub(super) instances: Vec<Instance>,
    pub(super) sandbox: Option<Sandbox>,
    pub(super) events: Vec<(Timestamp, Event)>,
    /// The agent's starts that happened, by container name.
    pub(super) started: BTreeMap<String, u32>,
    /// True when the state of containers is unknown for longer than an operation waits.
    pub(super) stays_unclear: bool,
    pub(super) pre_stopped: BTreeSet<String>,
    pub(super) felt: bool,
    pub(super) hooks: hooks::Hooks,
    pub(super) broken: Option<String>,
}

impl World {
    pub(super) fn new(scenario: Scenario, sabotage: Sabotage) -> Self {
        let owner = match (scenario.kubelet, scenario.cleans_up) {
            (true, _) => Owner::Kubelet,
            (false, true) => Owner::NodeRun,
            (false, false) => Owner::Nobody,
        };
        let sandbox = Some(Sandbox { id: "sandbox-1".into(), pod: pod(), ready: true, owner });
        let dice = Dice(scenario.seed);
        let hooks = hooks::Hooks::new(scenario.pre_hook, scenario.post_hook);
        let stays_unclear = scenario.fog.is_some_and(|(_, long)| ms(long) > UNCLEAR);
        let mut world = Self {
            scenario,
            sabotage,
            now: epoch(),
            dice,
            ids: 0,
            instances: Vec::new(),
            sandbox,
            events: Vec::new(),
            started: BTreeMap::new(),
            stays_unclear,
            pre_stopped: BTreeSet::new(),
            felt: false,
            hooks,
            broken: None,
        };
        for index in 0..world.scenario.swaps.len() {
            let name = format!("c{index}");
            for attempt in 0..3 {
                let image_id = if attempt < 2 { "sha:older" } else { "sha:old" };
                let id = world.create(&name, attempt, image_id, false, None);
                let instance = world.instance(&id).unwrap();
                instance.seen.started_at = Some(epoch());
                if attempt < 2 {
                    instance.seen.state = State::Exited;
                    instance.seen.finished_at = Some(epoch());
                } else {
                    instance.seen.state = State::Running;
                }
            }
        }
        if let Some(at) = world.scenario.dies_at {
            world.at(at, Event::Exit("id-3".into()));
        }
        if let Some((at, fate)) = world.scenario.sandbox {
            world.at(at, Event::Sandbox(fate));
        }
        if let Some(at) = world.scenario.meddled_at {
            world.at(at, Event::Meddled);
        }
        if let Some(at) = world.scenario.swept_at {
            world.at(at, Event::Swept);
        }
        if world.scenario.kubelet {
            world.at(1, Event::KubeletSync);
        }
        world
    }

    pub(super) fn within(&self, span: Option<(i64, i64)>) -> bool {
        crate::model::within(self.now, span)
    }

    pub(super) fn away(&self) -> bool {
        self.within(self.scenario.away)
    }

    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.dice.roll(sides)
    }

    pub(super) fn roll_ms(&mut self, least: i64, most: i64) -> i64 {
        self.dice.ms(least, most)
    }

    pub(super) fn at(&mut self, delay: i64, event: Event) {
        self.events.push((self.now + ms(delay), event));
    }

    pub(super) fn instance(&mut self, id: &str) -> Option<&mut Instance> {
        self.instances.iter_mut().find(|instance| instance.seen.id == id)
    }

    pub(super) fn running(&self, name: &str) -> usize {
        let runs = |instance: &&Instance| {
            !instance.seen.fence && instance.seen.name == name && instance.seen.state == State::Running
        };
        self.instances.iter().filter(runs).count()
    }

    pub(super) fn violate(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub(super) fn image(&self, image_id: &str) -> Image {
        if image_id == "sha:new" { self.scenario.new_image } else { self.scenario.old_image }
    }

    pub(super) fn snapshot(&mut self) -> Snapshot {
        let mut containers: Vec<_> = self.instances.iter().map(|instance| instance.seen.clone()).collect();
        if self.within(self.scenario.fog) {
            let unclear = containers.iter_mut().filter(|container| container.state == State::Running);
            unclear.for_each(|container| container.state = State::Unknown);
        }
        if !containers.is_empty() {
            let by = usize::try_from(self.roll(64)).unwrap() % containers.len();
            containers.rotate_left(by);
        }
        Snapshot::of_runtime(self.sandbox.clone(), containers)
    }

    /// True when the state of running containers is unknown, and has been for as long as an operation waits.
    pub(super) fn has_been_unclear(&self) -> bool {
        let since = self.scenario.fog.map(|(from, _)| epoch() + ms(from));
        self.within(self.scenario.fog) && since.is_some_and(|since| self.now >= since + UNCLEAR)
    }

    pub(super) fn reserved(&self, name: &str, attempt: u32) -> bool {
        let holds = |instance: &Instance| !(instance.seen.fence && self.sabotage.fences_hold_nothing);
        self.instances
            .iter()
            .any(|instance| instance.seen.name == name && instance.seen.attempt == attempt && holds(instance))
    }

    pub(super) fn create(
        &mut self,
        name: &str,
        attempt: u32,
        image_id: &str,
        fence: bool,
        by: Option<&str>,
    ) -> String {
        self.ids += 1;
        let id = format!("id-{}", self.ids);
        let seen = Container {
            id: id.clone(),
            name: name.into(),
            fence,
            holder: false,
            standby: false,
            attempt,
            state: State::Created,
            image: image_id.replace("sha", "repo/app"),
            image_id: image_id.into(),
            spec_hash: String::new(),
            operation: by.map(str::to_owned),
            created_at: self.now,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            start_error: None,
            grace: Duration::from_secs(self.scenario.grace),
            has_pre_stop: self.scenario.pre_stop,
            ports: Vec::new(),
        };
        self.instances.push(Instance { seen, stopped_by_us: false });
        id
    }

    /// Simulates the start of `id` by the runtime; false when the image does not start.
    pub(super) fn start(&mut self, id: &str) -> bool {
        let now = self.now;
        let image_id = self.instance(id).unwrap().seen.image_id.clone();
        let image = self.image(&image_id);
        if image == Image::NeverStarts {
            if self.roll(2) == 0 {
                let instance = self.instance(id).unwrap();
                instance.seen.state = State::Exited;
                instance.seen.exit_code = 128;
            }
            return false;
        }
        let instance = self.instance(id).unwrap();
        instance.seen.state = State::Running;
        instance.seen.started_at = Some(now);
        let name = instance.seen.name.clone();
        if let Image::DiesAfter(after) = image {
            self.at(after, Event::Exit(id.to_owned()));
        }
        // The other program may act between an observation and a start.
        if self.running(&name) > 1 && self.scenario.meddled_at.is_none() {
            self.violate(format!("{} of {name} run at once", self.running(&name)));
        }
        true
    }

    pub(super) fn exit(&mut self, id: &str, by_us: bool) {
        let now = self.now;
        if let Some(instance) = self.instance(id).filter(|instance| instance.seen.state == State::Running) {
            instance.seen.state = State::Exited;
            instance.seen.finished_at = Some(now);
            instance.seen.exit_code = 1;
            instance.stopped_by_us = by_us;
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
}
