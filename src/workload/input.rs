//! Everything that one decision looks at, arranged once.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::api::pod_template::PodTemplate;
use crate::workload::hooks::{self, HookTemplates, Run};
use crate::workload::order::Nodes;
use crate::workload::pods::{Pod, Templates, View};
use crate::workload::revision::{Record, Revision};
use crate::workload::spec::WorkloadSpec;

/// What is known of a volume claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// A pod can use it.
    Bindable,
    /// It is being deleted: a pod that uses it is never scheduled.
    Terminating,
}

/// Volume claims by name.
pub type Claims = BTreeMap<String, ClaimState>;

/// What is seen of the cluster.
#[derive(Clone, Debug)]
pub struct Seen<'a> {
    /// All pods that the workload owns, those on their way out too.
    pub pods: Vec<&'a Pod>,
    /// Its history.
    pub history: Vec<Record>,
    /// The revisions that its pods are at, or on the way to, and the one that it was at last: with their templates.
    pub revisions: &'a [Revision],
    /// Its hooks.
    pub runs: &'a [Run],
    /// The `HookTemplate`s of its namespace.
    pub templates: &'a HookTemplates,
    /// The nodes.
    pub nodes: &'a Nodes,
    /// The volume claims of its namespace.
    pub claims: &'a Claims,
    /// Names of pods that are not its own and stand where one of its own would be.
    pub taken: &'a BTreeSet<String>,
    /// The time.
    pub now: Timestamp,
}

/// What one decision looks at.
pub struct ReconcileInput<'a> {
    /// What is wanted.
    pub spec: &'a WorkloadSpec,
    /// All its pods.
    pub pods: &'a [&'a Pod],
    /// All its pods by name.
    pub by_name: BTreeMap<&'a str, &'a Pod>,
    /// Those that count: neither on their way out nor at their end.
    pub views: Vec<View<'a>>,
    /// The revision of the template.
    pub update: &'a Revision,
    /// The revision that a partition holds pods back at.
    pub current: &'a Revision,
    /// Templates by revision; of those that nobody needs whole only what [`Record`] has.
    pub revisions: Templates<'a>,
    /// Whole templates by revision.
    whole: Templates<'a>,
    /// Hooks by the pod that they are about.
    pub runs: BTreeMap<&'a str, Vec<&'a Run>>,
    /// What is known of their templates.
    pub templates: &'a HookTemplates,
    /// The nodes.
    pub nodes: &'a Nodes,
    /// The volume claims that are there.
    pub claims: &'a Claims,
    /// Names that are not to be had.
    pub taken: &'a BTreeSet<String>,
    /// The time.
    pub now: Timestamp,
}

impl<'a> ReconcileInput<'a> {
    /// Arranges what is seen.
    pub fn new(
        spec: &'a WorkloadSpec,
        seen: &'a Seen<'a>,
        update: &'a Revision,
        current: &'a Revision,
    ) -> Self {
        let known = seen.revisions.iter().chain([update]);
        let whole: Templates<'a> =
            known.map(|revision| (revision.name.as_str(), &revision.template)).collect();
        let mut revisions: Templates<'a> =
            seen.history.iter().map(|record| (record.name.as_str(), &record.images)).collect();
        revisions.extend(&whole);
        let active = seen.pods.iter().filter(|pod| pod.is_active());
        let views = active.map(|pod| View::of(pod, &revisions, spec.min_ready, seen.now)).collect();
        let mut runs: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in seen.runs {
            runs.entry(&run.pod_uid).or_default().push(run);
        }
        Self {
            spec,
            pods: &seen.pods,
            by_name: seen.pods.iter().map(|pod| (pod.name.as_str(), *pod)).collect(),
            views,
            update,
            current,
            revisions,
            whole,
            runs,
            templates: seen.templates,
            nodes: seen.nodes,
            claims: seen.claims,
            taken: seen.taken,
            now: seen.now,
        }
    }

    /// The name of the template's revision.
    pub fn update_name(&self) -> &'a str {
        &self.update.name
    }

    /// The name of the revision that is held back.
    pub fn current_name(&self) -> &'a str {
        &self.current.name
    }

    /// The hooks about a pod.
    pub fn runs_of(&self, pod: &Pod) -> &[&'a Run] {
        self.runs.get(pod.uid.as_str()).map_or(&[], Vec::as_slice)
    }

    /// The template of a revision.
    pub fn template(&self, revision: &str) -> Option<&'a PodTemplate> {
        self.whole.get(revision).copied()
    }

    /// True when the hook of the pod's turn let it pass.
    pub fn has_passed(&self, view: &View<'_>) -> bool {
        let Some(task) = &view.pod.task else { return false };
        let hook = hooks::of(self.spec, task.purpose);
        hooks::gate(view.pod, task, hook, self.runs_of(view.pod), self.templates) == hooks::Gate::Open
    }
}
