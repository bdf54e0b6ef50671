//! What happens in a world without the agent: containers exit, a kubelet restarts them, other programs start and
//! remove containers, the sandbox changes.

use std::collections::BTreeMap;

use inplace::operation::snapshot::State;

use super::scenario::Fate;
use super::world::{Event, Instance, World};

impl World {
    pub(super) fn happen(&mut self, event: Event) {
        match event {
            Event::Exit(id) => self.exit(&id, false),
            Event::KubeletSync => self.kubelet_syncs(),
            Event::KubeletCreates { name, attempt } => {
                let again = self.roll_ms(20, 300);
                let swapped = self.scenario.swaps[name[1..].parse::<usize>().unwrap()];
                let image_id = if self.scenario.ahead && swapped { "sha:new" } else { "sha:old" };
                if self.sandbox.is_none() || self.reserved(&name, attempt) {
                    self.at(again, Event::KubeletSync);
                } else {
                    let id = self.create(&name, attempt, image_id, false, None);
                    let takes = self.roll_ms(1, 60);
                    self.at(takes, Event::KubeletStarts(id));
                }
            }
            Event::KubeletStarts(id) => {
                if self.instance(&id).is_some_and(|instance| instance.seen.state == State::Created) {
                    self.start(&id);
                }
                let again = self.roll_ms(20, 300);
                self.at(again, Event::KubeletSync);
            }
            Event::Late(effect) => {
                let _ = self.apply(&effect);
            }
            Event::Swept => {
                // A kubelet keeps the newest container of a name; a person may remove any.
                let mut newest = BTreeMap::new();
                for Instance { seen, .. } in self.instances.iter().filter(|instance| !instance.seen.fence) {
                    newest.insert(seen.name.clone(), seen.id.clone());
                }
                let mut instances = std::mem::take(&mut self.instances);
                instances.retain(|Instance { seen, .. }| {
                    let spared = newest.values().any(|id| *id == seen.id);
                    seen.state != State::Exited
                        || if self.scenario.kubelet { spared } else { self.roll(2) == 0 }
                });
                self.instances = instances;
            }
            Event::Meddled => {
                if self.running("c0") == 0 && self.sandbox.is_some() {
                    let instances = self.instances.iter().filter(|instance| instance.seen.name == "c0");
                    let attempt = instances.map(|instance| instance.seen.attempt).max().unwrap_or(0) + 2;
                    let id = self.create("c0", attempt, "sha:old", false, None);
                    self.start(&id);
                }
            }
            Event::Sandbox(fate) => {
                let ids: Vec<_> = self.instances.iter().map(|instance| instance.seen.id.clone()).collect();
                for id in ids {
                    self.exit(&id, false);
                }
                match fate {
                    Fate::Gone => {
                        self.sandbox = None;
                        self.instances.clear();
                    }
                    Fate::NotReady => self.sandbox.iter_mut().for_each(|sandbox| sandbox.ready = false),
                    Fate::Another => {
                        self.sandbox.iter_mut().for_each(|sandbox| sandbox.id = "sandbox-2".into());
                    }
                }
            }
        }
    }

    /// The newest container of a name decides. If it does not run, a new attempt is created
    /// some time after the observation.
    pub(super) fn kubelet_syncs(&mut self) {
        for index in 0..self.scenario.swaps.len() {
            let name = format!("c{index}");
            let instances = self
                .instances
                .iter()
                .map(|instance| &instance.seen)
                .filter(|seen| !seen.fence && seen.name == name);
            let newest = instances.max_by_key(|seen| (seen.created_at, seen.attempt));
            if newest.is_none_or(|newest| newest.state != State::Running) {
                let attempt = newest.map_or(0, |newest| newest.attempt + 1);
                let lag = self.roll_ms(1, 200);
                self.at(lag, Event::KubeletCreates { name, attempt });
                return;
            }
        }
        let again = self.roll_ms(5, 300);
        self.at(again, Event::KubeletSync);
    }
}
