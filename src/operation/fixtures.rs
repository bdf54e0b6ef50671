//! What the tests of the decisions share: a pod, requests for it, and a runtime that obeys unless told otherwise.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::api::request::Request;
use crate::operation::effect::{Class, Effect, ImageChoice, Learned, Trouble, Verb};
use crate::operation::next::{Next, next};
use crate::operation::outcome::Outcome;
use crate::operation::plan::Plan;
use crate::operation::preflight::{Admitted, Refusal, Runtime, Situation, Source, admit};
use crate::operation::snapshot::{Container, Owner, PodRef, Sandbox, Snapshot, State};
use crate::operation::state::Operation;

/// Milliseconds after the beginning.
pub(super) fn at(ms: i64) -> Timestamp {
    "2026-11-20T10:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_millis(ms)
}

/// A life of `name`, called `name-attempt`, of the image `repo/app:v1`.
pub(super) fn life(name: &str, attempt: u32, state: State) -> Container {
    Container {
        id: format!("{name}-{attempt}"),
        name: name.into(),
        fence: false,
        attempt,
        state,
        image: "repo/app:v1".into(),
        image_id: "sha:v1".into(),
        operation: None,
        created_at: at(-60_000),
        started_at: (state != State::Created).then(|| at(-60_000)),
        finished_at: (state == State::Exited).then(|| at(-50_000)),
        exit_code: 0,
        grace: Duration::from_secs(30),
        has_pre_stop: false,
    }
}

/// Containers `app` and `side`, each in its third life.
pub(super) fn pod(owner: Owner) -> Snapshot {
    let pod = PodRef { namespace: "default".into(), name: "web".into(), uid: "u-1".into() };
    let mut containers = Vec::new();
    for name in ["app", "side"] {
        containers.extend([0, 1].map(|attempt| life(name, attempt, State::Exited)));
        containers.push(life(name, 2, State::Running));
    }
    Snapshot { sandbox: Some(Sandbox { id: "sandbox-1".into(), pod, ready: true, owner }), containers }
}

/// Everything known where nothing stands in the way.
pub(super) fn situation(snapshot: Snapshot) -> Situation {
    let source = |name: &str| (name.to_owned(), Source { not_cloneable: None, image_present: true });
    Situation {
        snapshot,
        runtime: Runtime { name: "containerd".into(), version: "2.1.9".into() },
        sources: ["app", "side"].map(source).into(),
    }
}

/// Preflight of a request as it is written on a pod.
pub(super) fn ask(text: &str, situation: &Situation) -> Result<Admitted, Refusal> {
    admit(Request::parse(Some(text))?.unwrap(), situation)
}

/// What becomes of an effect.
pub(super) enum Answer {
    /// It happens.
    Obey,
    /// It happens, and the reply is lost.
    Lost,
    /// It does not happen.
    No(Class),
}

/// An operation and the runtime under it.
pub(super) struct Bench {
    pub(super) operation: Operation,
    pub(super) snapshot: Snapshot,
    pub(super) now: Timestamp,
    /// What was done, as in `Stop app-2`.
    pub(super) log: Vec<String>,
    /// Containers of this image end so many milliseconds after their start.
    pub(super) dies: Option<(&'static str, i64)>,
}

impl Bench {
    pub(super) fn new(text: &str, snapshot: Snapshot) -> Self {
        let operation = Plan::of(ask(text, &situation(snapshot.clone())).unwrap()).begin(at(0));
        Self { operation, snapshot, now: at(0), log: Vec::new(), dies: None }
    }

    /// To the end in a runtime that obeys.
    pub(super) fn obey(&mut self) -> Outcome {
        self.play(|_, _| Answer::Obey)
    }

    /// To the end, with `world` deciding what becomes of each effect.
    pub(super) fn play(&mut self, mut world: impl FnMut(&Effect, &mut Snapshot) -> Answer) -> Outcome {
        for _ in 0..10_000 {
            if let Some(outcome) = self.step(&mut world) {
                self.operation.finish(outcome.clone(), self.now);
                return outcome;
            }
        }
        panic!("no end: {:?}, {:?}", self.operation, self.log);
    }

    /// One decision and what follows from it.
    pub(super) fn step(
        &mut self,
        world: &mut impl FnMut(&Effect, &mut Snapshot) -> Answer,
    ) -> Option<Outcome> {
        self.let_die();
        match next(&self.operation, &self.snapshot, self.now) {
            Next::Note(note) => self.operation.note(note),
            Next::Wait(waiting) => self.now = waiting.until,
            Next::Done(outcome) => return Some(outcome),
            Next::Do(effect) => {
                self.operation.begin(&effect, self.now);
                self.log.push(short(&effect));
                self.now += SignedDuration::from_millis(10);
                let trouble = |class| Trouble { class, message: "the runtime said so".into() };
                let result = match world(&effect, &mut self.snapshot) {
                    Answer::Obey => Ok(self.happen(&effect)),
                    Answer::Lost => {
                        self.happen(&effect);
                        Err(trouble(Class::Away))
                    }
                    Answer::No(class) => Err(trouble(class)),
                };
                self.operation.record(&effect, result, self.now);
            }
        }
        None
    }

    fn let_die(&mut self) {
        let Some((image, after)) = self.dies else { return };
        let running = |life: &&mut Container| life.state == State::Running && life.image_id == image;
        for life in self.snapshot.containers.iter_mut().filter(running) {
            let end = life.started_at.unwrap() + SignedDuration::from_millis(after);
            if self.now >= end {
                (life.state, life.finished_at, life.exit_code) = (State::Exited, Some(end), 3);
            }
        }
    }

    fn happen(&mut self, effect: &Effect) -> Learned {
        let now = self.now;
        match effect {
            Effect::Pull { image, .. } => {
                let id = image.replace("repo/app:", "sha:");
                return Learned::Image(ImageChoice { reference: image.clone(), id });
            }
            Effect::Fence { container, source, attempt, image }
            | Effect::Create { container, source, attempt, image } => {
                let mut new = self.snapshot.by_id(source).unwrap().clone();
                new.fence = effect.verb() == Verb::Fence;
                new.id = format!("{container}-{}{attempt}", if new.fence { "fence-" } else { "" });
                new.attempt = *attempt;
                new.operation = Some(self.operation.request.id.clone());
                (new.state, new.created_at, new.started_at, new.finished_at) =
                    (State::Created, now, None, None);
                if let Some(image) = image {
                    (new.image, new.image_id) = (image.reference.clone(), image.id.clone());
                }
                self.snapshot.containers.push(new);
            }
            Effect::PreStop { .. } => {}
            Effect::Stop { id, .. } => {
                let old = find(&mut self.snapshot, id);
                (old.state, old.finished_at, old.exit_code) = (State::Exited, Some(now), 143);
            }
            Effect::Start { id, .. } => {
                let new = find(&mut self.snapshot, id);
                (new.state, new.started_at) = (State::Running, Some(now));
            }
            Effect::Remove { id, .. } => self.snapshot.containers.retain(|container| container.id != *id),
        }
        Learned::Nothing
    }
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
        Effect::PreStop { id, .. }
        | Effect::Stop { id, .. }
        | Effect::Start { id, .. }
        | Effect::Remove { id, .. } => format!("{verb:?} {id}"),
    }
}
