//! The hooks of an operation: gates that are passed while the pod still serves, and before it serves again.
//!
//! A hook is run by the node for as long as [`Operation::awaited_hook`] names it; what it has measured comes in through
//! [`Operation::measured`]. Here is only decided what follows from that. A verdict that was taken in stays.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, Serializer};

use crate::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, MetricResult};
use crate::api::hook_template::{HookTemplateSpec, Metric, Policy, Provider};
use crate::api::request::fingerprint;
use crate::api::status::Step;
use crate::operation::answer::{Next, Waiting};
use crate::operation::note::Note;
use crate::operation::outcome::Failure;
use crate::operation::state::{Operation, later};

/// How soon to look at the pod again while a hook runs; its end is heard at once.
const REQUEUE: SignedDuration = SignedDuration::from_millis(250);
/// Longest part of a pod's or a template's name in the name of a run.
const MAX_PART: usize = 100;
/// Most metrics that one line tells of.
const MAX_REPORTED: usize = 3;

/// When a hook is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Moment {
    /// Before anything is touched.
    Before,
    /// After the new containers have proven themselves.
    After,
}

impl Moment {
    /// The step that it is.
    pub fn step(self) -> Step {
        match self {
            Self::Before => Step::PreHook,
            Self::After => Step::PostHook,
        }
    }
}

/// One hook of an operation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    /// When it is run.
    pub moment: Moment,
    /// The name of its template.
    pub template: String,
    /// The name of its run.
    pub run: String,
    /// What is measured, with all arguments. Whom it asks, and how, may be nobody's business: never logged, and not
    /// written down; see [`Self::lacks_providers`].
    #[serde(serialize_with = "without_providers")]
    pub spec: HookRunSpec,
    /// What has been measured.
    pub status: HookRunStatus,
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Hook");
        shown.field("run", &self.run).field("phase", &self.status.phase).finish_non_exhaustive()
    }
}

impl Hook {
    /// One that has not begun, for the request `id` on the pod `pod`.
    pub(super) fn new(moment: Moment, pod: &str, id: &str, template: &str, spec: HookRunSpec) -> Self {
        let run = run_name(moment, pod, id, template);
        Self { moment, template: template.to_owned(), run, spec, status: HookRunStatus::default() }
    }

    /// True for one that was read from the journal: whom it asks is to be had from its template again.
    pub fn lacks_providers(&self) -> bool {
        self.spec.metrics.iter().any(|metric| metric.provider == Provider::default())
    }

    /// What is measured as a whole, when `template` says otherwise what it said when this hook was admitted.
    pub fn restored(&self, template: &HookTemplateSpec) -> Option<HookRunSpec> {
        let whole = HookRunSpec { metrics: template.metrics.clone(), ..self.spec.clone() };
        let policy = self.spec.policy.unwrap_or(Policy::Parallel);
        let same = bare(&whole) == bare(&self.spec) && template.policy.unwrap_or(Policy::Parallel) == policy;
        same.then_some(whole)
    }

    /// Its verdict, once there is one.
    pub fn verdict(&self) -> Option<HookPhase> {
        self.status.phase.filter(|phase| phase.is_completed())
    }

    /// How far it is, in one line.
    pub fn progress(&self) -> String {
        let reported = self.spec.metrics.iter().take(MAX_REPORTED);
        let mut parts: Vec<_> = reported.map(|metric| progress(metric, self.result(&metric.name))).collect();
        let more = self.spec.metrics.len().saturating_sub(MAX_REPORTED);
        if more > 0 {
            parts.push(format!("and {more} more"));
        }
        parts.join("; ")
    }

    /// Why it did not pass: the worst metric, and what it says.
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

/// The same without a word on whom it asks.
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
    let Some(result) = result else { return format!("{name}: not begun") };
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

/// `pre-inplace-hook-web-0-1a2b3c4d-drain`: of one request on one pod, and short enough for an object's name.
fn run_name(moment: Moment, pod: &str, id: &str, template: &str) -> String {
    let when = match moment {
        Moment::Before => "pre",
        Moment::After => "post",
    };
    // The whole names are in it too: two that begin alike are two.
    let mark = fingerprint(&[id, pod, template].join("/"));
    let part = |name: &str| {
        let cut: String = name.chars().take(MAX_PART).collect();
        cut.trim_end_matches(['-', '.']).to_owned()
    };
    format!("{when}-inplace-hook-{}-{:08x}-{}", part(pod), mark >> 32, part(template))
}

/// Whether a hook lets the operation through.
pub(super) enum Passage {
    /// Yes, or there is none.
    Open,
    /// Not yet.
    Next(Next),
    /// No.
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
                Moment::Before => operation.touch_until(),
                Moment::After => operation.forward_until(),
            };
            let again = later(now, REQUEUE);
            let until = if limit > now { again.min(limit) } else { again };
            Passage::Next(Next::Wait(Waiting { until, on: format!("hook {}", hook.template) }))
        }
    }
}

impl Operation {
    /// The hook of that moment.
    pub fn hook(&self, moment: Moment) -> Option<&Hook> {
        match moment {
            Moment::Before => self.pre_hook.as_ref(),
            Moment::After => self.post_hook.as_ref(),
        }
    }

    /// The hook that is to be run now: nobody waits for any other one.
    pub fn awaited_hook(&self) -> Option<&Hook> {
        if self.turned_back.is_some() || self.ending.is_some() || self.outcome.is_some() {
            return None;
        }
        let moment = [Moment::Before, Moment::After].into_iter().find(|moment| self.step == moment.step())?;
        let hook = self.hook(moment)?;
        hook.verdict().is_none().then_some(hook)
    }

    /// Takes in what a hook has measured so far. What nobody waits for any more changes nothing.
    pub fn measured(&mut self, moment: Moment, status: HookRunStatus) {
        if self.awaited_hook().is_none_or(|awaited| awaited.moment != moment) {
            return;
        }
        let hook = match moment {
            Moment::Before => &mut self.pre_hook,
            Moment::After => &mut self.post_hook,
        };
        if let Some(hook) = hook {
            hook.status = status;
        }
    }

    /// What the hook that runs after it has measured was about another life than the one that is to come.
    pub(super) fn measure_anew(&mut self) {
        self.post_hook.iter_mut().for_each(|hook| hook.status = HookRunStatus::default());
    }

    /// `hook drain: webtest: 2 of 3 successful`, while it is waited for.
    pub(super) fn hook_progress(&self) -> Option<String> {
        let hook = self.awaited_hook()?;
        Some(format!("hook {}: {}", hook.template, hook.progress()))
    }
}

#[cfg(test)]
mod tests;
