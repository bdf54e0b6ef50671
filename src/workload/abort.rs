//! The abort of an update: when one begins, which revision the pods go back to, and what is reported. The way back is
//! an update to the stable revision, within the same budget and with the same hooks; this module moves no pod.
//!
//! ```text
//!  update stopped by failures or by its deadline, onFailure: Abort
//!     │ status.abortedRevision is written first, and no pod is touched
//!     ▼
//!  Aborting ──all pods at the stable revision──▶ Aborted       another template or the annotation `inplace.dev/retry`
//!     └──── pods fail on the way back ─────────▶ AbortFailed   ends each of them
//! ```
//!
//! While the template is at the aborted revision, no pod is updated to it or created from it.

use crate::api::kstatus::ObjectState;
use crate::api::workload::{CanaryStatus, UpdateFailurePolicy};
use crate::podtask::amount::Amount;
use crate::podtask::write::Event;
use crate::workload::canary::{self, Held, Step};
use crate::workload::health::Health;
use crate::workload::input::CachedObjects;
use crate::workload::report::{PROGRESSING, Report, Steps, UPDATE_FAILED};
use crate::workload::revision::Revision;
use crate::workload::spec::WorkloadSpec;
use crate::workload::status::UpdateFailure;

/// The reason while pods go back.
pub const ABORTING: &str = "Aborting";
/// The reason once all pods are back.
pub const ABORTED: &str = "Aborted";
/// The reason when pods cannot go back.
pub const ABORT_FAILED: &str = "AbortFailed";

/// True while the update to `revision` is aborted. The annotation for a retry ends the abort.
pub fn is_active(spec: &WorkloadSpec, before: &Report, revision: &str) -> bool {
    before.aborted_revision == revision && !revision.is_empty() && !spec.update.retry
}

/// The revision that the pods go back to: the last one that all pods reached, otherwise the current one.
pub fn stable<'a>(before: &Report, revisions: &'a [Revision], current: &'a Revision) -> &'a Revision {
    revisions.iter().find(|revision| revision.name == before.stable_revision).unwrap_or(current)
}

/// True when an abort begins now. `late`: the progress deadline is exceeded. A person who has paused the update decides
/// what happens next.
pub fn begins(
    spec: &WorkloadSpec,
    revision: &str,
    stable: &Revision,
    failure: Option<&UpdateFailure>,
    late: bool,
) -> bool {
    let failed_pods = failure.is_some_and(|failure| failure.stops && failure.failed_pods);
    spec.update.on_failure == UpdateFailurePolicy::Abort
        && !spec.retries_update()
        && !spec.update.paused
        && stable.name != revision
        && (failed_pods || late)
}

/// True when an abort begins by itself if the update to `revision` makes no progress until its deadline.
pub fn awaits_deadline(spec: &WorkloadSpec, before: &Report, revision: &str) -> bool {
    let has_stable = !before.stable_revision.is_empty() && before.stable_revision != revision;
    spec.update.on_failure == UpdateFailurePolicy::Abort && spec.progress_deadline.is_some() && has_stable
}

/// The report that records the abort, and its event. Nothing else is done before it is written: the failed pods, which
/// are the reason, may be the first to go back.
pub fn begin(
    mut report: Report,
    before: &Report,
    stable: &str,
    cause: &str,
    now: jiff::Timestamp,
) -> (Report, Event) {
    let revision = report.update_revision.clone();
    let message = format!(
        "{cause}; the update to revision {revision} is aborted, the pods go back to revision {stable}"
    );
    report.steps = before.steps.clone();
    report.aborted_revision.clone_from(&revision);
    stable.clone_into(&mut report.stable_revision);
    report.set_condition(UPDATE_FAILED, true, ABORTING, message.clone(), now);
    report.set_condition(PROGRESSING, false, ABORTING, message.clone(), now);
    report.set_last_progress(Some(crate::podtask::time::whole_seconds(now)));
    report.set_health(
        &Health { state: ObjectState::Reconciling, reason: ABORTING, message: message.clone() },
        now,
    );
    (report, Event::warning(ABORTING, message))
}

/// The canary steps of an aborted update: none applies, and a retry begins with the first one. A pause of a step is
/// over.
pub fn step(spec: &WorkloadSpec, before: &Report, objects: &CachedObjects<'_>) -> Step {
    let revision = before.steps.canary.revision.clone();
    Step {
        held: Held::Part(Amount::Count(0)),
        steps: Steps { canary: CanaryStatus { revision, ..CanaryStatus::default() }, ..Steps::default() },
        actions: canary::clear(objects.runs, spec.update.resume_step.as_deref()),
        requeue_at: None,
        problem: None,
        failed_hook: None,
        waits: false,
    }
}

/// What `UpdateFailed` says during an abort. `failure`: what prevents the way back; `back`: all pods are back.
pub fn failure(before: &Report, stable: &str, failure: Option<&UpdateFailure>, back: bool) -> UpdateFailure {
    let revision = &before.aborted_revision;
    if stable == revision && !back {
        let message = format!(
            "the update to revision {revision} is aborted, and revision {} does not exist any more: change the template, \
             or set the annotation inplace.dev/retry",
            before.stable_revision
        );
        return UpdateFailure::new(ABORT_FAILED, message, true);
    }
    if let Some(failure) = failure.filter(|failure| failure.stops && !back) {
        // A hook that failed is run again when its `retry` is set, and a missing template may come.
        if matches!(failure.reason, "HookFailed" | "HookTemplate") {
            return failure.clone();
        }
        let message = format!(
            "pods do not go back to revision {stable} after the abort of the update to revision {revision}: {}",
            failure.message
        );
        return UpdateFailure::new(ABORT_FAILED, message, true);
    }
    let recorded = before.conditions.iter().find(|condition| condition.kind == UPDATE_FAILED);
    let recorded = recorded.filter(|condition| matches!(condition.reason.as_str(), ABORTING | ABORTED));
    let message = recorded.map_or_else(
        || {
            format!(
                "the update to revision {revision} is aborted, the pods go back to revision {stable}; change the \
                 template, or set the annotation inplace.dev/retry"
            )
        },
        |condition| condition.message.clone(),
    );
    UpdateFailure::new(if back { ABORTED } else { ABORTING }, message, true)
}
