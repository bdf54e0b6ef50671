//! The simulated cluster of the model tests: the objects, the moves on them, and the invariants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::api::annotation;
use crate::api::hook_run::HookPhase;
use crate::api::request::{Order, Request};
use crate::api::status::{Phase, Step};
use crate::api::workload_key;
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::resources::Resize;
use crate::podtask::state::{Stage, TaskState};
use crate::podtask::task::Purpose;
use crate::podtask::write::PodPatch;
use crate::workload::action::{Action, BudgetClaims, Why};
use crate::workload::canary;
use crate::workload::claims::{Claim, Claims, StorageClasses};
use crate::workload::decide::{Decision, decide};
use crate::workload::fixtures::{Draft, KnownTemplates, answer, at};
use crate::workload::hooks::{Run, TemplateState};
use crate::workload::input::CachedObjects;
use crate::workload::report::Report;
use crate::workload::revision::{self, Revision};
use crate::workload::status::TOO_MANY;

use super::{AgentMove, Move, PRE_DELETE, PRE_INPLACE, ResizeMove};
use computed::Computed;
use foreign::{Gate, Marks};
use nodes::{is_closed, is_on, node_name};

pub(super) use nodes::NODES;
pub(super) use resizes::CPU;

mod checks;
mod computed;
mod foreign;
mod nodes;
mod resizes;

/// The label that the container has in its environment.
const ZONE: &str = "zone";

/// All objects of the simulated cluster.
pub(super) struct World {
    draft: Draft,
    pods: Vec<Pod>,
    revisions: Vec<Revision>,
    runs: Vec<Run>,
    claims: Claims,
    templates: KnownTemplates,
    report: Report,
    now: Timestamp,
    made: u32,
    /// Requests on pods, as the agent reads them.
    wanted: BTreeMap<String, Request>,
    /// Requests that an agent has accepted, by pod.
    open: BTreeMap<String, Request>,
    /// How many Ready pods the `PodDisruptionBudget` demands, if there is one.
    least: Option<usize>,
    /// The pods with an entry at the budget.
    entries: BTreeMap<String, Timestamp>,
    /// The images of a pod before the request that an agent has accepted.
    before: BTreeMap<String, Vec<(String, String)>>,
    /// When the agent last started a container, by pod, and how often.
    started: BTreeMap<String, Timestamp>,
    starts: BTreeMap<String, u32>,
    /// The readiness gates that are closed while no operation runs, by pod.
    gates: BTreeMap<String, Gate>,
    /// What a bk-bcs operator wrote on pods.
    marks: BTreeMap<String, Marks>,
    /// The nodes without a kubelet and an agent.
    lost: BTreeSet<String>,
    /// The value of the label in the environment of the container, by the uid of the pod.
    environments: BTreeMap<String, Option<String>>,
    /// True while the API server refuses resizes.
    quota: bool,
    /// True while the API server has resizes.
    resizes: bool,
    computed: Computed,
}

impl World {
    pub(super) fn new(draft: Draft) -> Self {
        Self {
            draft,
            pods: Vec::new(),
            revisions: Vec::new(),
            runs: Vec::new(),
            claims: Claims::new(),
            templates: [("test".to_owned(), TemplateState::Valid)].into(),
            report: Report::default(),
            now: at(0),
            made: 0,
            wanted: BTreeMap::new(),
            open: BTreeMap::new(),
            least: None,
            entries: BTreeMap::new(),
            before: BTreeMap::new(),
            started: BTreeMap::new(),
            starts: BTreeMap::new(),
            gates: BTreeMap::new(),
            marks: BTreeMap::new(),
            lost: BTreeSet::new(),
            environments: BTreeMap::new(),
            quota: false,
            resizes: true,
            computed: Computed::default(),
        }
    }

    pub(super) fn make(&mut self, one: &Move) {
        match one {
            Move::Reconcile(writes) => {
                self.reconcile(*writes);
            }
            Move::TakeOver(writes) => self.take_over(*writes),
            Move::Node(at, lost) => self.lose(*at, *lost),
            Move::Wait(seconds) => self.now += SignedDuration::from_secs(*seconds),
            Move::Kubelet => self.kubelet(),
            Move::Agent(at, how) => self.agent(*at, *how),
            Move::Hook(at, well) => {
                let phase = if *well { HookPhase::Successful } else { HookPhase::Failed };
                let many = self.runs.len().max(1);
                if let Some(run) = self.runs.get_mut(at % many).filter(|run| !run.phase.is_completed()) {
                    run.phase = phase;
                }
            }
            Move::Break(at, well) => {
                let now = self.now;
                let (lost, well) = (self.lost.clone(), *well);
                let gates: BTreeSet<_> = self.gates.keys().cloned().collect();
                let is_possible = |pod: &Pod| !well || !gates.contains(&pod.uid);
                let runs =
                    |pod: &&mut Pod| pod.phase == PodPhase::Running && !is_on(pod, &lost) && is_possible(pod);
                if let Some(pod) = self.pick(*at).filter(runs) {
                    pod.ready_since = well.then_some(now);
                    pod.version.push('b');
                }
            }
            Move::Kill(at) => {
                let now = self.now;
                if let Some(pod) = self.pick(*at) {
                    pod.deletion = Some(now);
                }
            }
            Move::Image(image) => {
                self.set("/template/spec/containers/0/image", json!(format!("app:{image}")));
            }
            Move::Zone(zone) => {
                self.set("/template/metadata/labels/zone", json!(format!("zone-{zone}")));
            }
            Move::Cpu(cpu) => self.set(CPU, json!(cpu.to_string())),
            Move::Resize(at, how) => self.answer_resize(*at, *how),
            Move::Quota(refuses) => self.quota = *refuses,
            Move::Release(resizes) => self.resizes = *resizes,
            Move::Scale(replicas) => self.set("/replicas", json!(replicas)),
            Move::Partition(count) => self.set(self.partition(), json!(count)),
            Move::Pause(paused) => self.set("/updateStrategy/paused", json!(paused)),
            Move::Resume(steps) => self.resume(*steps),
            Move::Retry => self.retry(),
            Move::Budget(least) => self.least = Some(usize::from(*least)),
            Move::Foreign(at, how) => self.begin_foreign(*at, *how),
            Move::Restart(at) => self.restart_foreign(*at),
            Move::ForgetReport => self.report = Report::default(),
        }
        self.report_gates();
        self.report_containers();
    }

    /// How many disruptions the `PodDisruptionBudget` allows, as the disruption controller computes it.
    fn disruptions_allowed(&self, least: usize) -> usize {
        let healthy = self.pods.iter().filter(|pod| pod.is_ready() && !self.entries.contains_key(&pod.name));
        healthy.count().saturating_sub(least)
    }

    fn allowance(&self) -> DisruptionAllowance {
        let Some(least) = self.least else { return DisruptionAllowance::default() };
        let budget = json!({"metadata": {"name": "pdb"}, "spec": {"selector": {}},
            "status": {"disruptionsAllowed": self.disruptions_allowed(least), "desiredHealthy": least,
                "disruptedPods": self.entries}});
        DisruptionAllowance::new([Arc::new(serde_json::from_value(budget).unwrap())], "v1")
    }

    fn partition(&self) -> &'static str {
        if self.spec().stateful().is_some() {
            "/updateStrategy/rollingUpdate/partition"
        } else {
            "/updateStrategy/partition"
        }
    }

    fn set(&mut self, path: &str, value: Value) {
        self.draft = self.draft.clone().with(path, value);
    }

    /// Resumes the step that is so many after the current one, whether it waits or not.
    fn resume(&mut self, after: usize) {
        if let Some(index) = self.report.steps.index {
            let step = canary::approval(&self.report.update_revision, index + after);
            self.draft = self.draft.clone().annotated(workload_key::RESUME_STEP, &step);
        }
    }

    fn retry(&mut self) {
        self.draft = self.draft.clone().annotated(workload_key::RETRY, "true");
        self.set_retry(true);
    }

    fn set_retry(&mut self, retry: bool) {
        for hook in [PRE_DELETE, PRE_INPLACE] {
            if self.draft.spec.pointer(hook).is_some() {
                self.set(&format!("{hook}/retry"), json!(retry));
            }
        }
    }

    fn pick(&mut self, at: usize) -> Option<&mut Pod> {
        let many = self.pods.len().max(1);
        self.pods.get_mut(at % many)
    }

    /// The revisions with whole templates that the controller would have; all others are left out.
    fn needed(&self) -> Vec<Revision> {
        let needed =
            revision::needed(self.pods.iter(), [&self.report.current_revision, &self.report.stable_revision]);
        self.revisions.iter().filter(|cached| needed.contains(cached.name.as_str())).cloned().collect()
    }

    fn decision(&self) -> Decision {
        let spec = self.spec();
        let (nodes, taken, classes) = (self.nodes(), BTreeSet::new(), StorageClasses::new());
        let needed = self.needed();
        let disruptions = self.allowance();
        let seen = CachedObjects {
            pods: self.pods.iter().collect(),
            history: self.history(),
            revisions: &needed,
            runs: &self.runs,
            templates: &self.templates,
            nodes: &nodes,
            claims: &self.claims,
            classes: &classes,
            taken: &taken,
            disruptions: &disruptions,
            resizes: self.resizes,
            now: self.now,
        };
        let decision = decide(&spec, &self.report, &seen);
        // A quarter of them: to decide takes most of the time of these tests.
        if self.now.as_second() % 4 == 0 {
            assert_eq!(decision, decide(&spec, &self.report, &seen), "the same look, the same decision");
        }
        decision
    }

    /// Returns true if there was nothing to do.
    fn reconcile(&mut self, writes: usize) -> bool {
        let decision = self.decision();
        self.check(&decision);
        self.check_steps(&decision);
        self.check_foreign(&decision);
        self.check_claims(&decision);
        self.check_replaced(&decision);
        Self::check_stopped(&decision);
        for action in decision.actions.iter().take(writes) {
            self.write(action);
        }
        if decision.actions.len() <= writes
            && let Some(report) = decision.report
        {
            self.report = report;
        }
        decision.actions.iter().all(|action| *action == Action::ClearRetry)
    }

    /// A controller reconciles, loses its lease after this many writes, and has one more under way.
    fn take_over(&mut self, writes: usize) {
        let first = self.decision();
        self.check(&first);
        self.check_claims(&first);
        self.check_replaced(&first);
        Self::check_stopped(&first);
        for action in first.actions.iter().take(writes) {
            self.write(action);
        }
        self.reconcile(usize::MAX);
        if let Some(late) = first.actions.get(writes) {
            self.write(late);
        }
    }

    /// True while an update is aborted.
    pub(super) fn is_aborted(&self) -> bool {
        !self.report.aborted_revision.is_empty()
    }

    fn is_busy(&self, pod: &Pod) -> bool {
        matches!(pod.task_state(self.now), TaskState::Busy { .. })
    }

    fn is_updating(&self, pod: &Pod) -> bool {
        let asking = pod.task_state(self.now) == TaskState::Waiting;
        let scales = pod.task.as_ref().is_some_and(|task| task.purpose == Purpose::ScaleIn);
        self.is_busy(pod) || (asking && !scales)
    }

    fn write(&mut self, action: &Action) {
        match action {
            Action::WriteRevision(revision, _) => {
                self.revisions.retain(|cached| cached.name != revision.name);
                self.revisions.push(revision.clone());
            }
            Action::DeleteRevision(name) => self.revisions.retain(|cached| cached.name != *name),
            Action::CreateClaim { name, .. } => drop(self.claims.insert(name.clone(), Claim::default())),
            Action::OwnClaim { .. } | Action::GrowClaim { .. } => panic!("the sets have no claims"),
            Action::CreatePod { name, body } => self.create_pod(name, body),
            Action::DeletePod { pod, why: Why::LostNode } => {
                self.pods.retain(|cached| cached.uid != pod.uid || cached.version != pod.version);
            }
            Action::DeletePod { pod, .. } => {
                let pod = self
                    .pods
                    .iter_mut()
                    .find(|cached| cached.uid == pod.uid && cached.version == pod.version);
                if let Some(pod) = pod {
                    pod.deletion = Some(self.now);
                }
            }
            Action::Resize { pod, spec, task } => self.resize(pod, spec, task),
            Action::RenewClaim { pod, .. } => drop(self.entries.insert(pod.clone(), self.now)),
            Action::PatchPod { pod, patch, claims, .. } => {
                match claims {
                    BudgetClaims::None => {}
                    BudgetClaims::Claim(_) => drop(self.entries.insert(pod.name.clone(), self.now)),
                    BudgetClaims::Release(_) => drop(self.entries.remove(&pod.name)),
                }
                let cached = self
                    .pods
                    .iter_mut()
                    .find(|cached| cached.uid == pod.uid && cached.version == pod.version);
                if let Some(cached) = cached {
                    patch_pod(cached, patch, &mut self.wanted);
                    self.patch_marks(&pod.uid, patch);
                }
            }
            Action::CreateRun(run) => {
                if self.runs.iter().all(|cached| cached.name != run.name) {
                    self.runs.push(Run {
                        name: run.name.clone(),
                        kind: run.kind,
                        key: run.annotations[workload_key::TASK].clone(),
                        pod_uid: run.annotations[workload_key::HOOK_POD].clone(),
                        phase: HookPhase::Running,
                        approved: false,
                        created: Some(self.now),
                        deleting: false,
                    });
                }
            }
            Action::DeleteRun(name) => self.runs.retain(|run| run.name != *name),
            Action::ClearResume => drop(self.draft.annotations.remove(workload_key::RESUME_STEP)),
            Action::ClearRetry => {
                self.draft.annotations.remove(workload_key::RETRY);
                self.set_retry(false);
            }
            Action::SetGate { pod, open } => self.set_gate(pod, *open),
            Action::Report(_) => {}
        }
        self.report_gates();
    }

    fn create_pod(&mut self, name: &str, body: &Value) {
        if self.pods.iter().any(|pod| pod.name == *name) {
            return;
        }
        self.made += 1;
        let mut object = body.clone();
        object["metadata"]["uid"] = json!(format!("uid-{}", self.made));
        object["metadata"]["resourceVersion"] = json!("0");
        let mut pod = Pod::read(&serde_json::from_value(object).unwrap());
        pod.created = self.now;
        self.pods.push(pod);
    }

    fn kubelet(&mut self) {
        let (now, made) = (self.now, self.made);
        let lost = &self.lost;
        self.pods.retain(|pod| !pod.is_deleting() || is_on(pod, lost));
        let cached: BTreeSet<_> = self.pods.iter().map(|pod| pod.uid.clone()).collect();
        self.wanted.retain(|uid, _| cached.contains(uid));
        self.open.retain(|uid, _| cached.contains(uid));
        let first = usize::try_from(made).unwrap();
        let mut healthy = (first..first + NODES).map(node_name).filter(|name| !lost.contains(name));
        let Some(node) = healthy.next() else { return };
        let starts = |pod: &&mut Pod| pod.phase == PodPhase::Pending && !pod.is_deleting();
        for pod in self.pods.iter_mut().filter(starts) {
            pod.node = Some(node.clone());
            pod.phase = PodPhase::Running;
            pod.resize = Resize::Taken;
            pod.ready_since = Some(now);
            self.environments.insert(pod.uid.clone(), pod.labels.get(ZONE).cloned());
            pod.version.push('k');
        }
    }

    /// One step of the agent for the pod at this index, as the contract specifies it.
    fn agent(&mut self, at: usize, how: AgentMove) {
        let now = self.now;
        let many = self.pods.len().max(1);
        let lost = &self.lost;
        let works =
            |pod: &&mut Pod| !pod.is_deleting() && pod.phase == PodPhase::Running && !is_on(pod, lost);
        let Some(pod) = self.pods.get_mut(at % many).filter(works) else { return };
        let wanted = self.wanted.get(&pod.uid);
        if !self.open.contains_key(&pod.uid) {
            let Some(wanted) = wanted else { return };
            if pod.answer.as_ref().is_some_and(|answer| answer.id == wanted.id) {
                return;
            }
            pod.answer = Some(answer(&wanted.id, Phase::Running, Some(Step::Pull)));
            pod.version.push('a');
            self.open.insert(pod.uid.clone(), wanted.clone());
            self.before.insert(pod.uid.clone(), pod.images.clone());
            return;
        }
        let open = &self.open[&pod.uid];
        let step = pod.answer.as_ref().and_then(|answer| answer.step).unwrap();
        let withdrawn = wanted.is_none_or(|wanted| wanted.id != open.id);
        let started = self.started.get(&pod.uid).copied().unwrap_or(now);
        let proven_at = started + SignedDuration::from_secs(open.min_ready_seconds.into());
        let (phase, step) = match (step, how) {
            (Step::Pull | Step::Drain, _) if withdrawn => (Phase::Cancelled, step),
            (Step::Pull, AgentMove::Refuse) => (Phase::Refused, step),
            (Step::Pull, AgentMove::Fail) if open.order == Order::StartFirst => {
                (Phase::Failed, Step::Standby)
            }
            (Step::Pull, _) => (Phase::Running, Step::Drain),
            (Step::Drain, _) => (Phase::Running, Step::Swap),
            (Step::Swap, _) => (Phase::Running, Step::Verify),
            (Step::Verify, AgentMove::On) if now < proven_at => (Phase::Running, Step::Verify),
            (_, AgentMove::Fail) => (Phase::Failed, Step::Verify),
            (_, AgentMove::RollBack) => (Phase::RolledBack, Step::Rollback),
            _ => (Phase::Succeeded, Step::Ready),
        };
        if step == Step::Drain && phase == Phase::Running {
            pod.ready_since = None;
        }
        if step == Step::Swap {
            self.started.insert(pod.uid.clone(), now);
            *self.starts.entry(pod.uid.clone()).or_default() += 1;
            self.environments.insert(pod.uid.clone(), pod.labels.get(ZONE).cloned());
            for target in &open.containers {
                let Some(image) = &target.image else { continue };
                let container = pod.images.iter_mut().find(|(name, _)| *name == target.name).unwrap();
                container.1.clone_from(image);
            }
        }
        let uid = pod.uid.clone();
        match phase {
            Phase::RolledBack => {
                pod.images.clone_from(&self.before[&uid]);
                pod.ready_since = Some(now);
                self.gates.remove(&uid);
            }
            Phase::Succeeded => {
                pod.ready_since = Some(now);
                self.gates.remove(&uid);
            }
            // Nothing was touched: the gate is again as it was.
            Phase::Cancelled | Phase::Refused if !self.gates.contains_key(&uid) => {
                pod.ready_since = Some(now);
            }
            Phase::Failed if step >= Step::Swap => drop(self.gates.insert(uid.clone(), Gate::Failed)),
            _ => {}
        }
        let image = pod.image("app").unwrap().to_owned();
        pod.answer = Some(answer(&open.id, phase, Some(step)));
        pod.version.push('a');
        if phase.is_terminal() {
            self.open.remove(&pod.uid);
        }
        if step >= Step::Verify {
            self.note_image(&uid, &image);
        }
    }

    /// From now on nothing fails, and every component does its work.
    pub(super) fn come_to_rest(&mut self) {
        let mut quiet = 0;
        self.least = self.least.map(|_| 0);
        self.lost.clear();
        (self.quota, self.resizes) = (false, true);
        for round in 0..400 {
            if round % 3 == 0 {
                self.set("/updateStrategy/paused", json!(false));
                if !self.report.steps.pauses.is_empty() {
                    self.resume(0);
                }
            }
            for at in 0..self.pods.len() {
                self.agent(at, AgentMove::On);
                self.answer_resize(at, ResizeMove::Take);
                self.restart_foreign(at);
            }
            self.report_gates();
            for run in &mut self.runs {
                if !run.phase.is_completed() {
                    run.phase = HookPhase::Successful;
                }
            }
            for pod in &mut self.pods {
                let closed = is_closed(pod);
                let drained = self.open.contains_key(&pod.uid) || self.gates.contains_key(&pod.uid);
                if pod.phase == PodPhase::Running && pod.ready_since.is_none() && !closed && !drained {
                    pod.ready_since = Some(self.now);
                }
            }
            self.kubelet();
            self.report_containers();
            if round % 10 == 0 && self.waits_for_retry() {
                self.retry();
            }
            self.now += SignedDuration::from_secs(31);
            let (now, lapse) = (self.now, SignedDuration::from_secs(120));
            self.entries.retain(|_, at| *at + lapse > now);
            quiet = if self.reconcile(usize::MAX) { quiet + 1 } else { 0 };
            // Longer than any wait.
            if quiet > 12 {
                return;
            }
        }
        panic!("it does not come to rest: {:#?}", self.decision().actions);
    }

    /// True if something failed that only a person retries. What nobody has answered is retried by the controller.
    fn waits_for_retry(&self) -> bool {
        let has_failed = |pod: &Pod| pod.task.as_ref().is_some_and(|task| task.stage == Stage::Failed);
        let runs = self.runs.iter().any(|run| run.phase.is_completed() && run.phase != HookPhase::Successful);
        // Also when the pods that failed are gone.
        let stopped = self.report.conditions.iter().any(|condition| condition.reason == TOO_MANY);
        self.pods.iter().any(has_failed) || runs || stopped || self.is_aborted()
    }

    /// The uids of the pods that are not being deleted.
    pub(super) fn uids(&self) -> BTreeSet<String> {
        self.pods.iter().filter(|pod| !pod.is_deleting()).map(|pod| pod.uid.clone()).collect()
    }
}

fn patch_pod(pod: &mut Pod, patch: &PodPatch, wanted: &mut BTreeMap<String, Request>) {
    if let Some(Some(label)) = patch.labels.get(workload_key::REVISION) {
        pod.label.clone_from(label);
    }
    for (key, value) in patch.labels.iter().filter(|(key, _)| *key == ZONE) {
        match value {
            Some(value) => drop(pod.labels.insert(key.clone(), value.clone())),
            None => drop(pod.labels.remove(key)),
        }
    }
    pod.surge &= patch.labels.get(workload_key::SURGE) != Some(&None);
    for (key, value) in &patch.annotations {
        match key.as_str() {
            workload_key::TASK => pod.task = value.as_ref().map(|text| serde_json::from_str(text).unwrap()),
            workload_key::LEAVING => pod.leaving = value.is_some(),
            workload_key::PREFETCH => pod.prefetch.clone_from(value),
            annotation::REQUEST => {
                let request = Request::parse(value.as_deref()).unwrap();
                pod.request = request.as_ref().map(|request| request.id.clone());
                match request {
                    Some(request) => drop(wanted.insert(pod.uid.clone(), request)),
                    None => drop(wanted.remove(&pod.uid)),
                }
            }
            _ => {}
        }
    }
    let sends = patch.annotations.get(annotation::REQUEST).is_some_and(Option::is_some);
    assert!(!sends || pod.prefetch.is_none(), "a request beside a prefetch: {pod:#?}");
    pod.version.push('p');
}
