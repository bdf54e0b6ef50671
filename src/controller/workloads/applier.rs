//! Applies the decision about one workload, in its order: each write once, each with the observed version as
//! precondition.
//!
//! Must not decide anything: whatever is not done is decided again by the next reconciliation.

use std::mem::discriminant;
use std::time::Duration;

use futures_util::future::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Value, json};

use crate::api::hook_run::HookRun;
use crate::api::{annotation, workload_key};
use crate::cluster::error::{Class, Error};
use crate::cluster::trim::Trimmed;
use crate::controller::disruptions::BudgetClaims;
use crate::controller::pods;
use crate::controller::queue::Outcome;
use crate::controller::workloads::Context;
use crate::controller::workloads::cache::kinds::CachedClaim;
use crate::controller::workloads::cache::{Deletion, Key, Made, PodEntry, RunOwner, Workload};
use crate::hook::check::prepare;
use crate::podtask::task::PodTask;
use crate::podtask::write::{PodPatch, VersionedRef};
use crate::process::clock;
use crate::process::log::chain;
use crate::workload::action::{self, Action, NewHookRun, Why};
use crate::workload::new_pod;
use crate::workload::report::Report;
use crate::workload::resize;
use crate::workload::revision::{self, Revision, Write};

/// How long the caches may take to contain an object that was created.
const UNTIL_SEEN: Duration = Duration::from_secs(5);

/// Writes of one kind at the same time.
const AT_ONCE: usize = 8;
/// Writes of one kind start with a batch of this size. Each further batch is twice as large, up to the largest: each write of
/// a batch has its own memory.
const FIRST_AT_ONCE: usize = 8;
const LARGEST_BATCH: usize = 256;

/// The result of a write that succeeded.
enum Done {
    /// The result is in the cache already, or no later step depends on it.
    Written,
    /// The object must be in the cache before the next reconciliation.
    Made(Made),
    /// An object of this name exists: the next reconciliation decides by what it is.
    Exists,
    /// The answer did not contain the pod, so its state is unconfirmed.
    Unconfirmed(VersionedRef),
    /// The new version of the workload.
    At(String),
}

/// Why a write was not done.
enum Not {
    /// Conflict: the object is not in the observed state. It is reconciled again, and nothing is reported.
    Stale,
    /// The result of the write is unconfirmed.
    Unknown(VersionedRef, String),
    /// The name of a revision is taken by a `ControllerRevision` of another owner.
    Collided(String),
    /// The write failed.
    Failed(String),
}

/// What was not done that later writes depend on.
#[derive(Clone, Copy, Debug, Default)]
struct Undone {
    /// The write of a revision, so that nothing else was done.
    revision: bool,
    /// A write that a retry consists of.
    retry: bool,
}

/// The writes of one reconciliation.
pub(super) struct Applier<'a> {
    pub(super) context: &'a Context,
    pub(super) key: &'a Key,
    pub(super) workload: &'a Workload,
    pods: &'a [PodEntry],
    /// Claims are made one after the other: each changes the version that is the precondition of the next.
    claims: tokio::sync::Mutex<BudgetClaims<'a>>,
    /// The newest version of the workload that was observed.
    pub(super) version: String,
    /// At least one object was not in the observed state.
    pub(super) stale: bool,
    /// The first failure, and whether it was a failure of scaling.
    pub(super) failure: Option<(bool, String)>,
    /// The name of a revision is taken by a `ControllerRevision` of another owner.
    collided: bool,
    undone: Undone,
    made: Vec<Made>,
    unconfirmed: Vec<VersionedRef>,
}

impl<'a> Applier<'a> {
    pub(super) fn new(
        context: &'a Context,
        key: &'a Key,
        workload: &'a Workload,
        pods: &'a [PodEntry],
        claims: BudgetClaims<'a>,
    ) -> Self {
        Self {
            context,
            key,
            workload,
            pods,
            claims: tokio::sync::Mutex::new(claims),
            version: workload.version.clone(),
            stale: false,
            failure: None,
            collided: false,
            undone: Undone::default(),
            made: Vec::new(),
            unconfirmed: Vec::new(),
        }
    }

    /// Applies all actions, several of one kind at the same time. A failed write stops neither the other writes
    /// nor the status. `ClearResume` is skipped if the status keeps its steps, and `ClearRetry` if a write of the
    /// retry was not done. If no revision can be written, no later action is applied. If a whole batch of creations
    /// fails (because of a quota, for example), the rest of that kind is not tried.
    pub(super) async fn carry_out(&mut self, actions: &[Action]) {
        for alike in actions.chunk_by(|one, other| discriminant(one) == discriminant(other)) {
            match alike[0] {
                Action::ClearResume if self.keeps_steps() => continue,
                Action::ClearRetry if self.undone.retry => continue,
                _ => {}
            }
            let mut size = FIRST_AT_ONCE;
            let mut rest = alike;
            while !rest.is_empty() {
                let (now, later) = rest.split_at(size.min(rest.len()));
                let mut carried = Vec::with_capacity(now.len());
                for action in now {
                    carried.push(self.carry(action).boxed());
                }
                let done: Vec<_> = stream::iter(carried).buffered(AT_ONCE).collect().await;
                let none = done.iter().all(Result::is_err);
                for (action, done) in now.iter().zip(done) {
                    self.note(action, done).await;
                }
                match now[0] {
                    Action::WriteRevision(..) if none => {
                        self.undone.revision = true;
                        return;
                    }
                    Action::CreateClaim { .. } | Action::CreatePod { .. } | Action::CreateRun(_) if none => {
                        break;
                    }
                    _ => {}
                }
                (rest, size) = (later, (size * 2).min(LARGEST_BATCH));
            }
        }
    }

    /// Handles the result of one action: reports it as an event, counts it, and records it for the next
    /// reconciliation.
    async fn note(&mut self, action: &Action, done: Result<Done, Not>) {
        let error = match done {
            Ok(Done::Written) => None,
            Ok(Done::Made(made)) => {
                self.made.push(made);
                None
            }
            Ok(Done::Unconfirmed(pod)) => {
                self.unconfirmed.push(pod);
                None
            }
            Ok(Done::At(version)) => {
                self.version = version;
                None
            }
            Ok(Done::Exists) | Err(Not::Stale) => {
                self.stale = true;
                self.undone.retry |= action.retries();
                return;
            }
            Err(Not::Unknown(pod, error)) => {
                self.unconfirmed.push(pod);
                Some(error)
            }
            Err(Not::Collided(error)) => {
                self.collided = true;
                Some(error)
            }
            Err(Not::Failed(error)) => Some(error),
        };
        if let Some(event) = action.event(error.as_deref()) {
            self.context.events.report(self.key.reference(&self.workload.spec.uid), &event).await;
        }
        match error {
            None => self.count(action),
            Some(error) => {
                self.undone.retry |= action.retries();
                tracing::info!("{}: {error}", self.key);
                self.failure.get_or_insert_with(|| (action.scales(), error));
            }
        }
    }

    /// The report, corrected by what the writes have achieved.
    pub(super) fn amended(&self, mut report: Report, now: Timestamp) -> Report {
        report.collisions = report.collisions.saturating_add(self.collided.into());
        let before = &self.workload.report;
        if self.keeps_steps() {
            report.steps = before.steps.clone();
        }
        match &self.failure {
            Some((scaling, error)) => {
                // A retry is progress, whatever else has failed.
                let before = if self.workload.spec.update.retry { None } else { Some(before) };
                report.after_failure(before, *scaling, error, now)
            }
            None => report,
        }
    }

    /// True if the steps stay as the last status has them: something was not in the state that they were decided by, or
    /// nothing was done. A write that failed is no reason: the next step does not depend on it, and it may fail for hours.
    fn keeps_steps(&self) -> bool {
        self.stale || self.undone.revision
    }

    /// The outcome for the queue. Waits until the caches contain everything that was created.
    pub(super) async fn outcome(self, again: Option<Duration>) -> Outcome {
        let mut failed = self.failure.is_some();
        for made in &self.made {
            failed |= !self.context.cache.wait_for(&self.key.namespace, made, UNTIL_SEEN).await;
        }
        Outcome { failed, stale: self.stale, again, unconfirmed: self.unconfirmed }
    }

    async fn carry(&self, action: &Action) -> Result<Done, Not> {
        match action {
            Action::WriteRevision(revision, Write::Create) => self.create_revision(revision).await,
            Action::WriteRevision(revision, Write::Renumber) => self.renumber(revision).await,
            Action::DeleteRevision(name) => self.delete_revision(name).await,
            Action::CreateClaim { name, body } => self.create_claim(name, body).await,
            Action::OwnClaim { claim, change } => {
                let done = self.context.server.own_claim(&self.key.namespace, claim, change).await;
                self.changed_claim(done)
            }
            Action::GrowClaim { claim, storage } => {
                let done = self.context.server.grow_claim(&self.key.namespace, claim, storage).await;
                self.changed_claim(done)
            }
            Action::CreatePod { name, body } => self.create_pod(name, body).await,
            Action::DeletePod { pod, why } => self.delete_pod(pod, *why).await,
            Action::SetGate { pod, open } => self.set_gate(pod, *open).await,
            Action::PatchPod { pod, patch, claims, .. } => self.claim_and_patch(pod, patch, claims).await,
            Action::Resize { pod, spec, task } => self.resize_pod(pod, spec, task).await,
            Action::RenewClaim { budget, pod } => self.renew_claim(budget, pod).await,
            Action::CreateRun(run) => self.create_run(run).await,
            Action::DeleteRun(name) => self.delete_run(name).await,
            Action::ClearResume => {
                self.patch(json!({"metadata": {"annotations": {workload_key::RESUME_STEP: null}}})).await
            }
            Action::ClearRetry => self.clear_retry().await,
            Action::Report(_) => Ok(Done::Written),
        }
    }

    fn count(&self, action: &Action) {
        let Action::PatchPod { pod, why, .. } = action else { return };
        let mut seen = self.pods.iter().filter_map(|seen| seen.value.pod.as_deref());
        let mut answer = || {
            let seen = seen.find(|seen| seen.uid == pod.uid)?;
            let task = seen.task.as_ref()?.id();
            seen.answer.as_ref().filter(|answer| answer.id == task)
        };
        match why {
            Why::Updated => self.context.metrics.updated(self.key.kind, answer()),
            Why::NotUpdated => self.context.metrics.not_updated(self.key.kind),
            _ => {}
        }
    }

    // ---- pods ----

    async fn create_pod(&self, name: &str, body: &Value) -> Result<Done, Not> {
        let namespace = &self.key.namespace;
        let done = self.context.server.create_pod(namespace, name, body).await;
        self.context.metrics.wrote("create", &done);
        match done {
            Ok(pod) => Ok(Done::Made(Made::Pod(name.to_owned(), pod.meta.uid))),
            Err(error) if error.class() == Class::Refused => {
                let made = Made::Pod(name.to_owned(), None);
                let seen = self.context.cache.wait_for(namespace, &made, UNTIL_SEEN).await;
                let spec = &self.workload.spec;
                // A pod with an ordinal has no other name: nothing changes until the other pod is gone.
                let taken = spec.stateful().is_some() && self.context.cache.taken(spec).contains(name);
                match seen {
                    true if taken => Err(Not::Failed(format!("{} does not control it", self.key))),
                    true => Ok(Done::Exists),
                    false => Err(Not::Failed(chain(&error))),
                }
            }
            Err(error) => Err(Not::Failed(chain(&error))),
        }
    }

    async fn create_claim(&self, name: &str, body: &Value) -> Result<Done, Not> {
        let done = self.context.server.create_claim(&self.key.namespace, name, body).await;
        self.context.metrics.wrote("create", &done);
        match done {
            Err(error) if error.class() != Class::Refused => Err(Not::Failed(chain(&error))),
            // Its pod is created by the next reconciliation, when the claim is in the cache.
            _ => Ok(Done::Made(Made::Claim(name.to_owned()))),
        }
    }

    fn changed_claim(&self, done: Result<Trimmed<CachedClaim>, Error>) -> Result<Done, Not> {
        self.context.metrics.wrote("patch", &done);
        let seen = done.map_err(|error| plain(&error))?;
        self.context.cache.claims.upsert(seen);
        Ok(Done::Written)
    }

    async fn delete_pod(&self, pod: &VersionedRef, why: Why) -> Result<Done, Not> {
        let how = if why == Why::LostNode { Deletion::Forced } else { Deletion::Graceful };
        let done = self.context.server.delete_pod(&self.key.namespace, pod, how).await;
        self.context.metrics.wrote("delete", &done);
        match done {
            Ok(Some(seen)) => self.context.cache.upsert_deleted(seen, clock::now()),
            Ok(None) => return Ok(Done::Unconfirmed(pod.clone())),
            Err(error) => return Err(not(&error, pod)),
        }
        Ok(Done::Written)
    }

    async fn claim_and_patch(
        &self,
        pod: &VersionedRef,
        patch: &PodPatch,
        claims: &action::BudgetClaims,
    ) -> Result<Done, Not> {
        let name = &pod.name;
        match claims {
            action::BudgetClaims::None => self.patch_pod(pod, patch).await,
            action::BudgetClaims::Release(budgets) => {
                let released = self.claims.lock().await.release(budgets, name).await;
                released.map_err(|error| plain(&error))?;
                self.patch_pod(pod, patch).await
            }
            action::BudgetClaims::Claim(budgets) => {
                let claimed = self.claims.lock().await.claim(budgets, name).await;
                claimed.map_err(|error| plain(&error))?;
                let done = self.patch_pod(pod, patch).await;
                if matches!(done, Err(Not::Stale | Not::Failed(_))) {
                    // The pod's task did not start: nothing may wait for its disruption.
                    let released = self.claims.lock().await.release(budgets, name).await;
                    released.map_err(|error| plain(&error))?;
                }
                done
            }
        }
    }

    async fn renew_claim(&self, budget: &str, pod: &str) -> Result<Done, Not> {
        let renewed = self.claims.lock().await.renew(budget, pod).await;
        renewed.map(|()| Done::Written).map_err(|error| plain(&error))
    }

    async fn patch_pod(&self, pod: &VersionedRef, patch: &PodPatch) -> Result<Done, Not> {
        let context = self.context;
        let done = pods::patch(&context.server, &self.key.namespace, &context.cache.pods, pod, patch).await;
        context.metrics.wrote("patch", &done);
        done.map(|()| Done::Written).map_err(|error| not(&error, pod))
    }

    /// Resizes a pod. An error that a retry does not change is recorded on the pod, also that the API server has no resize any
    /// more.
    async fn resize_pod(&self, pod: &VersionedRef, spec: &Value, task: &PodTask) -> Result<Done, Not> {
        let done = self.context.server.resize_pod(&self.key.namespace, pod, spec).await;
        self.context.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => {
                let returned = seen.value.pod.as_deref();
                let other = returned.filter(|pod| !resize::is_written(pod, spec)).map(VersionedRef::of);
                self.context.cache.pods.upsert(seen);
                match other {
                    Some(pod) => self.patch_pod(&pod, &resize::refused(task, resize::TAKEN_BACK)).await,
                    None => Ok(Done::Written),
                }
            }
            Err(error) if matches!(error.class(), Class::Final | Class::Denied | Class::Gone) => {
                self.patch_pod(pod, &resize::refused(task, error.message())).await
            }
            Err(error) => Err(not(&error, pod)),
        }
    }

    async fn set_gate(&self, pod: &VersionedRef, open: bool) -> Result<Done, Not> {
        let done = self.context.server.set_foreign_gate(&self.key.namespace, pod, open).await;
        self.context.metrics.wrote("patch", &done);
        match done {
            Ok(seen) => self.context.cache.pods.upsert(seen),
            Err(error) => return Err(not(&error, pod)),
        }
        Ok(Done::Written)
    }

    // ---- revisions ----

    async fn create_revision(&self, revision: &Revision) -> Result<Done, Not> {
        let spec = &self.workload.spec;
        let object = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(revision.name.clone()),
                namespace: Some(spec.namespace.clone()),
                labels: Some(revision.template.labels()),
                owner_references: Some(vec![new_pod::owner(spec)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(revision::data(&revision.template))),
            revision: revision.number,
        };
        let done = self.context.server.create_revision(&object).await;
        self.context.metrics.wrote("create", &done);
        let made = Made::Revision(revision.name.clone());
        match done {
            Ok(()) => Ok(Done::Made(made)),
            Err(error) if error.class() == Class::Refused => {
                let seen = self.context.cache.wait_for(&spec.namespace, &made, UNTIL_SEEN).await;
                let own =
                    self.context.cache.revisions(spec).iter().any(|(_, record)| record.name == revision.name);
                match (seen, own) {
                    (_, true) => Ok(Done::Exists),
                    // Its content may be this very template. It is adopted, or created once the old object is
                    // gone. Nothing else is done before that.
                    (true, false) if self.context.cache.is_left_behind(spec, &revision.name) => {
                        Err(Not::Stale)
                    }
                    (true, false) => Err(Not::Collided(chain(&error))),
                    (false, false) => Err(Not::Failed(chain(&error))),
                }
            }
            Err(error) => Err(Not::Failed(chain(&error))),
        }
    }

    async fn renumber(&self, revision: &Revision) -> Result<Done, Not> {
        let namespace = &self.key.namespace;
        let Some(at) = self.context.cache.revision_at(namespace, &revision.name) else {
            return Err(Not::Stale);
        };
        let done = self.context.server.number_revision(namespace, &revision.name, &at, revision.number).await;
        self.context.metrics.wrote("patch", &done);
        done.map(|()| Done::Written).map_err(|error| plain(&error))
    }

    async fn delete_revision(&self, name: &str) -> Result<Done, Not> {
        let namespace = &self.key.namespace;
        let Some((uid, _)) = self.context.cache.revision_at(namespace, name) else {
            return Ok(Done::Written);
        };
        let done = self.context.server.delete_revision(namespace, name, &uid).await;
        self.context.metrics.wrote("delete", &done);
        done.map(|()| Done::Written).map_err(|error| plain(&error))
    }

    // ---- hooks ----

    async fn create_run(&self, run: &NewHookRun) -> Result<Done, Not> {
        let spec = &self.workload.spec;
        let template = self.context.cache.template(&spec.namespace, &run.template);
        let hook = template.as_ref().and_then(|template| template.value.0.as_ref());
        let Some(hook) = hook else { return Err(Not::Stale) };
        let named = |problem| Not::Failed(format!("HookTemplate {}: {problem}", run.template));
        let hook = prepare(hook, &run.args, None).map_err(named)?;
        // A command is run by the agent of the node or by nobody, even if that agent is being replaced now.
        let needs_agent = hook.runs_commands();
        let mut object = HookRun::new(&run.name, hook);
        let mut labels = run.labels.clone();
        if let Some(node) = run.node.as_ref().filter(|node| needs_agent || self.has_agent(node)) {
            labels.insert(annotation::NODE.to_owned(), node.clone());
        }
        object.metadata.namespace = Some(spec.namespace.clone());
        object.metadata.labels = Some(labels);
        object.metadata.annotations = Some(run.annotations.clone());
        object.metadata.owner_references = Some(vec![new_pod::owner(spec)]);
        let done = self.context.server.create_hook_run(&object).await;
        self.context.metrics.wrote("create", &done);
        match done {
            Ok(_) => Ok(Done::Made(Made::Run(run.name.clone()))),
            Err(error) if error.is_already_there() => self.existing_run(run, &error).await,
            Err(error) if error.class() == Class::Refused => Err(Not::Stale),
            Err(error) => Err(Not::Failed(chain(&error))),
        }
    }

    /// The result where a `HookRun` of the name exists. One that nobody controls any more is deleted if it was made for the same
    /// purpose: the workload that made it was deleted without its pods.
    async fn existing_run(&self, run: &NewHookRun, error: &Error) -> Result<Done, Not> {
        let (spec, cache) = (&self.workload.spec, &self.context.cache);
        let made = Made::Run(run.name.clone());
        if !cache.wait_for(&spec.namespace, &made, UNTIL_SEEN).await {
            return Err(Not::Failed(format!("{}: if it is not of {}, delete it", chain(error), self.key)));
        }
        match cache.run_owner(spec, run) {
            RunOwner::Workload => Ok(Done::Made(made)),
            RunOwner::Nobody => self.delete_run(&run.name).await.and(Err(Not::Stale)),
            RunOwner::Other => {
                Err(Not::Failed(format!("HookRun {} is not of {}: delete it", run.name, self.key)))
            }
        }
    }

    /// True unless the node is known to have no ready agent. If an agent is merely unreachable, the controller
    /// takes its HookRuns over later.
    fn has_agent(&self, node: &str) -> bool {
        self.context.agents.ready().is_none_or(|ready| ready.contains(node))
    }

    async fn delete_run(&self, name: &str) -> Result<Done, Not> {
        let namespace = &self.key.namespace;
        let Some(uid) = self.context.cache.run_uid(namespace, name) else { return Ok(Done::Written) };
        let done = self.context.server.delete_hook_run(namespace, name, &uid).await;
        self.context.metrics.wrote("delete", &done);
        done.map(|()| Done::Written).map_err(|error| plain(&error))
    }

    // ---- the workload itself ----

    async fn clear_retry(&self) -> Result<Done, Not> {
        let hooks = &self.workload.spec.hooks;
        let mut spec = json!({});
        for (field, retry) in [
            ("preDeleteUpdateStrategy", hooks.retry_pre_delete),
            ("preInplaceUpdateStrategy", hooks.retry_pre_inplace),
            ("postInplaceUpdateStrategy", hooks.retry_post_inplace),
        ] {
            if retry {
                spec[field] = json!({"retry": false});
            }
        }
        self.patch(json!({"spec": spec, "metadata": {"annotations": {workload_key::RETRY: null}}})).await
    }

    async fn patch(&self, body: Value) -> Result<Done, Not> {
        let at = (self.workload.spec.uid.as_str(), self.version.as_str());
        let done = self.context.server.patch_workload(&self.context.cache, self.key, at, body).await;
        self.context.metrics.wrote("patch", &done);
        done.map(Done::At).map_err(|error| plain(&error))
    }
}

/// Classifies a failed write on a pod. If the write may have been done, the pod is read before the next
/// reconciliation.
fn not(error: &Error, pod: &VersionedRef) -> Not {
    match error.class() {
        Class::Refused | Class::Gone => Not::Stale,
        Class::Unavailable => Not::Unknown(pod.clone(), chain(error)),
        _ => Not::Failed(chain(error)),
    }
}

/// Classifies a failed write on which nothing else depends.
fn plain(error: &Error) -> Not {
    match error.class() {
        Class::Refused | Class::Gone => Not::Stale,
        _ => Not::Failed(chain(error)),
    }
}
