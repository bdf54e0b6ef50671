//! Decides who may write hooks and rollouts: users who have the rights that the object amounts to. The API server
//! is asked for each write. Must not check the content of a spec otherwise.
//!
//! A hook that runs a command or sends network requests amounts to `create pods/exec`; one that reads its pod or
//! sets an annotation amounts to `get` or `patch` on pods; a rollout changes images of pods, and a ContainerRecreateRequest
//! restarts containers, as a request in an annotation of the pod does. The rights are those
//! of the user in the review, and are needed only if a relevant field changes: a user with `patch` on these
//! objects may pause a rollout and approve or terminate a HookRun.
//!
//! The guard and the controllers also store their requests and results in HookRuns. Only the controller may write
//! what ties a HookRun to a pod and to what its success permits. An agent may write only the HookRuns that
//! publish its own operations. No other user may mark a HookRun as an operation's, or create one that is approved
//! or has ended before it ran.
//!
//! The sender of a review is not authenticated unless the API server presents a certificate. Without it, an
//! answer names the rights that an object amounts to, which is no secret, but not which right the user lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::timeout;

use crate::api::annotation;
use crate::api::container_recreate_request::ContainerRecreateRequestSpec;
use crate::api::hook_run::HookRunSpec;
use crate::api::hook_template::{Function, HookTemplateSpec, Metric, Provider};
use crate::api::in_place_rollout::InPlaceRolloutSpec;
use crate::api::workload_key;
use crate::cluster::access::{PodAccess, Subject};
use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::controller::admission::review::{Answer, Refusal, Request};
use crate::process::log::chain;

/// Time limit of a decision. The API server waits 10 s, and its own timeout message is less helpful.
const IN_TIME: Duration = Duration::from_secs(3);
const EXEC: PodAccess = PodAccess { verb: "create", subresource: "exec" };
const GET: PodAccess = PodAccess { verb: "get", subresource: "" };
const PATCH: PodAccess = PodAccess { verb: "patch", subresource: "" };
/// Labels and annotations of a HookRun that only the controller sets, changes and removes.
const OF_CONTROLLER: [(Place, &str); 4] = [
    (Place::Label, annotation::DELETE_GUARD),
    (Place::Annotation, workload_key::TASK),
    (Place::Annotation, workload_key::OLD_TASK),
    (Place::Annotation, workload_key::HOOK_POD),
];

/// Answers reviews of HookTemplates, HookRuns and InPlaceRollouts.
#[derive(Clone)]
pub(super) struct Rights {
    pub(super) server: Server,
    pub(super) accounts: Accounts,
    /// True if only the API server can connect (client certificates are required).
    pub(super) api_server_only: bool,
}

/// The users that this project's own processes write as.
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

/// The part of an object that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct Object<S> {
    spec: S,
}

/// The fields of a HookRun that a user may have set.
#[derive(Clone, Debug, Default, Deserialize)]
struct WrittenRun {
    #[serde(default)]
    metadata: WrittenMetadata,
    /// An API server with the status subresource removes the status before it sends the review.
    #[serde(default)]
    status: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct WrittenMetadata {
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl WrittenRun {
    fn get(&self, place: Place, key: &str) -> Option<&str> {
        let all = match place {
            Place::Label => &self.metadata.labels,
            Place::Annotation => &self.metadata.annotations,
        };
        all.as_ref()?.get(key).map(String::as_str)
    }
}

impl Rights {
    /// Whether the user may make this write.
    pub(super) async fn judge(&self, asked: &Request) -> Answer {
        let needed = match needed(asked, &self.accounts) {
            Ok(needed) => needed,
            Err(message) => return Answer::Refused(Refusal::forbidden(message)),
        };
        match timeout(IN_TIME, self.lacking(asked, &needed)).await {
            Ok(Ok(None)) => Answer::Allowed(Vec::new()),
            Ok(Ok(Some(access))) => Answer::Refused(Refusal::forbidden(self.refused(asked, &needed, access))),
            Ok(Err(error)) => Answer::Refused(Refusal::forbidden(self.unknown(asked, &chain(&error)))),
            Err(_) => {
                Answer::Refused(Refusal::forbidden(self.unknown(asked, "the API server takes too long")))
            }
        }
    }

    /// The first of the needed rights that the user lacks.
    async fn lacking(
        &self,
        asked: &Request,
        needed: &BTreeSet<PodAccess>,
    ) -> Result<Option<PodAccess>, Error> {
        let who = &asked.user_info;
        let subject = Subject { user: &who.username, uid: &who.uid, groups: &who.groups, extra: &who.extra };
        for access in needed {
            if !self.server.may(subject, &asked.namespace, *access).await? {
                return Ok(Some(*access));
            }
        }
        Ok(None)
    }

    fn refused(&self, asked: &Request, needed: &BTreeSet<PodAccess>, lacking: PodAccess) -> String {
        let Request { kind, namespace, user_info, .. } = asked;
        let (kind, by) = (&kind.kind, user_info.printable());
        if self.api_server_only {
            return format!(
                "user {by} may not {lacking} in namespace {namespace}: writing this {kind} requires that right, because it \
                 amounts to it"
            );
        }
        let needed: Vec<_> = needed.iter().map(ToString::to_string).collect();
        format!(
            "user {by} may not write this {kind}: writing it requires the rights that it amounts to in namespace \
             {namespace}: {}",
            needed.join(", ")
        )
    }

    fn unknown(&self, asked: &Request, why: &str) -> String {
        let by = asked.user_info.printable();
        if self.api_server_only {
            return format!("whether {by} may write this cannot be determined now: {why}. Try again");
        }
        tracing::debug!(namespace = asked.namespace, by, "the rights of a user cannot be determined: {why}");
        format!(
            "whether {by} may write this cannot be determined now: the API server does not answer. Try again"
        )
    }
}

/// The rights that a write amounts to. The error says why this user may not make it, whatever the rights.
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
        // The controller creates HookRuns from templates, whose writers were checked, and one InPlaceRollout for
        // each change of a configuration that a workload names.
        ("tkex.tencent.com", "HookRun") | ("inplace.dev", "InPlaceRollout") if by_controller => Ok(none),
        ("tkex.tencent.com", "HookRun") => of_run(asked, accounts),
        ("inplace.dev", "InPlaceRollout") => {
            Ok(changed::<InPlaceRolloutSpec>(asked, |spec| spec.paused = false, |_| BTreeSet::from([PATCH])))
        }
        ("apps.kruise.io", "ContainerRecreateRequest") => Ok(changed::<ContainerRecreateRequestSpec>(
            asked,
            |spec| spec.ttl_seconds_after_finished = None,
            |_| BTreeSet::from([PATCH]),
        )),
        _ => Ok(none),
    }
}

fn of_run(asked: &Request, accounts: &Accounts) -> Result<BTreeSet<PodAccess>, String> {
    let new =
        asked.new_as::<WrittenRun>().map_err(|error| format!("metadata: cannot be decoded: {error}"))?;
    let old = asked.old_as::<WrittenRun>().unwrap_or_default();
    let by = asked.user_info.printable();
    let differs = |place: Place, key: &str| old.get(place, key) != new.get(place, key);
    if let Some((_, key)) = OF_CONTROLLER.iter().find(|(place, key)| differs(*place, key)) {
        return Err(format!(
            "metadata: {key} may be set on a HookRun only by the controller ({}), not by {by}",
            accounts.controller
        ));
    }
    let creates = asked.operation == "CREATE";
    let other_operation = differs(Place::Label, annotation::OPERATION);
    let other_runner = differs(Place::Label, annotation::NODE);
    if asked.user_info.username != accounts.agent {
        let what = if other_operation {
            format!(
                "metadata: {} may be set on a HookRun only by the agents ({})",
                annotation::OPERATION,
                accounts.agent
            )
        } else if creates && new.get(Place::Annotation, annotation::APPROVE).is_some() {
            format!(
                "metadata: {}: create the HookRun without this annotation, and approve it after that",
                annotation::APPROVE
            )
        } else if creates && new.status.is_some() {
            "status: a HookRun must be created without a status".to_owned()
        } else {
            String::new()
        };
        if !what.is_empty() {
            return Err(format!("{what} (user {by})"));
        }
        let amounts = |spec: &HookRunSpec| of_metrics(&spec.metrics);
        return Ok(if other_runner {
            of_spec(asked, amounts)
        } else {
            changed(asked, |spec: &mut HookRunSpec| spec.terminate = false, amounts)
        });
    }
    // An agent creates HookRuns only to publish a hook of an operation. No runner executes these.
    let of_operation = new.get(Place::Label, annotation::OPERATION).is_some();
    let what = if differs(Place::Annotation, annotation::APPROVE) {
        "an agent must not approve a HookRun"
    } else if creates && !of_operation {
        "an agent may create HookRuns only for its own operations"
    } else if !creates && (other_operation || other_runner || !is_same::<HookRunSpec>(asked, |_| {})) {
        "an agent must not change the spec, the node or the operation of a HookRun"
    } else {
        return Ok(BTreeSet::new());
    };
    Err(format!("{what} (user {by})"))
}

/// The rights that the new spec amounts to, if it differs from the old one apart from the fields that `even`
/// makes equal.
fn changed<S: DeserializeOwned + PartialEq>(
    asked: &Request,
    even: impl Fn(&mut S),
    amounts: impl Fn(&S) -> BTreeSet<PodAccess>,
) -> BTreeSet<PodAccess> {
    if is_same(asked, even) { BTreeSet::new() } else { of_spec(asked, amounts) }
}

/// The rights of the new spec. A spec that cannot be decoded may contain anything, so it needs `EXEC` and
/// `PATCH`.
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
    for metric in metrics {
        // All fields are named: a new provider without a rule here does not compile.
        let Provider { web, prometheus, kubernetes, exec } = &metric.provider;
        // A connection from a node requires the same right as a command in a pod of that node.
        if exec.is_some() || web.is_some() || prometheus.is_some() {
            needed.insert(EXEC);
        }
        match kubernetes.as_ref().map(|kubernetes| kubernetes.function) {
            Some(Function::Get) => needed.insert(GET),
            Some(Function::Patch) => needed.insert(PATCH),
            None => false,
        };
    }
    needed
}
