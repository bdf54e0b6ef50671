//! What is to go wrong, and who else acts, at which call.

use std::sync::{Arc, Mutex, PoisonError};

use super::door::Shared;
use super::store::Store;

/// The kinds of calls.
const KNOWN: &[&str] = &[
    "LIST pods",
    "WATCH pods",
    "GET pod",
    "PATCH pod",
    "PATCH pod/status",
    "DELETE pod",
    "POST event",
    "GET secret",
    "LIST events",
    "LIST endpointslices",
    "LIST secrets",
    "LIST hookruns",
    "WATCH hookruns",
    "GET hookrun",
    "PATCH hookrun",
    "PATCH hookrun/status",
    "POST hookrun",
    "WOULD POST hookrun",
    "DELETE hookrun",
    "GET lease",
    "PUT lease",
    "POST lease",
    "GET gamedeployment",
    "PATCH gamedeployment",
    "PATCH gamedeployment/status",
    "PATCH inplacerollout/status",
    "GET controllerrevision",
    "POST controllerrevision",
    "POST persistentvolumeclaim",
    "POST pod",
    "WATCH gamedeployments",
    "LIST inplacerollouts",
    "LIST nodes",
    "POST subjectaccessreview",
];

/// What is to go wrong with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It has no effect and this answer: code and message.
    Answer(u16, &'static str),
    /// It takes effect and has this answer.
    AnswerAfterEffect(u16, &'static str),
    /// It has no effect and no answer.
    Hang,
    /// It takes effect and has no answer.
    HangAfterEffect,
    /// It has no effect, and all connections are closed instead of an answer.
    Cut,
    /// It takes effect, and all connections are closed instead of an answer.
    CutAfterEffect,
    /// It has no effect, and an answer that is no JSON.
    Nonsense,
}

/// What somebody else does.
pub(super) type Deed = Arc<Mutex<dyn FnMut(&mut Store) + Send>>;

enum Act {
    Fault(Fault),
    Before(Deed),
}

struct Rule {
    call: &'static str,
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
}

impl Rules {
    /// Counts the call. Of several faults the one that was asked for first is taken.
    pub(super) fn plan(&self, call: &str) -> Plan {
        let mut plan = Plan::default();
        for rule in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if rule.call != call {
                continue;
            }
            rule.seen += 1;
            if !(rule.first..=rule.last).contains(&rule.seen) {
                continue;
            }
            match &rule.act {
                Act::Fault(fault) => plan.fault = plan.fault.or(Some(*fault)),
                Act::Before(deed) => plan.before.push(Arc::clone(deed)),
            }
        }
        plan
    }

    fn add(&self, rule: Rule) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }
}

/// Chooses the calls that something is to happen at. They are counted from here on.
#[must_use = "nothing is to happen yet"]
pub(crate) struct On<'a> {
    shared: &'a Shared,
    call: &'static str,
    first: usize,
    last: usize,
}

impl<'a> On<'a> {
    pub(super) fn new(shared: &'a Shared, call: &'static str) -> Self {
        known(call);
        Self { shared, call, first: 1, last: 1 }
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

    /// Goes wrong.
    pub(crate) fn fault(self, fault: Fault) {
        self.add(Act::Fault(fault));
    }

    /// Somebody acts right before it takes effect.
    pub(crate) fn first(self, deed: impl FnMut(&mut Store) + Send + 'static) {
        self.add(Act::Before(Arc::new(Mutex::new(deed))));
    }

    fn add(self, act: Act) {
        let Self { shared, call, first, last } = self;
        shared.rules.add(Rule { call, first, last, seen: 0, act });
    }
}

/// A misspelt call would never come.
fn known(call: &str) {
    assert!(KNOWN.contains(&call), "no such call: {call}; there are {KNOWN:?}");
}
