//! The rules of the fake runtime: which faults happen, and which other clients act, at which call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::Code;

use super::model::Model;
use super::server::Shared;

/// A fault of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The call begins only after this time. If the caller leaves earlier, nothing has changed.
    Slow(Duration),
    /// The call takes effect at once and is answered after this time.
    SlowReply(Duration),
    /// The call has no effect and fails with this code and message.
    Fail(Code, &'static str),
    /// The call takes effect and fails with `Unavailable`.
    FailAfterEffect,
    /// The call has no effect, and all connections are closed instead of an answer.
    DropConnection,
    /// The call takes effect, and all connections are closed instead of an answer.
    DropConnectionAfterEffect,
    /// The call is executed twice, and the second result is the answer.
    Twice,
    /// The call has no effect and is never answered.
    Hang,
    /// The call takes effect and is never answered.
    HangAfterEffect,
    /// The call has no effect: the runtime stops, and is back with the same state after this time.
    Restart(Duration),
    /// The call takes effect; then the same as `Restart`.
    RestartAfterEffect(Duration),
}

/// A change of the model that stands for another client.
pub(super) type Change = Arc<Mutex<dyn FnMut(&mut Model) + Send>>;

enum Act {
    Fault(Fault),
    Before(Change),
    After(Change),
}

struct Rule {
    call: &'static str,
    about: Option<String>,
    first: usize,
    last: usize,
    seen: usize,
    act: Act,
}

/// All rules.
#[derive(Default)]
pub(super) struct Rules(Mutex<Vec<Rule>>);

/// The faults and changes that apply to one call.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) fault: Option<Fault>,
    pub(super) before: Vec<Change>,
    pub(super) after: Vec<Change>,
}

impl Rules {
    /// Counts the call and returns its plan. If several faults apply, the first one that was added is used.
    pub(super) fn plan(&self, call: &str, about: &str) -> Plan {
        let mut plan = Plan::default();
        for rule in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if rule.call != call || rule.about.as_deref().is_some_and(|wanted| wanted != about) {
                continue;
            }
            rule.seen += 1;
            if !(rule.first..=rule.last).contains(&rule.seen) {
                continue;
            }
            match &rule.act {
                Act::Fault(fault) => plan.fault = plan.fault.or(Some(*fault)),
                Act::Before(change) => plan.before.push(Arc::clone(change)),
                Act::After(change) => plan.after.push(Arc::clone(change)),
            }
        }
        plan
    }
}

/// Selects the calls to which a rule applies. Calls are counted from the creation of this value.
#[must_use = "nothing is to happen yet"]
pub(crate) struct On<'a> {
    shared: &'a Shared,
    call: &'static str,
    about: Option<String>,
    first: usize,
    last: usize,
}

impl<'a> On<'a> {
    pub(super) fn new(shared: &'a Shared, call: &'static str) -> Self {
        assert_call(call);
        Self { shared, call, about: None, first: 1, last: 1 }
    }

    /// Restricts the rule to calls on this object: `app#1`, `fence app#2`, `img:v2`. Other calls are not counted.
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.about = Some(what.to_owned());
        self
    }

    /// Applies the rule to the `n`th call only, counted from 1.
    pub(crate) fn nth(mut self, n: usize) -> Self {
        (self.first, self.last) = (n, n);
        self
    }

    /// Applies the rule to this many calls in a row.
    pub(crate) fn times(mut self, n: usize) -> Self {
        self.last = self.first + n - 1;
        self
    }

    /// Applies the rule to all following calls too.
    pub(crate) fn always(mut self) -> Self {
        self.last = usize::MAX;
        self
    }

    /// Injects this fault.
    pub(crate) fn fault(self, fault: Fault) {
        self.add(Act::Fault(fault));
    }

    /// Changes the model right before the effect.
    pub(crate) fn first(self, change: impl FnMut(&mut Model) + Send + 'static) {
        self.add(Act::Before(Arc::new(Mutex::new(change))));
    }

    /// Changes the model right after the effect, before the answer.
    pub(crate) fn then(self, change: impl FnMut(&mut Model) + Send + 'static) {
        self.add(Act::After(Arc::new(Mutex::new(change))));
    }

    fn add(self, act: Act) {
        let Self { shared, call, about, first, last } = self;
        let rule = Rule { call, about, first, last, seen: 0, act };
        shared.rules.0.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }
}

const CALLS: [&str; 20] = [
    "Version",
    "Status",
    "ListPodSandbox",
    "PodSandboxStatus",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "ListContainers",
    "ContainerStatus",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ExecSync",
    "ReopenContainerLog",
    "ListImages",
    "ImageStatus",
    "PullImage",
    "RemoveImage",
    "ImageFsInfo",
];

/// Panics on an unknown call name, since a rule for it would never apply.
#[track_caller]
pub(super) fn assert_call(call: &str) {
    assert!(CALLS.contains(&call), "{call} is no call of the interface");
}
