//! The hooks of an operation: gates that must pass while the pod still serves, and before it serves again.
//!
//! The node runs a hook while [`Operation::awaited_hook`] returns it, and passes the measurements to
//! [`Operation::measured`]. This file only decides what follows from them. A recorded verdict is never changed.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, Serializer};

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, MetricResult};
use crate::api::hook_template::{HookTemplateSpec, Metric, Policy, Provider};
use crate::api::request::fingerprint;
use crate::api::status::Step;
use crate::operation::decision::{Next, Waiting};
use crate::operation::note::Note;
use crate::operation::outcome::Failure;
use crate::operation::state::{Operation, later};

/// The interval between two observations of the pod while a hook runs. The end of the hook is handled at once.
const REQUEUE: SignedDuration = SignedDuration::from_millis(250);
/// The maximum length of a pod's or a template's name in the name of a run.
const MAX_PART: usize = 100;
/// The maximum number of metrics in one progress line.
const MAX_REPORTED: usize = 3;

/// When a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Moment {
    /// Before anything is touched.
    Before,
    /// Once a standby can serve, before anything is touched.
    Handover,
    /// After the new containers have met their requirements.
    After,
}

impl Moment {
    /// All moments in their order.
    pub const ALL: [Self; 3] = [Self::Before, Self::Handover, Self::After];

    /// The step in which the hook runs.
    pub fn step(self) -> Step {
        match self {
            Self::Before => Step::PreHook,
            Self::Handover => Step::Handover,
            Self::After => Step::PostHook,
        }
    }
}

/// One hook of an operation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// When the hook runs.
    pub moment: Moment,
    /// The name of its template.
    pub template: String,
    /// The name of its run.
    pub run: String,
    /// The metrics with all arguments. Their providers may be confidential: they are never logged and never written
    /// to the journal; see [`Self::lacks_providers`].
    #[serde(serialize_with = "without_providers")]
    pub spec: HookRunSpec,
    /// The measurements so far.
    pub status: HookRunStatus,
    /// How often the measurements were discarded: what was measured in an earlier round does not count.
    #[serde(default)]
    pub round: u32,
    /// A fingerprint of the providers: `None` for a hook that an earlier release has begun.
    #[serde(default)]
    providers: Option<u64>,
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Hook");
        shown.field("run", &self.run).field("phase", &self.status.phase).finish_non_exhaustive()
    }
}

impl Hook {
    /// A hook that has not begun, for the request `id` on the pod `pod`.
    pub(super) fn new(moment: Moment, pod: &str, id: &str, template: &str, spec: HookRunSpec) -> Self {
        let run = run_name(moment, pod, id, template);
        let providers = Some(providers(&run, &spec));
        let status = HookRunStatus::default();
        Self { moment, template: template.to_owned(), run, spec, status, round: 0, providers }
    }

    /// True for a hook read from the journal: its providers must be loaded from its template again.
    pub fn lacks_providers(&self) -> bool {
        self.spec.lacks_providers()
    }

    /// The full spec with the providers from `template`; `None` when the template has otherwise changed since this
    /// hook was admitted.
    pub fn restored(&self, template: &HookTemplateSpec) -> Option<HookRunSpec> {
        let whole = HookRunSpec { metrics: template.metrics.clone(), ..self.spec.clone() };
        let policy = self.spec.policy.unwrap_or(Policy::Parallel);
        let same = bare(&whole) == bare(&self.spec) && template.policy.unwrap_or(Policy::Parallel) == policy;
        let is_asked = |fingerprint: u64| fingerprint == providers(&self.run, &whole);
        (same && self.providers.is_none_or(is_asked)).then_some(whole)
    }

    /// Its verdict, once there is one.
    pub fn verdict(&self) -> Option<HookPhase> {
        self.status.phase.filter(|phase| phase.is_completed())
    }

    /// Its progress in one line.
    pub fn progress(&self) -> String {
        let reported = self.spec.metrics.iter().take(MAX_REPORTED);
        let mut parts: Vec<_> = reported.map(|metric| progress(metric, self.result(&metric.name))).collect();
        let more = self.spec.metrics.len().saturating_sub(MAX_REPORTED);
        if more > 0 {
            parts.push(format!("and {more} more"));
        }
        parts.join("; ")
    }

    /// Why it did not pass: the worst metric and its message.
    fn why(&self) -> String {
        let worst = self.status.metric_results.iter().filter(|result| result.phase.is_completed());
        let worst = worst.max_by_key(|result| result.phase).filter(|r| r.phase != HookPhase::Successful);
        let own = &self.status.message;
        let Some(worst) = worst else {
            let phase = self.status.phase.unwrap_or(HookPhase::Error);
            return if own.is_empty() { format!("it ended as {phase:?}") } else { own.clone() };
        };
        let last = worst.measurements.iter().rev().map(|measurement| measurement.message.as_str());
        let said = std::iter::once(worst.message.as_str()).chain(last).find(|text| !text.is_empty());
        let said = said.map(|text| format!(": {text}")).unwrap_or_default();
        format!("metric {} is {:?}{said}", worst.name, worst.phase)
    }

    fn result(&self, metric: &str) -> Option<&MetricResult> {
        self.status.metric_results.iter().find(|result| result.name == metric)
    }
}

/// A fingerprint of the providers of a spec, which the journal does not hold. The name of the run makes it another one for
/// each operation.
fn providers(run: &str, spec: &HookRunSpec) -> u64 {
    let all: Vec<_> = spec.metrics.iter().map(|metric| &metric.provider).collect();
    fingerprint(&format!("{run} {}", serde_json::to_string(&all).unwrap_or_default()))
}

/// The same spec without the providers.
fn bare(spec: &HookRunSpec) -> HookRunSpec {
    let mut bare = spec.clone();
    bare.metrics.iter_mut().for_each(|metric| metric.provider = Provider::default());
    bare
}

fn without_providers<S: Serializer>(spec: &HookRunSpec, serializer: S) -> Result<S::Ok, S::Error> {
    bare(spec).serialize(serializer)
}

/// `webtest: 2 of 3 successful, 1 error`.
fn progress(metric: &Metric, result: Option<&MetricResult>) -> String {
    let name = &metric.name;
    let Some(result) = result else { return format!("{name}: not started") };
    if result.phase.is_completed() {
        return format!("{name}: {:?}", result.phase);
    }
    let given = |limit: Option<i32>| limit.filter(|limit| *limit > 0);
    let mut text = if let Some(limit) = given(metric.successful_limit) {
        format!("{name}: {} of {limit} successful", result.successful)
    } else if let Some(limit) = given(metric.consecutive_successful_limit) {
        format!("{name}: {} of {limit} successful in a row", result.consecutive_successful)
    } else if let Some(count) = given(metric.count) {
        format!("{name}: {} of {count} measured", result.count)
    } else {
        format!("{name}: {} measured", result.count)
    };
    for (count, what) in
        [(result.failed, "failed"), (result.inconclusive, "inconclusive"), (result.error, "errors")]
    {
        if count > 0 {
            text.extend([", ", &count.to_string(), " ", what]);
        }
    }
    text
}

/// `pre-inplace-hook-web-0-1a2b3c4d-drain`: unique for one request on one pod, and short enough for an object's name.
fn run_name(moment: Moment, pod: &str, id: &str, template: &str) -> String {
    let when = match moment {
        Moment::Before | Moment::Handover => "pre",
        Moment::After => "post",
    };
    // The hash covers the full names, so two names with the same beginning stay distinct.
    let mark = fingerprint(&[id, pod, template].join("/"));
    let part = |name: &str| {
        let cut: String = name.chars().take(MAX_PART).collect();
        cut.trim_end_matches(['-', '.']).to_owned()
    };
    format!("{when}-inplace-hook-{}-{:08x}-{}", part(pod), mark >> 32, part(template))
}

/// Whether a hook lets the operation continue.
pub(super) enum Passage {
    /// It passed, or there is no hook.
    Open,
    /// It has not finished yet.
    Next(Next),
    /// It did not pass.
    Closed(Failure),
}

pub(super) fn pass(operation: &Operation, moment: Moment, now: Timestamp) -> Passage {
    let Some(hook) = operation.hook(moment) else { return Passage::Open };
    match hook.verdict() {
        Some(HookPhase::Successful) => Passage::Open,
        Some(_) => {
            let run = operation.in_cluster.then(|| hook.run.clone());
            Passage::Closed(Failure::Hook { moment, template: hook.template.clone(), run, why: hook.why() })
        }
        None if operation.step != moment.step() => Passage::Next(Next::Note(Note::Step(moment.step()))),
        None => {
            let limit = match moment {
                Moment::Before | Moment::Handover => operation.touch_until(),
                Moment::After => operation.forward_until(),
            };
            let again = later(now, REQUEUE);
            let until = if limit > now { again.min(limit) } else { again };
            Passage::Next(Next::Wait(Waiting { until, on: format!("waiting for hook {}", hook.template) }))
        }
    }
}

impl Operation {
    /// The hook of that moment.
    pub fn hook(&self, moment: Moment) -> Option<&Hook> {
        let hook = match moment {
            Moment::Before | Moment::Handover => self.pre_hook.as_ref(),
            Moment::After => self.post_hook.as_ref(),
        };
        hook.filter(|hook| hook.moment == moment)
    }

    /// The hook that must run now. The operation waits for no other hook.
    pub fn awaited_hook(&self) -> Option<&Hook> {
        if self.rollback_cause.is_some() || self.ending.is_some() || self.outcome.is_some() {
            return None;
        }
        let moment = Moment::ALL.into_iter().find(|moment| self.step == moment.step())?;
        let hook = self.hook(moment)?;
        hook.verdict().is_none().then_some(hook)
    }

    /// Records the measurements of a hook in this round. Ignored unless the operation waits for this hook.
    pub fn measured(&mut self, (moment, round): (Moment, u32), status: HookRunStatus) {
        if self.awaited_hook().is_none_or(|awaited| (awaited.moment, awaited.round) != (moment, round)) {
            return;
        }
        let hook = match moment {
            Moment::Before | Moment::Handover => &mut self.pre_hook,
            Moment::After => &mut self.post_hook,
        };
        if let Some(hook) = hook {
            hook.status = status;
        }
    }

    /// Discards the measurements of the post-hook: they belong to another instance than the new one. It runs again once
    /// that has met its requirements.
    pub(super) fn measure_anew(&mut self) {
        if let Some(hook) = &mut self.post_hook {
            (hook.status, hook.round) = (HookRunStatus::default(), hook.round.saturating_add(1));
        }
        if self.step == Step::PostHook {
            self.step = Step::Swap;
        }
    }

    /// `hook drain: webtest: 2 of 3 successful`, while the operation waits for it.
    pub(super) fn hook_progress(&self) -> Option<String> {
        let hook = self.awaited_hook()?;
        Some(format!("hook {}: {}", hook.template, hook.progress()))
    }
}

#[cfg(test)]
mod tests;
