//! Notes: decisions that change only the operation's own state, and their application to it. A
//! note has no effect on the pod.

use jiff::Timestamp;

use crate::api::status::{ContainerInstance, Step};
use crate::operation::effect::Verb;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::replacement::Replacement;
use crate::operation::snapshot::{Container, Snapshot};
use crate::operation::standby;
use crate::operation::startup;
use crate::operation::state::{Operation, Reached, Target};
use crate::operation::unclear::Unclear;

/// A decision that changes only the operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The next stage begins.
    Step(Step),
    /// The pod no longer receives traffic through its gate.
    Drained(Timestamp),
    /// Nothing sends the pod traffic any more; `None` when that is no longer true.
    Confirmed(Option<Timestamp>),
    /// Another client has opened the gate: the drain starts again.
    Reopened,
    /// All containers are prepared, and wait for the other pods of the group.
    Prepared(Timestamp),
    /// All containers have stopped, and wait for the other pods of the group.
    AtBarrier(Timestamp),
    /// A container cannot be replaced: the others of the pod do not wait for the other pods of the group any more.
    GroupFailed,
    /// The instance that is to be replaced has ended.
    Stopped(String, Timestamp),
    /// The kubelet created an instance of its own, or stopped the one that this program created. The replacement
    /// continues with another instance to replace and another attempt number.
    Overtaken {
        /// The name of the container.
        name: String,
        /// The ID of the instance that is to be replaced now.
        replaces: String,
        /// The attempt number of the new instance.
        attempt: u32,
        /// What the kubelet did.
        by: Overtaking,
    },
    /// The state of the standby of a container.
    Standby(String, standby::Change),
    /// The kubelet has reported the new instance of a container as created and not started.
    ReportedUnstarted(String),
    /// No fence can be created for a container that has stopped: it is created without one.
    Unfenced(String),
    /// The kubelet's hash of the changed spec: container, hash.
    Hashed(String, String),
    /// The new instance of a container runs.
    Reached(String, Reached),
    /// The instance of a container whose state the runtime cannot report; `None` when it can again.
    Unclear(String, Option<Unclear>),
    /// The new instance of a container does not count as running any more.
    NotRunning(String),
    /// The new instance has stayed up for the required time.
    Proven(String, Timestamp),
    /// What the kubelet reports about the startup probe of the new instance of a container.
    Startup(String, startup::Startup),
    /// From here on, roll back.
    RollBack(Failure),
    /// The rollback of one container.
    Back(String, Replacement),
    /// The kubelet restarted a container that was not touched yet: its new instance is to be replaced now.
    Rebased(Box<Container>),
    /// The pod runs in another sandbox, where these container instances have reached what was requested.
    Moved(String, Vec<Container>),
    /// Only the cleanup is left.
    End(Outcome),
}

/// What a kubelet did to a replacement that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overtaking {
    /// It created an instance of its own.
    OwnInstance,
    /// It stopped the instance created here, because it had not read the changed spec yet.
    OldSpec,
    /// It stopped the instance created here, because a probe was due before the start.
    Probe,
}

impl Note {
    /// The note that `instance`, observed running in `snapshot`, is the result that `target` was to reach.
    pub(super) fn reached(
        target: &Target,
        instance: &Container,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Self {
        let reached = Reached {
            to: instance.reported(),
            stopped_at: target.stopped_at.or_else(|| target.ended(snapshot)),
            started_at: instance.started_at,
            counts_from: Some(instance.started_at.unwrap_or(instance.created_at).min(now)),
            ready_at: None,
            startup: None,
        };
        Note::Reached(target.name.clone(), reached)
    }
}

impl Note {
    /// True when a kubelet's report counts against a container. Such a report must be confirmed first.
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
    /// Applies a note to the operation.
    pub fn note(&mut self, note: Note) {
        match note {
            Note::Step(step) => self.step = step,
            Note::Drained(at) => self.drain.iter_mut().for_each(|drain| drain.left_at = Some(at)),
            Note::Confirmed(at) => self.drain.iter_mut().for_each(|drain| drain.confirmed_at = at),
            Note::Reopened => {
                if let Some(drain) = &mut self.drain {
                    (drain.closed_at, drain.left_at, drain.confirmed_at) = (None, None, None);
                }
            }
            Note::Prepared(at) => self.group.iter_mut().for_each(|group| group.prepared_at = Some(at)),
            Note::AtBarrier(at) => self.group.iter_mut().for_each(|group| group.stopped_at = Some(at)),
            Note::GroupFailed => self.group.iter_mut().for_each(|group| group.has_failed = true),
            Note::Stopped(name, at) => self.change(&name, |target| target.stopped_at = Some(at)),
            Note::Overtaken { name, replaces, attempt, by } => {
                self.measure_anew();
                // A failed start says nothing about the next instance.
                self.last_failure.take_if(|last| last.verb == Verb::Start && last.container == name);
                if by == Overtaking::Probe {
                    let ended = attempt.saturating_sub(1);
                    let why = "probably because a probe of it was due before its start";
                    self.remark(format!("{name}: the kubelet ended attempt {ended}, {why}"));
                }
                if let Some(target) = self.target_mut(&name) {
                    target.under_way().overtaken(replaces, attempt, by);
                    target.reached = None;
                }
            }
            Note::Standby(name, change) => {
                self.change(&name, |target| target.standby.get_or_insert_default().apply(change));
            }
            Note::ReportedUnstarted(name) => {
                self.change(&name, |target| target.under_way().reported_unstarted = true);
            }
            Note::Unfenced(name) => self.change(&name, |target| target.under_way().unfenced = true),
            Note::Hashed(name, hash) => self.change(&name, |target| target.made_hash = hash),
            Note::Reached(name, reached) => self.change(&name, |target| target.reached = Some(reached)),
            Note::Unclear(name, unclear) => self.change(&name, |target| target.unclear = unclear),
            Note::NotRunning(name) => {
                self.measure_anew();
                self.change(&name, |target| target.reached = None);
            }
            Note::Proven(name, at) => {
                if let Some(reached) = self.reached(&name) {
                    reached.ready_at = Some(at);
                }
            }
            Note::Startup(name, startup) => {
                if let Some(reached) = self.reached(&name) {
                    reached.startup = Some(startup);
                }
            }
            Note::Rebased(instance) => {
                if let Some(target) = self.target_mut(&instance.name) {
                    target.restarts_before_touch = target.restarts_before_touch.saturating_add(1);
                    target.forward = Replacement::of(instance.id.clone(), instance.attempt.saturating_add(1));
                    target.from =
                        ContainerInstance { image: target.from.image.clone(), ..instance.reported() };
                    target.from_hash = instance.spec_hash;
                    target.change.iter_mut().for_each(|change| change.settled = true);
                }
            }
            Note::Moved(sandbox_id, instances) => self.moved(sandbox_id, instances),
            Note::RollBack(failure) => {
                self.step = Step::Rollback;
                self.last_failure = None;
                self.rollback_cause = Some(failure);
            }
            Note::Back(name, replacement) => {
                if let Some(target) = self.target_mut(&name) {
                    target.back = Some(replacement);
                    target.reached = None;
                }
            }
            Note::End(outcome) => {
                // The failure of a stop stays recorded: a stop that fails is not repeated as often again.
                self.last_failure.take_if(|last_failure| last_failure.verb != Verb::Stop);
                self.ending = Some(outcome);
            }
        }
    }
}

impl Operation {
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Target)) {
        if let Some(target) = self.target_mut(name) {
            change(target);
        }
    }

    fn target_mut(&mut self, name: &str) -> Option<&mut Target> {
        self.targets.iter_mut().find(|target| target.name == name)
    }

    /// Continues in another sandbox, in which its kubelet has started these instances.
    fn moved(&mut self, sandbox_id: String, instances: Vec<Container>) {
        self.sandbox_id = sandbox_id;
        self.last_failure = None;
        self.measure_anew();
        for instance in instances {
            let rolls_back = self.rollback_cause.is_some();
            let Some(target) = self.target_mut(&instance.name) else { continue };
            let replacement = Replacement::of(String::new(), instance.attempt);
            if rolls_back {
                target.back = Some(replacement);
            } else {
                let respec_at = target.forward.respec_at;
                target.forward = Replacement { respec_at, ..replacement };
            }
            target.touched = true;
            target.reached = Some(Reached {
                to: instance.reported(),
                stopped_at: target.stopped_at,
                started_at: instance.started_at,
                counts_from: instance.started_at,
                ready_at: None,
                startup: None,
            });
        }
    }

    fn reached(&mut self, name: &str) -> Option<&mut Reached> {
        self.target_mut(name)?.reached.as_mut()
    }
}

impl Replacement {
    /// Continues with another instance to replace, and another attempt number.
    fn overtaken(&mut self, replaces: String, attempt: u32, by: Overtaking) {
        (self.replaces, self.attempt, self.reported_unstarted) = (replaces, attempt, false);
        match by {
            Overtaking::OwnInstance => {}
            Overtaking::OldSpec => self.cut_shorts = self.cut_shorts.saturating_add(1),
            Overtaking::Probe => self.ended_by_probe = self.ended_by_probe.saturating_add(1),
        }
    }
}
