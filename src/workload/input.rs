//! Arranges the input of one decision: what the cache holds, indexed once per reconcile. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::api::pod_template::PodTemplate;
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::node_load::NodeLoad;
use crate::podtask::pod::Pod;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::{PodTask, Purpose};
use crate::workload::claims::{Claims, StorageClasses};
use crate::workload::hooks::{self, HookTemplates, Run};
use crate::workload::order::Nodes;
use crate::workload::revision::{Record, Revision};
use crate::workload::spec::WorkloadSpec;
use crate::workload::stateful::is_replica_of;
use crate::workload::view::{PodView, Templates};

/// What the cache holds for one workload.
#[derive(Clone, Debug)]
pub struct CachedObjects<'a> {
    /// All pods that the workload owns, including those that are being deleted.
    pub pods: Vec<&'a Pod>,
    /// Records of all its revisions.
    pub history: Vec<Record>,
    /// The revisions of its pods, the targets of their tasks and the last current revision, with whole templates.
    pub revisions: &'a [Revision],
    /// The `HookRun`s of the workload.
    pub runs: &'a [Run],
    /// The `HookTemplate`s of the workload's namespace.
    pub templates: &'a dyn HookTemplates,
    /// The nodes of the cluster.
    pub nodes: &'a Nodes,
    /// The volume claims of the workload's namespace.
    pub claims: &'a Claims,
    /// The storage classes of the claims that are to grow.
    pub classes: &'a StorageClasses,
    /// Names of pods that the workload does not own and that block names of its pods.
    pub taken: &'a BTreeSet<String>,
    /// The `PodDisruptionBudget`s of the workload's namespace; only updates in place use them.
    pub disruptions: &'a DisruptionAllowance,
    /// True if the API server resizes running pods.
    pub resizes: bool,
    /// The time of the reconcile.
    pub now: Timestamp,
}

/// The input of one decision.
pub struct ReconcileInput<'a> {
    /// The spec of the workload.
    pub spec: &'a WorkloadSpec,
    /// All pods of the workload.
    pub pods: &'a [&'a Pod],
    /// All pods of the workload by name.
    pub by_name: BTreeMap<&'a str, &'a Pod>,
    /// The pods that count: neither being deleted nor ended.
    pub views: Vec<PodView<'a>>,
    /// The revision of the template; while an update is aborted, the stable one.
    pub update: &'a Revision,
    /// True while an update is aborted.
    pub aborts: bool,
    /// The revision that a partition holds pods back at.
    pub current: &'a Revision,
    /// Templates by revision. A revision whose whole template is not needed has only what its [`Record`] has.
    pub revisions: Templates<'a>,
    /// Whole templates by revision.
    whole: Templates<'a>,
    /// `HookRun`s by the uid of the pod that they belong to.
    pub runs: BTreeMap<&'a str, Vec<&'a Run>>,
    /// The `HookTemplate`s of the workload's namespace.
    pub templates: &'a dyn HookTemplates,
    /// The nodes of the cluster.
    pub nodes: &'a Nodes,
    /// The volume claims that exist.
    pub claims: &'a Claims,
    /// The storage classes of the claims that are to grow.
    pub classes: &'a StorageClasses,
    /// Names that other objects have taken.
    pub taken: &'a BTreeSet<String>,
    /// The `PodDisruptionBudget`s as they were read.
    disruptions: &'a DisruptionAllowance,
    /// True if the API server resizes running pods.
    pub resizes: bool,
    /// The time of the reconcile.
    pub now: Timestamp,
}

impl<'a> ReconcileInput<'a> {
    /// Indexes what the cache holds.
    pub fn new(
        spec: &'a WorkloadSpec,
        objects: &'a CachedObjects<'a>,
        update: &'a Revision,
        current: &'a Revision,
        aborts: bool,
    ) -> Self {
        let all = objects.revisions.iter().chain([update]);
        let whole: Templates<'a> = all.map(|revision| (revision.name.as_str(), &revision.template)).collect();
        let mut revisions: Templates<'a> =
            objects.history.iter().map(|record| (record.name.as_str(), &record.images)).collect();
        revisions.extend(&whole);
        let active = objects.pods.iter().filter(|pod| pod.is_active());
        let views = active.map(|pod| PodView::of(pod, &revisions, spec.min_ready, objects.now)).collect();
        let mut runs: BTreeMap<&str, Vec<&Run>> = BTreeMap::new();
        for run in objects.runs {
            runs.entry(&run.pod_uid).or_default().push(run);
        }
        Self {
            spec,
            pods: &objects.pods,
            by_name: objects.pods.iter().map(|pod| (pod.name.as_str(), *pod)).collect(),
            views,
            update,
            aborts,
            current,
            revisions,
            whole,
            runs,
            templates: objects.templates,
            nodes: objects.nodes,
            claims: objects.claims,
            classes: objects.classes,
            taken: objects.taken,
            disruptions: objects.disruptions,
            resizes: objects.resizes,
            now: objects.now,
        }
    }

    /// The name of the template's revision.
    pub fn update_name(&self) -> &'a str {
        &self.update.name
    }

    /// The name of the revision that a partition holds pods back at.
    pub fn current_name(&self) -> &'a str {
        &self.current.name
    }

    /// The pods that no scale-in removes. One of a `GameDeployment` leaves while its task says so.
    pub fn staying(&self) -> impl Iterator<Item = &PodView<'a>> {
        let (is_set, is_replica) = (self.spec.stateful().is_some(), is_replica_of(self.spec));
        let leaves = move |view: &PodView<'_>| {
            if is_set { !is_replica(view.pod) } else { view.waits_for(Purpose::ScaleIn) }
        };
        self.views.iter().filter(move |view| !leaves(view))
    }

    /// True when no pod that stays is at another revision than the newest.
    pub fn all_updated(&self) -> bool {
        self.staying().all(|view| view.is_at(self.update_name()))
    }

    /// True when all pods that are to exist do, at the newest revision.
    pub fn is_everywhere(&self) -> bool {
        self.all_updated() && self.staying().count() >= self.spec.replicas
    }

    /// How the last task of a pod towards the newest revision ended, if it did not get there. Where pods are replaced, a
    /// task in place that failed before does not count.
    pub fn failure(&self, view: &PodView<'_>) -> Option<Stage> {
        view.last_failure(self.update_name()).filter(|_| self.spec.is_in_place())
    }

    /// The `HookRun`s of a pod.
    pub fn runs_of(&self, pod: &Pod) -> &[&'a Run] {
        self.runs.get(pod.uid.as_str()).map_or(&[], Vec::as_slice)
    }

    /// The requests in progress by node, those of other clients included.
    pub fn node_load(&self) -> NodeLoad<'a> {
        let busy = |view: &&PodView<'_>| matches!(view.task_state, TaskState::Busy { .. }) || view.is_taken();
        NodeLoad::of(self.views.iter().filter(busy).map(|view| view.pod.node.as_deref()))
    }

    /// True when the node of `view` can get one more request beside this load.
    pub fn node_has_capacity(&self, load: &NodeLoad<'_>, view: &PodView<'_>) -> bool {
        let node = view.pod.node.as_deref();
        load.has_room(node, node.and_then(|node| self.nodes.get(node)).and_then(|node| node.at_once))
    }

    /// What the `PodDisruptionBudget`s allow: as they were read, less the pods in progress that they no longer count
    /// as disrupted.
    pub fn disruptions(&self) -> DisruptionAllowance {
        let mut allowance = self.disruptions.clone();
        let busy = |view: &&PodView<'_>| view.ready && matches!(view.task_state, TaskState::Busy { .. });
        for view in self.views.iter().filter(busy) {
            if let Some(task) = &view.pod.task {
                allowance.deduct(view.pod, &task.claims);
            }
        }
        allowance
    }

    /// The whole template of a revision.
    pub fn template(&self, revision: &str) -> Option<&'a PodTemplate> {
        self.whole.get(revision).copied()
    }

    /// The run of the hook of `task`, if there is one. A hook of another kind that the task had before may have left a run.
    pub fn run_of(&self, view: &PodView<'_>, task: &PodTask) -> Option<&'a Run> {
        let (kind, _) = hooks::of(self.spec, task.purpose)?;
        let key = task.key();
        self.runs_of(view.pod).iter().copied().find(|run| run.kind == kind && run.key == key)
    }

    /// True when the hook of the pod's task has failed, and is not run again before a person acts.
    pub fn has_failed_hook(&self, view: &PodView<'_>) -> bool {
        view.pod.task.as_ref().and_then(|task| self.run_of(view, task)).is_some_and(Run::stays_failed)
    }

    /// True when the hook of the pod's task lets it pass.
    pub fn has_passed(&self, view: &PodView<'_>) -> bool {
        let Some(task) = &view.pod.task else { return false };
        let hook = hooks::of(self.spec, task.purpose);
        hooks::gate(view.pod, task, hook, self.runs_of(view.pod)) == hooks::Gate::Open
    }
}
