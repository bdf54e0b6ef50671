//! Parses the name of a workload on the command line, and reads the fields that the commands need, for both
//! kinds.

use std::fmt;

use kube::core::{ApiResource, DynamicObject};
use serde::de::DeserializeOwned;

use crate::api::game_deployment::{GameDeployment, GameDeploymentStatus};
use crate::api::game_stateful_set::{GameStatefulSet, GameStatefulSetStatus};
use crate::api::workload_kind;
use crate::cli::cluster::Failed;
use crate::workload::spec::WorkloadSpec;

/// The kind of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Kind {
    Deployment,
    StatefulSet,
}

/// Kind and name. `Display` is kubectl's form: `gamedeployment.tkex.tencent.com/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Name {
    pub(in crate::cli) kind: Kind,
    pub(in crate::cli) name: String,
}

/// A workload as read from the API server.
pub(in crate::cli) struct Workload {
    pub(in crate::cli) name: Name,
    pub(in crate::cli) spec: WorkloadSpec,
    /// The status. That of a `GameStatefulSet` is converted to these fields, with ready in place of available.
    pub(in crate::cli) status: GameDeploymentStatus,
    /// The resource version: it differs after any change.
    pub(in crate::cli) version: String,
    /// True when it has at least one annotation.
    pub(in crate::cli) has_annotations: bool,
}

impl Kind {
    pub(in crate::cli) fn resource(self) -> ApiResource {
        match self {
            Self::Deployment => ApiResource::erase::<GameDeployment>(&()),
            Self::StatefulSet => ApiResource::erase::<GameStatefulSet>(&()),
        }
    }

    /// Parses the name of a kind as the other commands do.
    fn read(text: &str) -> Option<Self> {
        match workload_kind::Kind::read(text)?.name {
            "GameDeployment" => Some(Self::Deployment),
            "GameStatefulSet" => Some(Self::StatefulSet),
            _ => None,
        }
    }
}

impl Name {
    /// Parses `KIND/NAME` or `KIND NAME`.
    pub(in crate::cli) fn read(words: &[String]) -> Result<Self, String> {
        const WANTED: &str =
            "write gamedeployment/NAME, gamestatefulset/NAME or ipr/NAME, and the namespace after -n";
        let (kind, name) = match words {
            [one] => one.split_once('/').ok_or_else(|| format!("`{one}` has no kind: {WANTED}"))?,
            [kind, name] => (kind.as_str(), name.as_str()),
            _ => return Err(WANTED.to_owned()),
        };
        let known = Kind::read(kind).ok_or_else(|| match workload_kind::Kind::read(kind) {
            Some(other) if !matches!(other.group, "apps" | "batch") => {
                format!("`{kind}` is not a supported kind: {} updates it. {WANTED}", other.group)
            }
            // kubectl follows, undoes and pauses the updates of Kubernetes' own kinds.
            Some(other) => format!(
                "`{kind}` is not a supported kind: the updates of a {} are those of `kubectl rollout`: use that for \
                 {kind}/{name}. For those of this project {WANTED}",
                other.name
            ),
            None => format!("`{kind}` is not a supported kind: {WANTED}"),
        })?;
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        if name.is_empty() || !name.chars().all(|c| edge(c) || c == '-' || c == '.') {
            return Err(format!("`{name}` is not a workload's name: {WANTED}"));
        }
        Ok(Self { kind: known, name: name.to_owned() })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Deployment => "gamedeployment",
            Kind::StatefulSet => "gamestatefulset",
        };
        write!(f, "{kind}.tkex.tencent.com/{}", self.name)
    }
}

impl Workload {
    pub(in crate::cli) fn of(name: &Name, object: DynamicObject) -> Result<Self, Failed> {
        let version = object.metadata.resource_version.clone().unwrap_or_default();
        let has_annotations = object.metadata.annotations.is_some();
        let (spec, status) = match name.kind {
            Kind::Deployment => {
                let object: GameDeployment = read(name, object)?;
                (WorkloadSpec::of_deployment(&object), object.status.unwrap_or_default())
            }
            Kind::StatefulSet => {
                let object: GameStatefulSet = read(name, object)?;
                (WorkloadSpec::of_stateful_set(&object), same(object.status.unwrap_or_default()))
            }
        };
        Ok(Self { name: name.clone(), spec, status, version, has_annotations })
    }
}

fn read<K: DeserializeOwned + kube::Resource>(name: &Name, object: DynamicObject) -> Result<K, Failed> {
    object.try_parse().map_err(|error| Failed::Other(format!("{name} cannot be read: {error}")))
}

/// Converts the status of a `GameStatefulSet` to the fields of a `GameDeployment`.
fn same(status: GameStatefulSetStatus) -> GameDeploymentStatus {
    GameDeploymentStatus {
        observed_generation: status.observed_generation,
        replicas: status.replicas,
        ready_replicas: status.ready_replicas,
        available_replicas: status.ready_replicas,
        updated_replicas: status.updated_replicas,
        updated_ready_replicas: status.updated_ready_replicas,
        current_revision: status.current_revision,
        update_revision: status.update_revision,
        stable_revision: status.stable_revision,
        aborted_revision: status.aborted_revision,
        collision_count: status.collision_count,
        label_selector: status.label_selector,
        conditions: status.conditions,
        pause_conditions: status.pause_conditions,
        current_step_index: status.current_step_index,
        current_step_hash: status.current_step_hash,
        canary: status.canary,
        pre_delete_hook_condition: status.pre_delete_hook_condition,
        pre_inplace_hook_condition: status.pre_inplace_hook_condition,
        post_inplace_hook_condition: status.post_inplace_hook_condition,
    }
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A workload `web` of 5 pods; `spec` and `status` replace the defaults.
    pub(crate) fn workload(kind: Kind, spec: &Value, status: &Value) -> Workload {
        let mut whole = json!({
            "replicas": 5, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "template": {"spec": {"containers": [{"name": "app", "image": "app:2"}]}},
        });
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        let name = Name { kind, name: "web".to_owned() };
        let object = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "u", "generation": 2, "resourceVersion": "7"},
            "spec": whole, "status": status,
        });
        Workload::of(&name, serde_json::from_value(object).unwrap()).unwrap()
    }

    fn name(words: &[&str]) -> Result<String, String> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        Name::read(&words).map(|name| name.to_string())
    }

    #[test]
    fn a_workload_is_written_as_kubectl_takes_it() {
        for words in [
            &["gamedeployment/web"][..],
            &["gamedeployments/web"],
            &["gamedeployment.tkex.tencent.com/web"],
            &["GameDeployment", "web"],
            &["gdeploy/web"],
        ] {
            assert_eq!(name(words).unwrap(), "gamedeployment.tkex.tencent.com/web", "{words:?}");
        }
        assert_eq!(name(&["gamestatefulset", "db"]).unwrap(), "gamestatefulset.tkex.tencent.com/db");
        for (words, says) in [
            (&["web"][..], "`web` has no kind"),
            (&["svc/web"], "`svc` is not a supported kind"),
            (&["deploy/web"], "of a Deployment are those of `kubectl rollout`: use that for deploy/web"),
            (
                &["statefulset", "db"],
                "of a StatefulSet are those of `kubectl rollout`: use that for statefulset/db",
            ),
            (&["gamedeployment/"], "is not a workload's name"),
            (&["gamedeployment", "a/b"], "is not a workload's name"),
        ] {
            assert!(name(words).unwrap_err().contains(says), "{words:?}");
        }
    }

    #[test]
    fn the_status_of_a_set_is_read_as_that_of_a_deployment() {
        let status =
            json!({"observedGeneration": 2, "readyReplicas": 4, "updatedReplicas": 2, "updateRevision": "r"});
        let set = workload(Kind::StatefulSet, &json!({}), &status).status;
        assert_eq!((set.available_replicas, set.updated_replicas, set.update_revision.as_str()), (4, 2, "r"));
    }
}
