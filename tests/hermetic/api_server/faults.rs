//! Rules for faults and for concurrent changes, by the kind of call.

use std::sync::{Arc, Mutex, PoisonError};

use super::listener::Shared;
use super::store::Store;

/// The kinds of calls.
const KNOWN: &[&str] = &[
    // The list of the resources of the core API.
    "LIST resources",
    "LIST pods",
    // A further page of a list.
    "NEXT pods",
    "WATCH pods",
    "GET pod",
    "PATCH pod",
    "WOULD PATCH pod",
    "PATCH pod/status",
    "PATCH pod/resize",
    "DELETE pod",
    "POST event",
    "GET secret",
    "LIST events",
    "LIST endpointslices",
    "LIST secrets",
    "WATCH secrets",
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
    "POST inplacerollout",
    "LIST containerrecreaterequests",
    "PATCH containerrecreaterequest/status",
    "GET controllerrevision",
    "POST controllerrevision",
    "POST persistentvolumeclaim",
    "POST pod",
    "WATCH gamedeployments",
    "LIST inplacerollouts",
    "LIST nodes",
    "GET node",
    "LIST poddisruptionbudgets",
    "WATCH poddisruptionbudgets",
    "POST subjectaccessreview",
];

/// What goes wrong with one call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// It has no effect, and this answer: code and message.
    Answer(u16, &'static str),
    /// It takes effect, and has this answer.
    AnswerAfterEffect(u16, &'static str),
    /// It has no effect and no answer.
    Hang,
    /// It takes effect and has no answer.
    HangAfterEffect,
    /// It has no effect, and all connections are closed instead of an answer.
    Cut,
    /// It takes effect, and all connections are closed instead of an answer.
    CutAfterEffect,
    /// It has no effect, and an answer that is not JSON.
    Nonsense,
}

/// A change that another client makes.
pub(super) type Change = Arc<Mutex<dyn FnMut(&mut Store) + Send>>;

enum Act {
    Fault(Fault),
    Before(Change),
}

struct Rule {
    call: &'static str,
    namespace: Option<&'static str>,
    first: usize,
    last: usize,
    seen: usize,
    act: Act,
}

/// The rules of a test.
#[derive(Default)]
pub(super) struct Rules(Mutex<Vec<Rule>>);

/// The fault and the changes that apply to one call.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) fault: Option<Fault>,
    pub(super) before: Vec<Change>,
}

impl Rules {
    /// Counts the call. If several faults apply, the first one that was added is used.
    pub(super) fn plan(&self, call: &str, namespace: Option<&str>) -> Plan {
        let mut plan = Plan::default();
        for rule in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter_mut() {
            if rule.call != call || rule.namespace.is_some_and(|wanted| Some(wanted) != namespace) {
                continue;
            }
            rule.seen += 1;
            if !(rule.first..=rule.last).contains(&rule.seen) {
                continue;
            }
            match &rule.act {
                Act::Fault(fault) => plan.fault = plan.fault.or(Some(*fault)),
                Act::Before(change) => plan.before.push(Arc::clone(change)),
            }
        }
        plan
    }

    fn add(&self, rule: Rule) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(rule);
    }
}

/// Selects the calls that a fault or a change applies to. They are counted from the creation of the rule.
#[must_use = "nothing is to happen yet"]
pub(crate) struct On<'a> {
    shared: &'a Shared,
    call: &'static str,
    namespace: Option<&'static str>,
    first: usize,
    last: usize,
}

impl<'a> On<'a> {
    pub(super) fn new(shared: &'a Shared, call: &'static str) -> Self {
        assert_call(call);
        Self { shared, call, namespace: None, first: 1, last: 1 }
    }

    /// Only calls in this namespace.
    pub(crate) fn within(mut self, namespace: &'static str) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// The `n`th call, from 1.
    pub(crate) fn nth(mut self, n: usize) -> Self {
        (self.first, self.last) = (n, n);
        self
    }

    /// This many calls in a row.
    pub(crate) fn times(mut self, n: usize) -> Self {
        self.last = self.first + n - 1;
        self
    }

    /// Lets the selected calls fail.
    pub(crate) fn fault(self, fault: Fault) {
        self.add(Act::Fault(fault));
    }

    /// Makes a change as another client, directly before the call takes effect.
    pub(crate) fn first(self, change: impl FnMut(&mut Store) + Send + 'static) {
        self.add(Act::Before(Arc::new(Mutex::new(change))));
    }

    fn add(self, act: Act) {
        let Self { shared, call, namespace, first, last } = self;
        shared.rules.add(Rule { call, namespace, first, last, seen: 0, act });
    }
}

/// A misspelt kind of call would never match.
fn assert_call(call: &str) {
    assert!(KNOWN.contains(&call), "no such call: {call}; there are {KNOWN:?}");
}
