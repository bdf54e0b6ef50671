//! The spec of a workload of either kind: defaults applied, texts parsed. It is built from the API objects and
//! nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

use crate::api::game_deployment::{
    GameDeployment, GameDeploymentSpec, ScaleStrategy, UpdateStrategy, UpdateType,
};
use crate::api::game_stateful_set::{
    ClaimRetention, GameStatefulSet, GameStatefulSetSpec, PodManagementPolicy, RollingUpdate,
};
use crate::api::pod_template::{ClaimTemplate, PodTemplate};
use crate::api::priority::PriorityKey;
use crate::api::request::Order;
use crate::api::selector::Matcher;
use crate::api::workload::{Canary, ContainerOrder, HookStrategy, UpdateFailurePolicy, WorkloadHook};
use crate::api::workload_key;
use crate::podtask::amount::{Amount, Bounds};

/// The spec of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadSpec {
    /// The kind, with the fields that only this kind has.
    pub kind: Kind,
    /// Name of the workload.
    pub name: String,
    /// Namespace of the workload.
    pub namespace: String,
    /// Uid of the workload.
    pub uid: String,
    /// Generation of the spec.
    pub generation: i64,
    /// True when the workload is being deleted: nothing more is done for it.
    pub deleting: bool,
    /// Desired number of pods.
    pub replicas: usize,
    /// The selector of its pods.
    pub selector: LabelSelector,
    /// The same, converted once; `None` if it selects no pod.
    pub(crate) matcher: Option<Matcher>,
    /// The template of its pods.
    pub template: PodTemplate,
    /// How long a pod must be Ready before it is available.
    pub min_ready: SignedDuration,
    /// How long an update may make no progress; none: without a limit.
    pub progress_deadline: Option<SignedDuration>,
    /// How many old revisions are kept.
    pub history: usize,
    /// How many new pods may be Pending at once.
    pub create_batch: Amount,
    /// True when pods get the readiness gate.
    pub gate: bool,
    /// The update strategy.
    pub update: Update,
    /// The hooks that gate deletions and updates.
    pub hooks: Hooks,
}

/// The kind of a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Pods without ordinals.
    Deployment(Deployment),
    /// Pods with ordinals.
    StatefulSet(StatefulSet),
}

/// Fields that only a `GameDeployment` has.
#[derive(Clone, Debug, PartialEq)]
pub struct Deployment {
    /// Names of pods to delete before all others.
    pub pods_to_delete: BTreeSet<String>,
    /// True when pods of high deletion cost are deleted first.
    pub costly_first: bool,
    /// The numbers for the pods, if they are numbered; or why they cannot be, with the field.
    pub indices: Result<Option<Range<u32>>, String>,
}

/// Fields that only a `GameStatefulSet` has.
#[derive(Clone, Debug, PartialEq)]
pub struct StatefulSet {
    /// The Service of its host names.
    pub service: String,
    /// True when pods are created, deleted and updated one after the other.
    pub ordered: bool,
    /// Templates for the claims of each pod.
    pub claims: Vec<ClaimTemplate>,
    /// When those claims are deleted.
    pub retention: ClaimRetention,
    /// Ordinals that are skipped.
    pub reserved: BTreeSet<u32>,
    /// True when pods on lost nodes are deleted by force.
    pub force_lost: bool,
}

/// How pods are updated.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the spec")]
pub struct Update {
    /// The update type.
    pub way: UpdateType,
    /// How many pods are held back when no canary step says otherwise.
    pub partition: Amount,
    /// How many pods may be unavailable.
    pub max_unavailable: Amount,
    /// How many pods may exist beyond `replicas`.
    pub max_surge: Amount,
    /// True when the user lets no update begin.
    pub paused: bool,
    /// The canary step that the user resumes.
    pub resume_step: Option<String>,
    /// Seconds out of traffic before an update in place.
    pub grace: u32,
    /// True when images are pulled in advance.
    pub prefetch: bool,
    /// The order of containers within a pod.
    pub policy: ContainerOrder,
    /// Whether a new container is started before or after the old one is stopped.
    pub order: Order,
    /// The canary steps.
    pub canary: Option<Canary>,
    /// The keys of the order of pods. Not used for pods that are updated one after the other by ordinal.
    pub priority: Vec<PriorityKey>,
    /// True when a change that cannot be made in place may recreate pods.
    pub fallback: bool,
    /// How many failed pods stop an update, if given.
    pub threshold: Option<Amount>,
    /// What happens when failed pods or the progress deadline stop the update.
    pub on_failure: UpdateFailurePolicy,
    /// True when failed updates are to be retried.
    pub retry: bool,
}

/// The hooks, and which of them are to be run again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Before a deletion.
    pub pre_delete: Option<WorkloadHook>,
    /// Before an update in place.
    pub pre_inplace: Option<WorkloadHook>,
    /// After an update in place.
    pub post_inplace: Option<WorkloadHook>,
    /// Run `pre_delete` again.
    pub retry_pre_delete: bool,
    /// Run `pre_inplace` again.
    pub retry_pre_inplace: bool,
    /// Run `post_inplace` again.
    pub retry_post_inplace: bool,
}

impl WorkloadSpec {
    /// The spec of a `GameDeployment`. Admission rejects invalid amounts; if one was stored all the same, the default
    /// applies.
    pub fn of_deployment(object: &GameDeployment) -> Self {
        let spec = object.spec.clone();
        let about = About::of(&object.metadata);
        let deployment = Deployment {
            pods_to_delete: spec.scale_strategy.pods_to_delete.iter().cloned().collect(),
            costly_first: about.has_annotation(workload_key::COST_ORDER, "descend"),
            indices: about.indices(),
        };
        about.spec(Kind::Deployment(deployment), spec)
    }

    /// The spec of a `GameStatefulSet`; see [`Self::of_deployment`].
    pub fn of_stateful_set(object: &GameStatefulSet) -> Self {
        let spec = &object.spec;
        let set = StatefulSet {
            service: spec.service_name.clone(),
            ordered: spec.pod_management_policy == PodManagementPolicy::OrderedReady,
            claims: spec.volume_claim_templates.clone(),
            retention: spec.persistent_volume_claim_retention_policy.unwrap_or_default(),
            reserved: spec.reserve_orders.iter().filter_map(|ordinal| u32::try_from(*ordinal).ok()).collect(),
            force_lost: spec
                .template
                .annotations()
                .get(workload_key::NODE_LOST)
                .is_some_and(|text| text == "true"),
        };
        About::of(&object.metadata).spec(Kind::StatefulSet(set), same(spec.clone()))
    }

    /// True when the selector of the workload matches these labels.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        self.matcher.as_ref().is_some_and(|matcher| matcher.matches(labels))
    }

    /// The fields of a `GameStatefulSet`, if it is one.
    pub fn stateful(&self) -> Option<&StatefulSet> {
        match &self.kind {
            Kind::StatefulSet(set) => Some(set),
            Kind::Deployment(_) => None,
        }
    }

    /// The fields of a `GameDeployment`, if it is one.
    pub fn deployment(&self) -> Option<&Deployment> {
        match &self.kind {
            Kind::Deployment(own) => Some(own),
            Kind::StatefulSet(_) => None,
        }
    }

    /// The kind as the API names it.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            Kind::Deployment(_) => "GameDeployment",
            Kind::StatefulSet(_) => "GameStatefulSet",
        }
    }

    /// The limits of an update. For pods that are updated one after the other they are fixed: one unavailable pod, no
    /// surge.
    pub fn bounds(&self) -> Bounds {
        if self.stateful().is_some_and(|set| set.ordered) {
            return Bounds { unavailable: 1.min(self.replicas), surge: 0 };
        }
        let surges = matches!(self.update.way, UpdateType::RollingUpdate | UpdateType::InplaceUpdate);
        let surge = if surges { self.update.max_surge } else { Amount::Count(0) };
        Bounds::of(self.update.max_unavailable, surge, self.replicas)
    }

    /// The field that has to change before a pod can be updated, and why, if the limits allow no update: no pod may be
    /// unavailable, and none may exist beyond `replicas`.
    pub fn budget_problem(&self) -> Option<String> {
        let ordered = self.stateful().is_some_and(|set| set.ordered);
        let surges = self.update.way != UpdateType::HotPatchUpdate;
        let possible = !self.update.max_unavailable.is_zero() || surges && !self.update.max_surge.is_zero();
        if possible || ordered || self.update.way == UpdateType::OnDelete {
            return None;
        }
        let fields = if self.stateful().is_some() { "rollingUpdate." } else { "" };
        let why = if surges {
            "it and maxSurge are 0, so no pod can be updated: set one of them to 1 or more"
        } else {
            "it is 0, and HotPatchUpdate does not use maxSurge, so no pod can be updated: set it to 1 or more"
        };
        Some(format!("spec.updateStrategy.{fields}maxUnavailable: {why}"))
    }

    /// Why the pods cannot be numbered, with the field, if so: no range has a number for each of them. Surge pods do not
    /// count, as in bk-bcs.
    pub fn index_problem(&self) -> Option<String> {
        match &self.deployment()?.indices {
            Err(problem) => Some(problem.clone()),
            // Without figures, so that admission recognizes a problem that was stored before.
            Ok(Some(numbers)) if numbers.len() < self.replicas => {
                Some(index_range("has fewer numbers than spec.replicas: extend it, or scale in"))
            }
            Ok(_) => None,
        }
    }

    /// Why the progress deadline would stop an update in which nothing is wrong, if so: between two steps of a pod may be
    /// the whole grace period and `minReadySeconds`.
    pub fn deadline_problem(&self) -> Option<String> {
        let deadline = self.progress_deadline?;
        let drains = self.update.way == UpdateType::InplaceUpdate && self.gate;
        let grace = SignedDuration::from_secs(if drains { self.update.grace.into() } else { 0 });
        // A standby has to stay up for `minReadySeconds` before the new container has to.
        let ready = if self.starts_first() { self.min_ready + self.min_ready } else { self.min_ready };
        let (fields, least) = match (self.starts_first(), grace.is_zero()) {
            (false, true) => ("minReadySeconds", ready),
            (false, false) => {
                ("minReadySeconds and inPlaceUpdateStrategy.gracePeriodSeconds together", ready + grace)
            }
            (true, true) => ("twice minReadySeconds, because of the order StartFirst", ready),
            (true, false) => (
                "twice minReadySeconds, because of the order StartFirst, and inPlaceUpdateStrategy.gracePeriodSeconds \
                 together",
                ready + grace,
            ),
        };
        (deadline <= least).then(|| {
            format!(
                "spec.progressDeadlineSeconds: must be greater than {fields} ({} s), or every update exceeds it",
                least.as_secs()
            )
        })
    }

    /// How many failed pods stop an update; by default as many as may be unavailable, and at least one.
    pub fn threshold(&self) -> usize {
        let of_budget = self.bounds().unavailable;
        self.update.threshold.map_or(of_budget, |threshold| threshold.up(self.replicas)).max(1)
    }

    /// True when a person asks to try pods again that could not be updated.
    pub fn retries_update(&self) -> bool {
        self.update.retry || self.hooks.retry_pre_inplace || self.hooks.retry_post_inplace
    }

    /// True when pods are updated in place with the order `StartFirst`.
    pub fn starts_first(&self) -> bool {
        self.is_in_place() && self.update.order == Order::StartFirst
    }

    /// True when pods are updated in place.
    pub fn is_in_place(&self) -> bool {
        matches!(self.update.way, UpdateType::InplaceUpdate | UpdateType::HotPatchUpdate)
    }
}

impl Hooks {
    fn of(
        pre_delete: Option<HookStrategy>,
        pre_inplace: Option<HookStrategy>,
        post_inplace: Option<HookStrategy>,
    ) -> Self {
        let hook = |strategy: Option<HookStrategy>| strategy.and_then(|strategy| strategy.hook);
        let retry =
            |strategy: &Option<HookStrategy>| strategy.as_ref().is_some_and(|strategy| strategy.retry);
        Self {
            retry_pre_delete: retry(&pre_delete),
            retry_pre_inplace: retry(&pre_inplace),
            retry_post_inplace: retry(&post_inplace),
            pre_delete: hook(pre_delete),
            pre_inplace: hook(pre_inplace),
            post_inplace: hook(post_inplace),
        }
    }
}

/// The range of numbers for pods in its annotation. The end is not one of them.
#[derive(Deserialize)]
struct IndexRange {
    #[serde(rename = "podStartIndex", default)]
    start: u32,
    #[serde(rename = "podEndIndex", default)]
    end: u32,
}

/// A problem of the annotation.
fn index_range(what: &str) -> String {
    format!("metadata.annotations[{}]: {what}", workload_key::INDEX_RANGE)
}

/// An object's metadata, with annotations that can be queried.
struct About<'a> {
    metadata: &'a ObjectMeta,
    annotations: BTreeMap<&'a str, &'a str>,
}

impl<'a> About<'a> {
    fn of(metadata: &'a ObjectMeta) -> Self {
        let annotations = metadata.annotations.iter().flatten();
        Self {
            metadata,
            annotations: annotations.map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        }
    }

    fn has_annotation(&self, key: &str, value: &str) -> bool {
        self.annotations.get(key) == Some(&value)
    }

    /// The numbers for the pods.
    fn indices(&self) -> Result<Option<Range<u32>>, String> {
        if !self.has_annotation(workload_key::INDEX_ON, "true") {
            return Ok(None);
        }
        let Some(text) = self.annotations.get(workload_key::INDEX_RANGE) else {
            return Err(index_range(&format!("is missing: {} is true", workload_key::INDEX_ON)));
        };
        let IndexRange { start, end } = serde_json::from_str(text).map_err(|error| {
            index_range(&format!(
                "not a range such as {{\"podStartIndex\":100,\"podEndIndex\":110}}: {error}"
            ))
        })?;
        let numbers = start..end;
        if numbers.is_empty() {
            return Err(index_range("podEndIndex has to be greater than podStartIndex"));
        }
        Ok(Some(numbers))
    }

    fn spec(&self, kind: Kind, spec: GameDeploymentSpec) -> WorkloadSpec {
        WorkloadSpec {
            kind,
            name: self.metadata.name.clone().unwrap_or_default(),
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            uid: self.metadata.uid.clone().unwrap_or_default(),
            generation: self.metadata.generation.unwrap_or_default(),
            deleting: self.metadata.deletion_timestamp.is_some(),
            replicas: count(spec.replicas),
            matcher: Matcher::of(&spec.selector),
            selector: spec.selector,
            template: spec.template,
            min_ready: SignedDuration::from_secs(i64::from(spec.min_ready_seconds.max(0))),
            progress_deadline: spec
                .progress_deadline_seconds
                .map(|seconds| SignedDuration::from_secs(i64::from(seconds.max(1)))),
            history: count(spec.revision_history_limit),
            create_batch: amount(&spec.scale_strategy.create_batch, Amount::Percent(100)),
            gate: !spec.disable_readiness_gate,
            update: self.update(spec.update_strategy),
            hooks: Hooks::of(
                spec.pre_delete_update_strategy,
                spec.pre_inplace_update_strategy,
                spec.post_inplace_update_strategy,
            ),
        }
    }

    fn update(&self, strategy: UpdateStrategy) -> Update {
        let threshold = self.annotations.get(workload_key::FAILURE_THRESHOLD);
        Update {
            way: strategy.kind,
            partition: amount(&strategy.partition, Amount::Count(0)),
            max_unavailable: amount(&strategy.max_unavailable, Amount::Percent(25)),
            max_surge: amount(&strategy.max_surge, Amount::Count(0)),
            paused: strategy.paused,
            resume_step: self.annotations.get(workload_key::RESUME_STEP).map(|&step| step.to_owned()),
            on_failure: strategy.on_failure,
            grace: u32::try_from(strategy.in_place_update_strategy.grace_period_seconds).unwrap_or(0),
            prefetch: strategy.in_place_update_strategy.prefetch,
            policy: strategy.in_place_update_strategy.policy,
            order: strategy.in_place_update_strategy.order,
            canary: strategy.canary,
            priority: strategy.priority,
            fallback: self.has_annotation(workload_key::FALLBACK, "Recreate"),
            threshold: threshold.and_then(|text| Amount::parse(text).ok()),
            retry: self.annotations.contains_key(workload_key::RETRY),
        }
    }
}

/// The spec of a set in the fields of a deployment, without what only a [`StatefulSet`] has.
fn same(spec: GameStatefulSetSpec) -> GameDeploymentSpec {
    let update = spec.update_strategy;
    let RollingUpdate { partition, max_unavailable, max_surge } = update.rolling_update.unwrap_or_default();
    GameDeploymentSpec {
        replicas: spec.replicas,
        selector: spec.selector,
        template: spec.template,
        service_name: None,
        min_ready_seconds: spec.min_ready_seconds,
        progress_deadline_seconds: spec.progress_deadline_seconds,
        revision_history_limit: spec.revision_history_limit,
        scale_strategy: ScaleStrategy {
            pods_to_delete: Vec::new(),
            create_batch: spec.scale_strategy.create_batch,
        },
        disable_readiness_gate: spec.disable_readiness_gate,
        update_strategy: UpdateStrategy {
            kind: update.kind,
            partition,
            max_unavailable,
            max_surge,
            paused: update.paused,
            on_failure: update.on_failure,
            in_place_update_strategy: update.in_place_update_strategy,
            canary: update.canary,
            priority: update.priority,
        },
        pre_delete_update_strategy: spec.pre_delete_update_strategy,
        pre_inplace_update_strategy: spec.pre_inplace_update_strategy,
        post_inplace_update_strategy: spec.post_inplace_update_strategy,
    }
}

fn count(number: i32) -> usize {
    usize::try_from(number).unwrap_or(0)
}

fn amount(value: &IntOrString, default: Amount) -> Amount {
    Amount::read(value).unwrap_or(default)
}
