//! A simulated kubelet. It acts on its last observation, the newest container of a name decides, and it does one
//! thing after the other.
//!
//! Its behaviour and timing are measured, or read from the source (`computePodActions`, `doBackOff`, PLEG): an
//! observation of the runtime at intervals; a sync when the runtime or the spec has changed; kill, then create, then
//! start; a back-off per image.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use inplace::operation::snapshot::{RestartPolicy, State};
use jiff::{SignedDuration, Timestamp};

use super::names::{image_id, index_of, name_of};
use super::scenario::Image;
use super::world::{Event, Instance, Kind, Reported, World};
use crate::model::{ms, within};

/// The kubelet's own state.
pub(super) struct Kubelet {
    /// The containers in its last observation.
    cache: Vec<Instance>,
    /// The time of that observation.
    refreshed_at: Timestamp,
    /// When its last sync ended. It waits for a newer observation before the next sync.
    synced_at: Timestamp,
    /// The state of the API server that it has received so far.
    seen_at: Timestamp,
    /// The remaining actions of the current sync.
    acts: VecDeque<Act>,
    busy: bool,
    again: bool,
    failed: bool,
    /// Incremented when the kubelet restarts: actions in progress are then lost.
    generation: u32,
    /// The status that it will report. It is built when a sync begins.
    status: Vec<Reported>,
    /// The instances whose last probe counts as failed.
    failed_probes: BTreeSet<String>,
    /// The instances that it ended because of that.
    pub(super) ended_by_probe: BTreeSet<String>,
    /// By container and image: the back-off, and when it began.
    pub(super) back_off: BTreeMap<(String, String), (i64, Timestamp)>,
}

#[derive(Clone, Debug)]
enum Act {
    Kill(String),
    Start {
        name: String,
        attempt: u32,
        image: String,
        ended: Option<Timestamp>,
    },
    /// Terminates the whole pod for good.
    End,
}

impl Kubelet {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            cache: Vec::new(),
            refreshed_at: now,
            synced_at: now - ms(1),
            seen_at: now,
            acts: VecDeque::new(),
            busy: false,
            again: false,
            failed: false,
            generation: 0,
            status: Vec::new(),
            failed_probes: BTreeSet::new(),
            ended_by_probe: BTreeSet::new(),
            back_off: BTreeMap::new(),
        }
    }

    /// The remaining back-off of `image`. `None` when there is none; the start is then recorded for the next back-off.
    fn holds_back(
        &mut self,
        name: &str,
        image: &str,
        ended: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<i64> {
        let ended = ended?;
        let key = (name.to_owned(), image.to_owned());
        let known = self
            .back_off
            .get(&key)
            .filter(|(_, since)| ended.duration_since(*since) <= SignedDuration::from_secs(600));
        if let Some((long, _)) = known {
            let left = ended + ms(*long);
            if now < left {
                return Some(i64::try_from(left.duration_since(now).as_millis()).unwrap());
            }
        }
        let next = known.map_or(10_000, |(long, _)| (long * 2).min(300_000));
        self.back_off.insert(key, (next, now));
        None
    }
}

impl World {
    pub(super) fn kubelet_does(&mut self, event: Event) {
        let present = |world: &Self, generation: u32| generation == world.kubelet.generation;
        match event {
            Event::KubeletGoes => {
                self.say(|| "the kubelet goes".into());
                let generation = self.kubelet.generation + 1;
                let status = std::mem::take(&mut self.kubelet.status);
                self.kubelet = Kubelet { generation, status, ..Kubelet::new(self.kubelet.seen_at) };
            }
            Event::KubeletComes => {
                self.refresh();
                self.at(1, Event::Sync);
            }
            Event::Relist => {
                let next = self.dice.ms(20, self.scenario.relist);
                self.at(next, Event::Relist);
                if !self.kubelet_away()
                    && (self.refresh() || self.dice.roll(2) == 0 || std::mem::take(&mut self.kubelet.again))
                {
                    self.sync();
                }
            }
            Event::Relook
                if !self.kubelet_away() && (self.refresh() || std::mem::take(&mut self.kubelet.again)) =>
            {
                self.sync();
            }
            Event::Sync => self.sync(),
            Event::Act { generation } if present(self, generation) => self.act(),
            Event::Killed { id, generation } => {
                // A stop was requested in any case, whichever kubelet is running now.
                let code = if self.dice.roll(3) == 0 { 0 } else { 143 };
                self.exit(&id, code);
                if present(self, generation) {
                    self.kubelet.acts.pop_front();
                    self.act();
                }
            }
            Event::Creates { generation } if present(self, generation) => self.creates(),
            Event::Starts { id, generation } if present(self, generation) => {
                if self.instance(&id).is_some_and(|instance| instance.state == State::Created) {
                    let started = self.start(&id);
                    self.say(|| format!("kubelet starts {id}: {started}"));
                }
                self.kubelet.acts.pop_front();
                self.at(1, Event::Act { generation });
            }
            Event::Tells => {
                let next = self.dice.ms(20, 700);
                self.at(next, Event::Tells);
                if !self.kubelet_away() {
                    self.kubelet_reports(false);
                }
            }
            Event::Probe => {
                let period = self.scenario.startup_probe.unwrap_or(1000);
                self.at(period, Event::Probe);
                if !self.kubelet_away() {
                    self.probe();
                }
            }
            _ => {}
        }
    }

    /// Probes every container. The kubelet's own status decides whether a container runs: one that is reported as not
    /// running counts as failed without being probed.
    fn probe(&mut self) {
        for reported in self.kubelet.status.clone() {
            let Some(id) = reported.id else { continue };
            if reported.running {
                self.kubelet.failed_probes.remove(&id);
            } else if self.kubelet.failed_probes.insert(id.clone()) {
                self.say(|| format!("a probe of {id} counts as failed"));
            }
        }
    }

    fn kubelet_away(&self) -> bool {
        within(self.now, self.scenario.kubelet_away)
    }

    /// Observes the runtime. True when the change is a reason to act; a container that is only created is not.
    fn refresh(&mut self) -> bool {
        let states = |instances: &[Instance]| -> Vec<_> {
            let seen = |instance: &&Instance| instance.is_instance() && instance.state != State::Created;
            instances.iter().filter(seen).map(|instance| (instance.id.clone(), instance.state)).collect()
        };
        let before = states(&self.kubelet.cache);
        self.kubelet.cache.clone_from(&self.instances);
        self.kubelet.refreshed_at = self.now;
        before != states(&self.kubelet.cache)
    }

    /// Decides the actions, from the last observation.
    fn sync(&mut self) {
        if self.kubelet_away() || self.sandbox.as_ref().is_none_or(|sandbox| !sandbox.ready) {
            return;
        }
        if self.kubelet.busy || self.kubelet.refreshed_at <= self.kubelet.synced_at {
            self.kubelet.again = true;
            return;
        }
        if !self.api_away() {
            let lag = self.dice.ms(0, self.scenario.kubelet_lag);
            self.kubelet.seen_at = self.kubelet.seen_at.max(self.now - ms(lag));
        }
        let spec = self.api_at(self.kubelet.seen_at).clone();
        self.make_status();
        self.kubelet_reports(false);
        let mut acts = VecDeque::new();
        let mut starts = VecDeque::new();
        let mut keeps = false;
        for (index, image) in spec.images.iter().enumerate() {
            let name = name_of(index);
            let instances: Vec<_> = self
                .kubelet
                .cache
                .iter()
                .filter(|instance| instance.is_instance() && instance.name == name)
                .collect();
            let newest = instances.iter().max_by_key(|instance| (instance.created_at, instance.attempt));
            let ended = |instance: &&&Instance| instance.state == State::Exited;
            let last =
                instances.iter().filter(ended).max_by_key(|instance| (instance.created_at, instance.attempt));
            let start = Act::Start {
                name: name.clone(),
                attempt: newest.map_or(0, |newest| newest.attempt + 1),
                image: image.clone(),
                ended: last.and_then(|instance| instance.finished_at),
            };
            match newest {
                Some(newest) if newest.state == State::Running => {
                    if spec.deleting {
                        continue;
                    }
                    keeps = true;
                    let failed = self.kubelet.failed_probes.contains(&newest.id);
                    if failed {
                        self.kubelet.ended_by_probe.insert(newest.id.clone());
                    }
                    if failed || newest.spec_hash != self.hash(&name, image) {
                        acts.push_back(Act::Kill(newest.id.clone()));
                        starts.push_back(start);
                    }
                }
                _ if spec.deleting => {}
                Some(newest) if newest.state == State::Exited => {
                    let again = match self.scenario.policy {
                        RestartPolicy::Always => true,
                        RestartPolicy::OnFailure => newest.exit_code != 0,
                        RestartPolicy::Never => false,
                    };
                    if again {
                        starts.push_back(start);
                    }
                }
                _ => starts.push_back(start),
            }
        }
        if spec.deleting || (!keeps && starts.is_empty()) {
            acts.push_back(Act::End);
        }
        acts.extend(starts);
        if !acts.is_empty() {
            self.say(|| format!("kubelet: {acts:?}"));
        }
        self.kubelet.acts = acts;
        self.kubelet.busy = true;
        self.act();
    }

    /// The next action of a sync.
    fn act(&mut self) {
        let generation = self.kubelet.generation;
        let grace = 1000 * i64::try_from(self.scenario.grace).unwrap();
        match self.kubelet.acts.front().cloned() {
            None => {
                self.kubelet.busy = false;
                self.kubelet.synced_at = self.now;
                // It observes again after a successful sync.
                if !std::mem::take(&mut self.kubelet.failed) {
                    self.at(1, Event::Relook);
                }
            }
            Some(Act::Kill(id)) => {
                let takes = self.dice.ms(1, grace + 5);
                self.at(takes, Event::Killed { id, generation });
            }
            Some(Act::End) => {
                let takes = self.dice.ms(1, grace + 5);
                self.say(|| "kubelet ends the pod".into());
                self.at(takes, Event::Stops);
                self.kubelet.acts.clear();
            }
            Some(Act::Start { name, image, ended, .. }) => {
                let now = self.now;
                if let Some(left) = self.kubelet.holds_back(&name, &image, ended, now) {
                    self.say(|| format!("kubelet holds {name} of {image} back for {left} ms"));
                    let later = self.dice.ms(left, left + left / 2 + 1);
                    self.at(later, Event::Sync);
                    self.kubelet.acts.pop_front();
                    self.at(0, Event::Act { generation });
                } else {
                    let takes = self.dice.ms(1, 60 + self.scenario.pull.unwrap_or(0));
                    self.at(takes, Event::Creates { generation });
                }
            }
        }
    }

    fn creates(&mut self) {
        let generation = self.kubelet.generation;
        let Some(Act::Start { name, attempt, image, .. }) = self.kubelet.acts.front().cloned() else {
            return;
        };
        let id = image_id(&image);
        let unable = self.image(id) == Image::CannotBeCreated
            || self.sandbox.as_ref().is_none_or(|sandbox| !sandbox.ready);
        if unable || self.reserved(&name, attempt) {
            self.say(|| format!("kubelet cannot create {name} {attempt}"));
            let later = self.dice.ms(20, if unable { 15_000 } else { 1500 });
            self.at(later, Event::Sync);
            self.kubelet.failed = true;
            self.kubelet.acts.pop_front();
            self.at(0, Event::Act { generation });
            return;
        }
        let hash = self.hash(&name, &image);
        let id = self.create(&name, attempt, &image, id, &hash, None, Kind::Instance);
        self.say(|| format!("kubelet creates {name} {attempt} of {image} as {id}"));
        let takes = self.dice.ms(1, 60);
        self.at(takes, Event::Starts { id, generation });
    }

    /// Reports the observed status of the pod.
    pub(super) fn kubelet_reports(&mut self, first: bool) {
        if first {
            self.refresh();
            self.make_status();
        }
        if !self.api_away() {
            let reported = self.kubelet.status.clone();
            self.change(|api| api.reported = reported);
        }
    }

    fn make_status(&mut self) {
        self.kubelet.status =
            (0..self.scenario.swaps.len()).map(|index| self.report(&name_of(index))).collect();
    }

    fn report(&self, name: &str) -> Reported {
        let instances =
            self.kubelet.cache.iter().filter(|instance| instance.is_instance() && instance.name == name);
        let Some(newest) = instances.max_by_key(|instance| (instance.created_at, instance.attempt)) else {
            return self.api.reported[index_of(name)].clone();
        };
        let running = newest.state == State::Running;
        Reported {
            id: Some(newest.id.clone()),
            running,
            unstarted: newest.state == State::Created,
            ready: running && self.is_ready(newest),
            restarts: newest.attempt,
            image_id: newest.image_id.clone(),
        }
    }

    /// True when a probe of `instance` succeeds.
    pub(super) fn is_ready(&self, instance: &Instance) -> bool {
        let probed = instance.started_at.is_some_and(|at| self.now >= at + ms(self.scenario.ready_after));
        probed && self.image(&instance.image_id) != Image::NeverReady
    }
}
