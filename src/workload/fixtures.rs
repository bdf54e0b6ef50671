//! Workloads, pods and inputs for tests: minimal ones that each test modifies.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::pod_template::PodTemplate;
use crate::api::request::HookArg;
use crate::api::status::{Phase, Status, Step};
use crate::podtask::disruption::DisruptionAllowance;
use crate::podtask::pod::{Pod, PodPhase};
use crate::podtask::resources::{self, Resize, Resources};
use crate::workload::action::Action;
use crate::workload::claims::{Claims, StorageClasses};
use crate::workload::decide::{Decision, decide};
use crate::workload::hooks::{HookTemplates, Run, TemplateState};
use crate::workload::input::CachedObjects;
use crate::workload::order::Nodes;
use crate::workload::report::Report;
use crate::workload::revision::{self, Record, Revision};
use crate::workload::spec::WorkloadSpec;

/// A fixed time plus `second` seconds.
pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// The object of a workload, which a test can modify.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Draft {
    kind: &'static str,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) spec: Value,
}

/// A `GameDeployment` of three pods.
pub(crate) fn deployment() -> Draft {
    let spec = json!({
        "replicas": 3,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "app", "image": "app:1"}]}},
        "updateStrategy": {"type": "RollingUpdate"},
    });
    Draft { kind: "GameDeployment", annotations: BTreeMap::new(), spec }
}

/// A `GameStatefulSet` of three pods.
pub(crate) fn stateful_set() -> Draft {
    let mut draft = Draft { kind: "GameStatefulSet", ..deployment() };
    draft.spec["serviceName"] = json!("web");
    draft
}

impl Draft {
    /// Sets the value at a path of the spec.
    pub(crate) fn with(mut self, path: &str, value: Value) -> Self {
        let mut place = &mut self.spec;
        for part in path.trim_start_matches('/').split('/') {
            place = match (part.parse::<usize>(), place.is_array()) {
                (Ok(at), true) => &mut place[at],
                _ => &mut place[part],
            };
        }
        *place = value;
        self
    }

    /// Sets the image of the first container.
    pub(crate) fn image(self, image: &str) -> Self {
        self.with("/template/spec/containers/0/image", json!(image))
    }

    pub(crate) fn annotated(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    fn whole(&self) -> Value {
        json!({
            "apiVersion": "tkex.tencent.com/v1alpha1",
            "kind": self.kind,
            "metadata": {"name": "web", "namespace": "default", "uid": "uid-web", "generation": 1, "annotations": self.annotations},
            "spec": self.spec,
        })
    }

    pub(crate) fn object(&self) -> GameDeployment {
        serde_json::from_value(self.whole()).unwrap()
    }

    pub(crate) fn set_object(&self) -> GameStatefulSet {
        serde_json::from_value(self.whole()).unwrap()
    }

    pub(crate) fn spec(&self) -> WorkloadSpec {
        if self.kind == "GameDeployment" {
            WorkloadSpec::of_deployment(&self.object())
        } else {
            WorkloadSpec::of_stateful_set(&self.set_object())
        }
    }

    /// The revision of its template for a workload without a history.
    pub(crate) fn revision(&self) -> Revision {
        revision::find("web", &self.spec().template, &[], 0).revision
    }
}

/// An available pod at `revision`.
pub(crate) fn pod(name: &str, revision: &Revision) -> Pod {
    Pod {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        version: "1".to_owned(),
        created: at(-1000),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        label: revision.name.clone(),
        instance: name.rsplit('-').next().unwrap().to_owned(),
        index: None,
        phase: PodPhase::Running,
        deletion: None,
        ready_since: Some(at(-900)),
        unready_since: None,
        node: Some("node".to_owned()),
        ip: Some("10.0.0.1".to_owned()),
        host_ip: Some("10.0.1.1".to_owned()),
        cost: None,
        restarts: 0,
        images: revision.template.images().map(|(name, image)| (name.to_owned(), image.to_owned())).collect(),
        resources: resources_of(&revision.template),
        resize: Resize::Taken,
        unready: Vec::new(),
        gated: true,
        gate_left_closed: false,
        surge: false,
        leaving: false,
        prefetch: None,
        task: None,
        request: None,
        answer: None,
        foreign: None,
    }
}

/// The resources of the containers of a pod from this template.
pub(crate) fn resources_of(template: &PodTemplate) -> Vec<(String, Resources)> {
    let spec = template.0.get("spec").cloned().unwrap_or_default();
    resources::of_pod(&serde_json::from_value(spec).unwrap())
}

/// Writes a resize to the spec of a pod; the kubelet has not answered yet.
pub(crate) fn write_resize(pod: &mut Pod, spec: &Value) {
    let lists = ["containers", "initContainers"].into_iter().filter_map(|list| spec[list].as_array());
    for container in lists.flatten() {
        let name = container["name"].as_str().unwrap();
        let (_, stated) = pod.resources.iter_mut().find(|(found, _)| found == name).unwrap();
        // A patch states a request that follows from a limit, too.
        stated.extend(resources::read(&container["resources"]));
    }
    pod.resize = Resize::Waits("not seen".into());
}

/// A status of the agent.
pub(crate) fn answer(id: &str, phase: Phase, step: Option<Step>) -> Status {
    Status {
        id: id.to_owned(),
        phase,
        step,
        reason: String::new(),
        message: "as it is".to_owned(),
        started_at: None,
        finished_at: None,
        group: None,
        containers: Vec::new(),
    }
}

/// State of the `HookTemplate`s by name, whatever their arguments are.
pub(crate) type KnownTemplates = BTreeMap<String, TemplateState>;

impl HookTemplates for KnownTemplates {
    fn for_run(&self, template: &str, _: &[HookArg]) -> TemplateState {
        self.get(template).cloned().unwrap_or(TemplateState::Missing)
    }

    fn for_agent(&self, template: &str, _: &[HookArg], _: &Pod) -> TemplateState {
        self.get(template).cloned().unwrap_or(TemplateState::Missing)
    }
}

/// The input of a decision, which a test can modify.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    pub(crate) pods: Vec<Pod>,
    pub(crate) revisions: Vec<Revision>,
    pub(crate) runs: Vec<Run>,
    pub(crate) templates: KnownTemplates,
    pub(crate) nodes: Nodes,
    pub(crate) claims: Claims,
    pub(crate) classes: StorageClasses,
    pub(crate) taken: BTreeSet<String>,
    pub(crate) disruptions: DisruptionAllowance,
    pub(crate) resizes: bool,
    pub(crate) before: Report,
    pub(crate) now: Timestamp,
}

/// Pods of these names at `revision`, and a `HookTemplate` named `test`.
pub(crate) fn sight(names: &[&str], revision: &Revision) -> Sight {
    Sight {
        pods: names.iter().map(|name| pod(name, revision)).collect(),
        revisions: vec![revision.clone()],
        runs: Vec::new(),
        templates: [("test".to_owned(), TemplateState::Valid)].into(),
        nodes: Nodes::new(),
        claims: Claims::new(),
        classes: StorageClasses::new(),
        taken: BTreeSet::new(),
        disruptions: DisruptionAllowance::default(),
        resizes: true,
        before: Report::default(),
        now: at(0),
    }
}

/// The records of these revisions.
pub(crate) fn history(revisions: &[Revision]) -> Vec<Record> {
    let record = |cached: &Revision| Record::of(&cached.name, cached.number, &cached.template);
    revisions.iter().map(record).collect()
}

impl Sight {
    pub(crate) fn seen(&self) -> CachedObjects<'_> {
        CachedObjects {
            pods: self.pods.iter().collect(),
            history: history(&self.revisions),
            revisions: &self.revisions,
            runs: &self.runs,
            templates: &self.templates,
            nodes: &self.nodes,
            claims: &self.claims,
            classes: &self.classes,
            taken: &self.taken,
            disruptions: &self.disruptions,
            resizes: self.resizes,
            now: self.now,
        }
    }

    pub(crate) fn decide(&self, draft: &Draft) -> Decision {
        decide(&draft.spec(), &self.before, &self.seen())
    }

    pub(crate) fn pod(&mut self, name: &str) -> &mut Pod {
        self.pods.iter_mut().find(|pod| pod.name == name).unwrap()
    }
}

impl Decision {
    pub(crate) fn deleted(&self) -> Vec<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::DeletePod { pod, .. } => Some(pod.name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Names of the runs that are created.
    pub(crate) fn asked(&self) -> Vec<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::CreateRun(run) => Some(run.name.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Names of the pods that get a request.
    pub(crate) fn requested(&self) -> Vec<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::PatchPod { pod, patch, .. } => {
                    let request = patch.annotations.get(crate::api::annotation::REQUEST);
                    request.is_some_and(Option::is_some).then_some(pod.name.as_str())
                }
                _ => None,
            })
            .collect()
    }

    pub(crate) fn created(&self) -> Vec<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::CreatePod { name, .. } => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}
