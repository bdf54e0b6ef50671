//! Who may write hooks and rollouts: whoever has the rights that they amount to, asked of the API server for each write.
//!
//! A hook that runs a command or asks the network does what `pods/exec` allows, one that looks at its pod or sets an
//! annotation what `get` or `patch` on pods allows, and a rollout changes images of pods. Asked is whoever the review names,
//! and only where something changes that counts: whoever may patch them pauses a rollout, and approves or terminates a run.
//!
//! HookRuns are also how the guard and the controllers remember what was asked and answered. What ties one to a pod and to
//! what it lets pass is the controller's alone, and an agent writes nothing but what shows its own operations.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::api::annotation;
use crate::api::hook_run::HookRunSpec;
use crate::api::hook_template::{Function, HookTemplateSpec, Metric};
use crate::api::in_place_rollout::InPlaceRolloutSpec;
use crate::api::workload_key;
use crate::cluster::access::{PodAccess, Subject};
use crate::cluster::server::Server;
use crate::controller::admission::review::{Answer, Refusal, Request};
use crate::process::log::chain;

/// The API server waits 10 s for an answer; without one it says less than we do.
const IN_TIME: Duration = Duration::from_secs(3);
const EXEC: PodAccess = PodAccess { verb: "create", subresource: "exec" };
const GET: PodAccess = PodAccess { verb: "get", subresource: "" };
const PATCH: PodAccess = PodAccess { verb: "patch", subresource: "" };
/// Labels and annotations of a HookRun that only the controller sets, changes and takes off.
const OF_CONTROLLER: [(Place, &str); 3] = [
    (Place::Label, annotation::DELETE_GUARD),
    (Place::Annotation, workload_key::TURN),
    (Place::Annotation, workload_key::HOOK_POD),
];
/// Labels that decide who runs a HookRun, and whether anybody does.
const OF_RUNNING: [&str; 2] = [annotation::NODE, annotation::OPERATION];

/// Answers reviews of HookTemplates, HookRuns and InPlaceRollouts.
#[derive(Clone)]
pub(super) struct Rights {
    pub(super) server: Server,
    pub(super) accounts: Accounts,
}

/// The users that this project itself writes as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Accounts {
    pub(super) controller: String,
    pub(super) agent: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Label,
    Annotation,
}

/// The part of an object that counts here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Object<S> {
    spec: S,
}

/// What somebody may have written on a HookRun.
#[derive(Clone, Debug, Default, Deserialize)]
struct Marked {
    #[serde(default)]
    metadata: Marks,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Marks {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Marked {
    fn get(&self, place: Place, key: &str) -> Option<&str> {
        let all = match place {
            Place::Label => &self.metadata.labels,
            Place::Annotation => &self.metadata.annotations,
        };
        all.as_ref()?.get(key).map(String::as_str)
    }
}

impl Rights {
    /// Whether whoever asks may write this.
    pub(super) async fn judge(&self, asked: &Request) -> Answer {
        let needed = match needed(asked, &self.accounts) {
            Ok(needed) => needed,
            Err(message) => return Answer::Refused(Refusal::forbidden(message)),
        };
        match timeout(IN_TIME, self.look(asked, &needed)).await {
            Ok(Ok(())) => Answer::Allowed(Vec::new()),
            Ok(Err(message)) => Answer::Refused(Refusal::forbidden(message)),
            Err(_) => Answer::Refused(Refusal::forbidden(unknown(asked, "the API server takes too long"))),
        }
    }

    async fn look(&self, asked: &Request, needed: &BTreeSet<PodAccess>) -> Result<(), String> {
        let who = &asked.user_info;
        let subject = Subject {
            user: who.username.clone(),
            uid: who.uid.clone(),
            groups: who.groups.clone(),
            extra: who.extra.clone(),
        };
        for access in needed {
            match self.server.may(&subject, &asked.namespace, *access).await {
                Ok(true) => {}
                Ok(false) => return Err(lacking(asked, *access)),
                Err(error) => return Err(unknown(asked, &chain(&error))),
            }
        }
        Ok(())
    }
}

/// The rights that a write amounts to; the error says why nobody of this name may do it whatever his rights.
fn needed(asked: &Request, accounts: &Accounts) -> Result<BTreeSet<PodAccess>, String> {
    let none = BTreeSet::new();
    let by_controller = asked.user_info.username == accounts.controller;
    if !matches!(asked.operation.as_str(), "CREATE" | "UPDATE") {
        return Ok(none);
    }
    match (asked.kind.group.as_str(), asked.kind.kind.as_str()) {
        ("tkex.tencent.com", "HookTemplate") => {
            Ok(changed::<HookTemplateSpec>(asked, |_| {}, |spec| of_metrics(&spec.metrics)))
        }
        // Made from templates, whose writers were asked; one for each change of a configuration that a workload names.
        ("tkex.tencent.com", "HookRun") | ("inplace.dev", "InPlaceRollout") if by_controller => Ok(none),
        ("tkex.tencent.com", "HookRun") => of_run(asked, accounts),
        ("inplace.dev", "InPlaceRollout") => {
            Ok(changed::<InPlaceRolloutSpec>(asked, |spec| spec.paused = false, |_| BTreeSet::from([PATCH])))
        }
        _ => Ok(none),
    }
}

fn of_run(asked: &Request, accounts: &Accounts) -> Result<BTreeSet<PodAccess>, String> {
    let new = asked.new_as::<Marked>().map_err(|error| format!("metadata: it cannot be read: {error}"))?;
    let old = asked.old_as::<Marked>().unwrap_or_default();
    let by = asked.user_info.printable();
    let differs = |place: Place, key: &str| old.get(place, key) != new.get(place, key);
    if let Some((_, key)) = OF_CONTROLLER.iter().find(|(place, key)| differs(*place, key)) {
        return Err(format!(
            "metadata: {key} is set on a HookRun by the controller ({}) alone, not by {by}",
            accounts.controller
        ));
    }
    let other_runner = OF_RUNNING.iter().any(|key| differs(Place::Label, key));
    if asked.user_info.username != accounts.agent {
        let amounts = |spec: &HookRunSpec| of_metrics(&spec.metrics);
        return Ok(if other_runner {
            of_spec(asked, amounts)
        } else {
            changed(asked, |spec: &mut HookRunSpec| spec.terminate = false, amounts)
        });
    }
    // What an agent makes shows a hook of an operation, which nobody runs because it is there.
    let creates = asked.operation == "CREATE";
    let shows = new.get(Place::Label, annotation::OPERATION).is_some();
    let what = if differs(Place::Annotation, annotation::APPROVE) {
        "an agent approves no HookRun"
    } else if creates && !shows {
        "an agent makes HookRuns of its own operations only"
    } else if !creates && (other_runner || !is_same::<HookRunSpec>(asked, |_| {})) {
        "an agent changes neither what a HookRun measures nor where"
    } else {
        return Ok(BTreeSet::new());
    };
    Err(format!("{what} (user {by})"))
}

/// What the new spec amounts to, where it is another one than before but for what `even` makes the same.
fn changed<S: DeserializeOwned + PartialEq>(
    asked: &Request,
    even: impl Fn(&mut S),
    amounts: impl Fn(&S) -> BTreeSet<PodAccess>,
) -> BTreeSet<PodAccess> {
    if is_same(asked, even) { BTreeSet::new() } else { of_spec(asked, amounts) }
}

/// What cannot be read may be anything.
fn of_spec<S: DeserializeOwned>(
    asked: &Request,
    amounts: impl Fn(&S) -> BTreeSet<PodAccess>,
) -> BTreeSet<PodAccess> {
    asked.new_as::<Object<S>>().map_or_else(|_| BTreeSet::from([EXEC, PATCH]), |new| amounts(&new.spec))
}

fn is_same<S: DeserializeOwned + PartialEq>(asked: &Request, even: impl Fn(&mut S)) -> bool {
    let (Some(mut old), Ok(mut new)) = (asked.old_as::<Object<S>>(), asked.new_as::<Object<S>>()) else {
        return false;
    };
    even(&mut old.spec);
    even(&mut new.spec);
    new.spec == old.spec
}

fn of_metrics(metrics: &[Metric]) -> BTreeSet<PodAccess> {
    let mut needed = BTreeSet::new();
    for provider in metrics.iter().map(|metric| &metric.provider) {
        // The network of a node is as good as a shell in one of its pods.
        if provider.exec.is_some() || provider.web.is_some() || provider.prometheus.is_some() {
            needed.insert(EXEC);
        }
        match provider.kubernetes.as_ref().map(|kubernetes| kubernetes.function) {
            Some(Function::Get) => needed.insert(GET),
            Some(Function::Patch) => needed.insert(PATCH),
            None => false,
        };
    }
    needed
}

fn lacking(asked: &Request, access: PodAccess) -> String {
    let Request { kind, namespace, user_info, .. } = asked;
    format!(
        "user {} may not {access} in namespace {namespace}, which writing this {} amounts to: whoever writes it needs that right",
        user_info.printable(),
        kind.kind
    )
}

fn unknown(asked: &Request, why: &str) -> String {
    format!("whether {} may write this cannot be told now: {why}. Try again", asked.user_info.printable())
}
