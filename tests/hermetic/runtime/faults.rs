//! What is to go wrong, and who else acts, at which call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tonic::Code;

use super::model::Model;
use super::server::Shared;

/// What is to go wrong with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It begins only after this time. A caller that leaves before has changed nothing.
    Slow(Duration),
    /// It takes effect at once and answers after this time.
    SlowReply(Duration),
    /// It has no effect and answers this.
    Fail(Code, &'static str),
    /// It takes effect, and answers `Unavailable`.
    FailAfterEffect,
    /// It has no effect, and all connections are closed instead of an answer.
    DropConnection,
    /// It takes effect, and all connections are closed instead of an answer.
    DropConnectionAfterEffect,
    /// It is done twice, and the second result is answered.
    Twice,
    /// It has no effect and no answer.
    Hang,
    /// It takes effect and has no answer.
    HangAfterEffect,
    /// It has no effect: the runtime goes away and is back, as it was, after this time.
    Restart(Duration),
    /// It takes effect, then as with `Restart`.
    RestartAfterEffect(Duration),
}

/// What somebody else does.
pub(super) type Deed = Arc<Mutex<dyn FnMut(&mut Model) + Send>>;

enum Act {
    Fault(Fault),
    Before(Deed),
    After(Deed),
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

/// What holds for one call.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) fault: Option<Fault>,
    pub(super) before: Vec<Deed>,
    pub(super) after: Vec<Deed>,
}

impl Rules {
    /// Counts the call. Of several faults the one that was asked for first is taken.
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
                Act::Before(deed) => plan.before.push(Arc::clone(deed)),
                Act::After(deed) => plan.after.push(Arc::clone(deed)),
            }
        }
        plan
    }
}

/// Chooses the calls that something is to happen at. They are counted from here on.
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
        known(call);
        Self { shared, call, about: None, first: 1, last: 1 }
    }

    /// Only calls about this: `app#1`, `fence app#2`, `img:v2`. Others are not counted.
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.about = Some(what.to_owned());
        self
    }

    /// The `n`th, from 1.
    pub(crate) fn nth(mut self, n: usize) -> Self {
        (self.first, self.last) = (n, n);
        self
    }

    /// This many in a row.
    pub(crate) fn times(mut self, n: usize) -> Self {
        self.last = self.first + n - 1;
        self
    }

    /// And all that follow.
    pub(crate) fn always(mut self) -> Self {
        self.last = usize::MAX;
        self
    }

    /// This goes wrong.
    pub(crate) fn fault(self, fault: Fault) {
        self.add(Act::Fault(fault));
    }

    /// Somebody acts right before the effect.
    pub(crate) fn first(self, deed: impl FnMut(&mut Model) + Send + 'static) {
        self.add(Act::Before(Arc::new(Mutex::new(deed))));
    }

    /// Somebody acts right after the effect, before the answer.
    pub(crate) fn then(self, deed: impl FnMut(&mut Model) + Send + 'static) {
        self.add(Act::After(Arc::new(Mutex::new(deed))));
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

/// Fails on a misspelt name, at which nothing would ever happen.
#[track_caller]
pub(super) fn known(call: &str) {
    assert!(CALLS.contains(&call), "{call} is no call of the interface");
}
