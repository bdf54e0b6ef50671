//! Decisions that change only the operation.

use jiff::Timestamp;

use crate::api::status::{Incarnation, Step};
use crate::operation::effect::Verb;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::snapshot::{Container, Snapshot};
use crate::operation::state::{Operation, Reached, Replacement, Target};

/// A decision that changes only the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// Another stage begins.
    Step(Step),
    /// The pod gets no traffic any more.
    Drained(Timestamp),
    /// Nothing sends the pod traffic any more; `None`: something does again.
    Confirmed(Option<Timestamp>),
    /// The life from before has ended.
    Stopped(String, Timestamp),
    /// Its kubelet has put another life in the place of the one that is to be replaced, and that has ended too.
    Overtaken {
        /// The container.
        name: String,
        /// The life to be replaced now.
        replaces: String,
        /// The attempt of the new one.
        attempt: u32,
        /// True when what has ended was created here.
        cut_short: bool,
    },
    /// What its kubelet makes of the changed spec carries this hash.
    Hashed(String, String),
    /// The new life of a container runs.
    Reached(String, Reached),
    /// It has stayed up long enough.
    Proven(String, Timestamp),
    /// From here on back to what ran before.
    RollBack(Failure),
    /// The way back of one container.
    Back(String, Replacement),
    /// Its kubelet has started a container again that was not touched yet: that life is to be replaced now.
    Rebased(Box<Container>),
    /// The pod runs in another sandbox, where these container instances have reached what was asked for.
    Moved(String, Vec<Container>),
    /// Nothing is left but to clean up.
    End(Outcome),
}

impl Note {
    /// That `instance`, seen running in `snapshot`, is what `target` was to come to.
    pub(super) fn reached(
        target: &Target,
        instance: &Container,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Self {
        let reached = Reached {
            to: instance.incarnation(),
            stopped_at: target.stopped_at.or_else(|| target.ended(snapshot)),
            started_at: instance.started_at,
            counts_from: Some(instance.started_at.unwrap_or(instance.created_at).min(now)),
            ready_at: None,
        };
        Note::Reached(target.name.clone(), reached)
    }
}

impl Note {
    /// True when what a kubelet told speaks against a container: to be confirmed first.
    pub fn needs_confirmation(&self) -> bool {
        let unready = |failure: &Failure| matches!(failure, Failure::NotReady { .. });
        match self {
            Self::RollBack(failure) => unready(failure),
            Self::End(Outcome::Failed { failure, then, .. }) => {
                then.as_ref().map_or(unready(failure), unready)
            }
            _ => false,
        }
    }
}

impl Operation {
    /// Takes a decision in.
    pub fn note(&mut self, note: Note) {
        let target = |targets: &mut Vec<Target>, name: &str| targets.iter().position(|t| t.name == name);
        match note {
            Note::Step(step) => self.step = step,
            Note::Drained(at) => self.drain.iter_mut().for_each(|drain| drain.left_at = Some(at)),
            Note::Confirmed(at) => self.drain.iter_mut().for_each(|drain| drain.confirmed_at = at),
            Note::Stopped(name, at) => {
                if let Some(index) = target(&mut self.targets, &name) {
                    self.targets[index].stopped_at = Some(at);
                }
            }
            Note::Overtaken { name, replaces, attempt, cut_short } => {
                self.measure_anew();
                if let Some(index) = target(&mut self.targets, &name) {
                    let replacement = self.targets[index].under_way();
                    let cut_shorts = replacement.cut_shorts.saturating_add(u32::from(cut_short));
                    *replacement = Replacement { replaces, attempt, cut_shorts, ..replacement.clone() };
                    self.targets[index].reached = None;
                }
            }
            Note::Hashed(name, hash) => {
                if let Some(index) = target(&mut self.targets, &name) {
                    self.targets[index].made_hash = hash;
                }
            }
            Note::Reached(name, reached) => {
                if let Some(index) = target(&mut self.targets, &name) {
                    self.targets[index].reached = Some(reached);
                }
            }
            Note::Proven(name, at) => {
                if let Some(index) = target(&mut self.targets, &name)
                    && let Some(reached) = &mut self.targets[index].reached
                {
                    reached.ready_at = Some(at);
                }
            }
            Note::Rebased(instance) => {
                if let Some(index) = target(&mut self.targets, &instance.name) {
                    let target = &mut self.targets[index];
                    target.rebases = target.rebases.saturating_add(1);
                    target.forward = Replacement::of(instance.id.clone(), instance.attempt.saturating_add(1));
                    target.from = Incarnation { image: target.from.image.clone(), ..instance.incarnation() };
                    target.from_hash = instance.spec_hash;
                    target.change.iter_mut().for_each(|change| change.settled = true);
                }
            }
            Note::Moved(sandbox_id, instances) => {
                self.sandbox_id = sandbox_id;
                self.last_failure = None;
                for instance in instances {
                    let Some(index) = target(&mut self.targets, &instance.name) else { continue };
                    let target = &mut self.targets[index];
                    let replacement = Replacement::of(String::new(), instance.attempt);
                    if self.turned_back.is_some() {
                        target.back = Some(replacement);
                    } else {
                        let respec_at = target.forward.respec_at;
                        target.forward = Replacement { respec_at, ..replacement };
                    }
                    target.touched = true;
                    target.reached = Some(Reached {
                        to: instance.incarnation(),
                        stopped_at: target.stopped_at,
                        started_at: instance.started_at,
                        counts_from: instance.started_at,
                        ready_at: None,
                    });
                }
            }
            Note::RollBack(failure) => {
                self.step = Step::Rollback;
                self.last_failure = None;
                self.turned_back = Some(failure);
            }
            Note::Back(name, replacement) => {
                if let Some(index) = target(&mut self.targets, &name) {
                    self.targets[index].back = Some(replacement);
                    self.targets[index].reached = None;
                }
            }
            Note::End(outcome) => {
                // What cannot be stopped is not asked for as often again.
                self.last_failure.take_if(|last_failure| last_failure.verb != Verb::Stop);
                self.ending = Some(outcome);
            }
        }
    }
}
