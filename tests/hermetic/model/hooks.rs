//! The hooks of a random world. They are measured one after the other in virtual time, until they have a verdict,
//! hang, or are dropped. Checks that a finished and journalled measurement is not repeated, and that nothing happens
//! before a hook has passed.

use std::collections::BTreeMap;

use inplace::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, MetricResult};
use inplace::api::hook_template::{Metric, Provider};
use inplace::operation::hook::Moment;
use inplace::operation::state::Operation;
use jiff::Timestamp;
use proptest::prelude::*;

use super::ms;

/// The behaviour of a hook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    /// Milliseconds from one measurement to the next.
    every: i64,
    /// The number of measurements after which it has a verdict.
    after: i32,
    /// The verdict; `None` for a hook that never has one.
    says: Option<HookPhase>,
}

/// A planted defect: the measurements are lost when the process dies.
#[derive(Clone, Copy, Default)]
pub(super) struct Forgetful(pub(super) bool);

/// The hooks of one world, and the part of the process that measures them.
#[derive(Clone, Debug, Default)]
pub(super) struct Hooks {
    before: Option<Script>,
    after: Option<Script>,
    /// The measurement in progress. It is lost when the process dies.
    measuring: Option<(Moment, Timestamp)>,
    /// Finished measurements that are in the journal, by hook and round.
    written: BTreeMap<(Moment, u32), i32>,
    /// The verdicts that the hooks gave, in order, each with the moment of its hook.
    pub(super) said: Vec<(Moment, HookPhase)>,
    /// A rule that was violated.
    pub(super) broken: Option<String>,
}

pub(super) fn spec() -> HookRunSpec {
    let metric = Metric {
        name: "m".into(),
        interval: None,
        initial_delay: None,
        count: Some(1),
        success_condition: None,
        failure_condition: None,
        failure_limit: None,
        successful_limit: None,
        inconclusive_limit: None,
        consecutive_error_limit: None,
        consecutive_successful_limit: None,
        provider: Provider::default(),
    };
    HookRunSpec { metrics: vec![metric], args: Vec::new(), terminate: false, policy: None }
}

pub(super) fn script() -> impl Strategy<Value = Script> {
    let says = prop_oneof![
        8 => Just(Some(HookPhase::Successful)),
        2 => Just(Some(HookPhase::Failed)),
        1 => Just(Some(HookPhase::Error)),
        1 => Just(Some(HookPhase::Inconclusive)),
        1 => Just(None),
    ];
    (20_i64..3000, 1_i32..8, says).prop_map(|(every, after, says)| Script { every, after, says })
}

impl Hooks {
    pub(super) fn new(before: Option<Script>, after: Option<Script>) -> Self {
        Self { before, after, ..Self::default() }
    }

    pub(super) fn has(&self, moment: Moment) -> bool {
        self.script(moment).is_some()
    }

    fn script(&self, moment: Moment) -> Option<Script> {
        match moment {
            Moment::Before => self.before,
            Moment::Handover => None,
            Moment::After => self.after,
        }
    }

    pub(super) fn passed(&self, moment: Moment) -> bool {
        !self.has(moment) || self.said.contains(&(moment, HookPhase::Successful))
    }

    /// What was measured after the start of a container does not count for the next one.
    pub(super) fn measures_anew(&mut self) {
        self.written.retain(|(moment, _), _| *moment != Moment::After);
        self.said.retain(|(moment, _)| *moment != Moment::After);
    }

    /// When the measurement in progress ends.
    pub(super) fn due(&self) -> Option<Timestamp> {
        self.measuring.map(|(_, at)| at)
    }

    /// Continues as the node does: measures the hook that the operation waits for, and nothing else. True when there
    /// is a result for the journal.
    pub(super) fn attend(&mut self, operation: &mut Operation, now: Timestamp) -> bool {
        let Some((moment, round)) = operation.awaited_hook().map(|hook| (hook.moment, hook.round)) else {
            self.measuring = None;
            return false;
        };
        let Some(script) = self.script(moment) else {
            self.broken.get_or_insert(format!("a hook is awaited that nobody named: {moment:?}"));
            return false;
        };
        let again = now + ms(script.every);
        let (_, at) = *self.measuring.get_or_insert((moment, again));
        if now < at {
            return false;
        }
        self.measuring = Some((moment, again));
        let mut status = operation.hook(moment).unwrap().status.clone();
        let done = status.metric_results.first().map_or(0, |result| result.count);
        if self.written.get(&(moment, round)).is_some_and(|written| done < *written) {
            self.broken.get_or_insert(format!("{moment:?}: measurement {done} was made twice"));
        }
        let verdict = script.says.filter(|_| done + 1 >= script.after);
        let phase = verdict.unwrap_or(HookPhase::Running);
        status =
            HookRunStatus { phase: Some(phase), metric_results: vec![result(phase, done + 1)], ..status };
        if let Some(verdict) = verdict {
            self.said.push((moment, verdict));
            self.measuring = None;
        }
        operation.measured((moment, round), status);
        true
    }

    /// The process has written its state to the journal.
    pub(super) fn wrote(&mut self, operation: &Operation) {
        for moment in [Moment::Before, Moment::After] {
            let Some(hook) = operation.hook(moment) else { continue };
            let done = hook.status.metric_results.first().map_or(0, |result| result.count);
            let written = self.written.entry((moment, hook.round)).or_default();
            *written = done.max(*written);
        }
    }

    /// The process has died, and another one has started.
    pub(super) fn died(&mut self, operation: &mut Operation, forgetful: Forgetful) {
        self.measuring = None;
        if forgetful.0 {
            for hook in [&mut operation.pre_hook, &mut operation.post_hook].into_iter().flatten() {
                hook.status = HookRunStatus::default();
            }
        }
    }
}

fn result(phase: HookPhase, count: i32) -> MetricResult {
    MetricResult {
        name: "m".into(),
        phase,
        message: String::new(),
        count,
        successful: 0,
        failed: 0,
        inconclusive: 0,
        error: 0,
        consecutive_error: 0,
        consecutive_successful: 0,
        measurements: Vec::new(),
    }
}
