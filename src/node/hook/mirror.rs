//! Publishes a hook of an operation as a HookRun at the API server, for people to inspect: created when the hook
//! starts, updated on a best-effort basis, removed at the end.
//!
//! No operation waits for these writes. Writes are few: at most one per second, and one at the end. A failure is
//! logged once.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::api::annotation;
use crate::api::hook_run::{HookRun, HookRunSpec, HookRunStatus};
use crate::api::request::label_value;
use crate::cluster::error::Error;
use crate::cluster::hooks::HookRuns;
use crate::cluster::server::Server;
use crate::failure::Class;
use crate::operation::hook::{Hook, Moment};
use crate::operation::state::Operation;
use crate::process::backoff::Backoff;
use crate::process::log::chain;

/// The minimum interval between two writes.
const PACE: Duration = Duration::from_secs(1);
/// The pauses after writes that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));

/// After the hook has ended, how long the last write is retried while the API server is unreachable.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// The state to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Publication {
    status: HookRunStatus,
    fate: Fate,
}

/// Whether the HookRun object stays or is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The hook runs, or will run.
    Open,
    /// The object stays, for inspection.
    Kept,
    /// The object is deleted.
    Deleted,
}

/// The HookRun object of one hook. If it is dropped without [`Self::keep`] or [`Self::delete`], the object stays as
/// it is, for the next process.
#[derive(Debug)]
pub(super) struct Mirror {
    run: String,
    view: watch::Sender<Publication>,
}

impl Mirror {
    /// Creates the object in a task of its own.
    pub(super) fn open(server: Server, runs: HookRuns, object: HookRun, status: &HookRunStatus) -> Self {
        let run = object.name_any();
        let (view, updates) = watch::channel(Publication { status: status.clone(), fate: Fate::Open });
        tokio::spawn(
            Writer { server, runs, object, updates, uid: None, written: None, reported: false }.write(),
        );
        Self { run, view }
    }

    /// True if this is the object of `hook`.
    pub(super) fn is_of(&self, hook: &Hook) -> bool {
        self.run == hook.run
    }

    /// Publishes the progress of the hook.
    pub(super) fn publish(&self, status: &HookRunStatus) {
        self.view.send_replace(Publication { status: status.clone(), fate: Fate::Open });
    }

    /// Publishes the final status, and keeps the object.
    pub(super) fn keep(&self, status: &HookRunStatus) {
        self.view.send_replace(Publication { status: status.clone(), fate: Fate::Kept });
    }

    /// Deletes the object.
    pub(super) fn delete(&self) {
        self.view.send_modify(|view| view.fate = Fate::Deleted);
    }
}

/// The HookRun object for `hook` with this spec. `owner` is the uid of its pod at the API server.
pub(super) fn object(
    operation: &Operation,
    hook: &Hook,
    spec: HookRunSpec,
    node: &str,
    owner: &str,
) -> HookRun {
    let kind = match hook.moment {
        Moment::Before | Moment::Handover => annotation::PRE_INPLACE,
        Moment::After => annotation::POST_INPLACE,
    };
    let labels = [
        (annotation::NODE, node.to_owned()),
        (annotation::HOOK_TYPE, kind.to_owned()),
        (annotation::OPERATION, label_value(&operation.request.id)),
    ];
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: operation.pod.name.clone(),
        uid: owner.to_owned(),
        ..OwnerReference::default()
    };
    let mut object = HookRun::new(&hook.run, spec);
    object.metadata = ObjectMeta {
        namespace: Some(operation.pod.namespace.clone()),
        labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
        owner_references: Some(vec![owner]),
        ..object.metadata
    };
    object
}

/// The task that writes the HookRun of one hook.
struct Writer {
    server: Server,
    runs: HookRuns,
    object: HookRun,
    updates: watch::Receiver<Publication>,
    /// The uid of the object at the API server.
    uid: Option<String>,
    /// The last written status, and the time of that write.
    written: Option<(HookRunStatus, Instant)>,
    /// True once a failure was logged.
    reported: bool,
}

fn is_denied(error: &Error, view: &Publication) -> bool {
    error.class() == Class::Denied && view.fate == Fate::Open
}

/// What follows a write.
enum Then {
    /// More writes may follow.
    More,
    /// No write remains.
    Done,
}

impl Writer {
    async fn write(mut self) {
        let (mut backoff, mut ends) = (BACKOFF, None);
        loop {
            let view = self.updates.borrow_and_update().clone();
            // The sender is gone: no more updates will arrive.
            let alone = self.updates.has_changed().is_err();
            if alone && view.fate == Fate::Open {
                return;
            }
            match self.step(&view).await {
                Ok(Then::Done) => return,
                Ok(Then::More) => {
                    (backoff, ends) = (BACKOFF, None);
                    self.reported = false;
                    if !self.wait(&view).await {
                        return;
                    }
                }
                // An API server that starts denies what it permits a moment later.
                Err(error) if error.class().is_unavailable() || is_denied(&error, &view) => {
                    self.report(&error);
                    if view.fate != Fate::Open
                        && Instant::now() >= *ends.get_or_insert_with(|| Instant::now() + MAX_WAIT)
                    {
                        return;
                    }
                    sleep(backoff.pause()).await;
                }
                Err(error) => return self.report(&error),
            }
        }
    }

    /// Performs the next write.
    async fn step(&mut self, view: &Publication) -> Result<Then, Error> {
        let (namespace, name) = (self.object.namespace().unwrap_or_default(), self.object.name_any());
        let uid = match &self.uid {
            Some(uid) => uid.clone(),
            None => match self.make(&namespace, &name).await? {
                Some(uid) => self.uid.insert(uid).clone(),
                None => return Ok(Then::Done),
            },
        };
        if view.fate == Fate::Deleted {
            self.server.delete_hook_run(&namespace, &name, &uid).await?;
            return Ok(Then::Done);
        }
        if self.written.as_ref().is_none_or(|(written, _)| *written != view.status) {
            self.server.hook_run_status(&namespace, &name, &uid, &view.status).await?;
            self.written = Some((view.status.clone(), Instant::now()));
        }
        Ok(if view.fate == Fate::Kept { Then::Done } else { Then::More })
    }

    /// Creates the object, or finds the one that an earlier process created; returns `None` if another object has
    /// its name.
    async fn make(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let lacks_providers = self.object.spec.lacks_providers();
        let created =
            if lacks_providers { None } else { Some(self.server.create_hook_run(&self.object).await) };
        let made = match created {
            Some(Ok(made)) => {
                self.put_away_earlier(namespace, name).await;
                Some(made)
            }
            Some(Err(error)) if error.class() != Class::Refused => return Err(error),
            Some(Err(_)) | None => {
                let found = self.server.hook_run(namespace, name).await?;
                let ours = |found: &HookRun| {
                    found.labels().get(annotation::OPERATION)
                        == self.object.labels().get(annotation::OPERATION)
                };
                if !lacks_providers && !found.as_ref().is_some_and(ours) {
                    tracing::warn!(
                        namespace,
                        name,
                        "the HookRun cannot be created: another one of this name exists that does not belong \
                         to this operation"
                    );
                }
                found.filter(ours)
            }
        };
        Ok(made.and_then(|made| made.uid()))
    }

    /// Deletes the HookRuns of earlier operations on this pod, which were kept for inspection.
    async fn put_away_earlier(&self, namespace: &str, name: &str) {
        let pod = self.object.owner_references().first().map(|owner| owner.uid.as_str());
        let kind = self.object.labels().get(annotation::HOOK_TYPE);
        for run in self.runs.list() {
            let earlier = run.is_of_operation()
                && run.namespace().as_deref() == Some(namespace)
                && run.name_any() != name
                && run.labels().get(annotation::HOOK_TYPE) == kind
                && pod.is_some_and(|pod| run.owner_references().iter().any(|owner| owner.uid == pod));
            let uid = run.uid().unwrap_or_default();
            if earlier && let Err(error) = self.server.delete_hook_run(namespace, &run.name_any(), &uid).await
            {
                tracing::warn!(error = chain(&error), "a HookRun of an earlier operation cannot be deleted");
            }
        }
    }

    /// Waits until there is something else to write and the minimum interval has passed. Returns false if no update
    /// can arrive.
    async fn wait(&mut self, view: &Publication) -> bool {
        let due = self.written.as_ref().map_or_else(Instant::now, |(_, at)| *at + PACE);
        let mut fate = view.fate;
        while fate == Fate::Open && Instant::now() < due {
            tokio::select! {
                () = sleep_until(due) => {}
                changed = self.updates.changed() => {
                    if changed.is_err() {
                        return self.updates.borrow().fate != Fate::Open;
                    }
                    fate = self.updates.borrow_and_update().fate;
                }
            }
        }
        let status = self.written.as_ref().map(|(status, _)| status);
        let is_update = |seen: &Publication| seen.fate != Fate::Open || Some(&seen.status) != status;
        self.updates.wait_for(|seen| is_update(seen)).await.is_ok()
    }

    fn report(&mut self, error: &Error) {
        if !std::mem::replace(&mut self.reported, true) {
            tracing::warn!(error = chain(error), "the HookRun of a hook cannot be updated");
        }
    }
}
