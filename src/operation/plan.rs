//! The plan: which engine for which container and why, and what a person should know before it happens.
//!
//! The only place that chooses an engine. Carrying a plan out starts from [`Plan::begin`].

use jiff::Timestamp;
use serde::Serialize;

use crate::api::image::ImageRef;
use crate::api::request::Request;
use crate::api::status::{Action, Engine, Incarnation, Step};
use crate::operation::preflight::Admitted;
use crate::operation::snapshot::{Container, Owner, PodRef};
use crate::operation::state::{Operation, Target};

/// What will be done, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// The request.
    pub request: Request,
    /// The pod.
    pub pod: PodRef,
    /// Its sandbox, which stays.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The stages it goes through.
    pub steps: Vec<Step>,
    /// One entry per container, in the order of the request.
    pub containers: Vec<Planned>,
    /// What a person should know before it happens.
    pub warnings: Vec<String>,
    /// Who looks after the pod.
    #[serde(skip)]
    pub owner: Owner,
}

/// One container of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Name in the pod spec.
    pub name: String,
    /// Restart or swap.
    pub action: Action,
    /// The way it is done here.
    pub engine: Engine,
    /// Why this way.
    pub why: &'static str,
    /// The way it would be done in a cluster, through the API server.
    pub in_cluster: Engine,
    /// Why that way.
    pub in_cluster_why: &'static str,
    /// What runs now.
    pub from: Incarnation,
    /// The image it will run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip)]
    container: Container,
    #[serde(skip)]
    next_attempt: u32,
}

impl Plan {
    /// Plans an admitted request.
    pub fn of(admitted: Admitted) -> Self {
        let (request, pod, sandbox_id, owner, targets) = admitted.into_parts();
        let mut warnings = Vec::new();
        if owner.is_kubelet() {
            warnings.push(
                "this pod belongs to a kubelet: safe with restartPolicy Always; with another policy the kubelet may \
                 call the pod finished while the container is down"
                    .to_owned(),
            );
        }
        let mut swaps = false;
        let containers = targets
            .into_iter()
            .map(|target| {
                let action = if target.image.is_some() { Action::Swap } else { Action::Restart };
                swaps |= action == Action::Swap;
                warnings.extend(warnings_of(&target.container, target.image.as_deref()));
                let (in_cluster, in_cluster_why) = in_cluster(action, owner);
                Planned {
                    name: target.container.name.clone(),
                    action,
                    engine: Engine::Recreate,
                    why: "the runtime tells the whole configuration and refuses a taken name; no API server is needed",
                    in_cluster,
                    in_cluster_why,
                    from: target.from,
                    image: target.image,
                    container: target.container,
                    next_attempt: target.next_attempt,
                }
            })
            .collect();
        let steps =
            if swaps { vec![Step::Pull, Step::Swap, Step::Verify] } else { vec![Step::Swap, Step::Verify] };
        Self { request, pod, sandbox_id, steps, containers, warnings, owner }
    }

    /// The operation that carries it out, taken up at `now`.
    pub fn begin(self, now: Timestamp) -> Operation {
        let targets = self
            .containers
            .into_iter()
            .map(|planned| {
                let Planned { container, image, action, engine, next_attempt, .. } = planned;
                Target::new(container, image, action, engine, next_attempt)
            })
            .collect();
        Operation::new(self.request, self.pod, self.sandbox_id, self.owner == Owner::NodeRun, targets, now)
    }
}

/// What `Auto` takes for a container whose configuration can be cloned, where there is an API server.
fn in_cluster(action: Action, owner: Owner) -> (Engine, &'static str) {
    match (action, owner) {
        (Action::Restart, _) => (
            Engine::Recreate,
            "its configuration can be cloned, if the pod's spec allows it too (restartPolicy Always)",
        ),
        (Action::Swap, Owner::KubeletStatic) => {
            (Engine::Stop, "a static pod's image is changed in its file, the API server cannot")
        }
        (Action::Swap, Owner::Kubelet | Owner::NodeRun | Owner::Nobody) => {
            (Engine::Respec, "the pod's spec names the image, and the kubelet carries it out")
        }
    }
}

fn warnings_of(container: &Container, image: Option<&str>) -> Vec<String> {
    let mut warnings = vec![format!(
        "{}: files it wrote outside its volumes are lost, /dev/shm and volumes stay",
        container.name
    )];
    if container.grace.as_secs() > 60 {
        let grace = container.grace.as_secs();
        warnings.push(format!("{}: it may take up to its {grace} s of grace to stop", container.name));
    }
    if let Some(image) = image.and_then(|image| ImageRef::parse(image).ok())
        && image.digest().is_none()
    {
        warnings.push(format!("{}: {image} is a tag and may move, a digest does not", container.name));
    }
    if image.is_some_and(|image| image == container.image) {
        warnings.push(format!(
            "{}: it already runs {}; the image is pulled again",
            container.name, container.image
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::fixtures::{ask, at, find, pod, situation};

    fn plan(text: &str, owner: Owner) -> Plan {
        Plan::of(ask(text, &situation(pod(owner))).unwrap())
    }

    #[test]
    fn every_engine_has_its_place() {
        for (text, owner, in_cluster) in [
            ("restart app", Owner::Kubelet, Engine::Recreate),
            ("restart app", Owner::KubeletStatic, Engine::Recreate),
            ("restart app", Owner::Nobody, Engine::Recreate),
            ("swap app=repo/app:v2", Owner::Nobody, Engine::Respec),
            ("swap app=repo/app:v2", Owner::NodeRun, Engine::Respec),
        ] {
            let planned = plan(text, owner).containers.remove(0);
            assert_eq!(
                (planned.engine, planned.in_cluster),
                (Engine::Recreate, in_cluster),
                "{text} {owner:?}"
            );
        }
        assert_eq!(in_cluster(Action::Swap, Owner::Kubelet).0, Engine::Respec);
        assert_eq!(in_cluster(Action::Swap, Owner::KubeletStatic).0, Engine::Stop);
    }

    #[test]
    fn what_a_person_should_know_is_said() {
        let digest = format!("swap app=repo/app@sha256:{}", "a".repeat(64));
        for (text, owner, warning, said) in [
            ("restart app", Owner::Kubelet, "restartPolicy Always", true),
            ("restart app", Owner::Nobody, "restartPolicy Always", false),
            ("restart app", Owner::Nobody, "/dev/shm and volumes stay", true),
            ("swap app=repo/app:v2", Owner::Nobody, "app: repo/app:v2 is a tag and may move", true),
            (&digest, Owner::Nobody, "is a tag", false),
            ("swap app=repo/app:v1", Owner::Nobody, "app: it already runs repo/app:v1", true),
            ("swap app=repo/app:v2", Owner::Nobody, "it already runs", false),
            ("restart app", Owner::Nobody, "s of grace", false),
            ("restart side", Owner::Nobody, "side: it may take up to its 61 s of grace", true),
        ] {
            let mut snapshot = pod(owner);
            find(&mut snapshot, "side-2").grace = std::time::Duration::from_secs(61);
            let plan = Plan::of(ask(text, &situation(snapshot)).unwrap());
            assert_eq!(plan.warnings.join("; ").contains(warning), said, "{text}: {:?}", plan.warnings);
        }
    }

    #[test]
    fn the_stages_are_golden() {
        for (text, steps) in [
            ("restart app", r#"["Swap","Verify"]"#),
            ("swap app=repo/app:v2", r#"["Pull","Swap","Verify"]"#),
            (
                r#"{"containers":[{"name":"app"},{"name":"side","image":"a:v2"}]}"#,
                r#"["Pull","Swap","Verify"]"#,
            ),
        ] {
            let plan = plan(text, Owner::NodeRun);
            assert_eq!(serde_json::to_string(&plan.steps).unwrap(), steps);
            assert_eq!(plan.clone().begin(at(0)).step, plan.steps[0]);
        }
        let json = serde_json::to_value(plan("swap app=repo/app:v2", Owner::NodeRun)).unwrap();
        assert_eq!(json["sandboxID"], "sandbox-1");
        assert_eq!(json["containers"][0]["inCluster"], "Respec");
        assert_eq!(json["containers"][0]["from"]["containerID"], "app-2");
    }

    #[test]
    fn only_pods_without_another_cleaner_are_cleaned() {
        for (owner, cleans_up) in [(Owner::Kubelet, false), (Owner::Nobody, false), (Owner::NodeRun, true)] {
            assert_eq!(plan("restart app", owner).begin(at(0)).unsupervised, cleans_up);
        }
    }
}
