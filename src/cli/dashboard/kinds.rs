//! What the dashboard keeps of each kind of objects. Environment values, commands and whole templates are dropped when an
//! object is read.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use serde::Deserialize;
use serde_json::Value;

use crate::api::annotation;
use crate::api::game_deployment::GameDeployment;
use crate::api::game_stateful_set::GameStatefulSet;
use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutSpec, InPlaceRolloutStatus};
use crate::cli::in_place_rollout::verdict as rollout_verdict;
use crate::cli::pod::answer::{Notes, uid_in_events};
use crate::cli::top::tally;
use crate::cli::workload_rollout::past;
use crate::cli::workload_rollout::verdict::{State, verdict};
use crate::cli::workload_rollout::workload::{Kind, Name, Workload};
use crate::cluster::trim::{Trim, controller, meta_of, readable};
use crate::podtask;
use crate::workload::revision;

/// The label of a node that names its zone, and the name of this label before Kubernetes 1.17.
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];

/// A pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodFacts {
    /// What controllers read from it, with the status that its agent reports.
    pub(super) pod: podtask::pod::Pod,
    /// Its uid in the events of its agent.
    pub(super) uid_in_events: Option<String>,
    /// `deployment/web`, or `pod/NAME` for a pod without a controller.
    pub(super) workload: String,
    /// Kind and name of its controller: `replicaset/web-7f9c`.
    pub(super) owner: Option<String>,
    /// The id of a request without a status.
    pub(super) unanswered: Option<String>,
    /// The last task of an `InPlaceRollout` on it.
    pub(super) record: Option<Record>,
}

/// What the controller recorded on the pod about the last task of an `InPlaceRollout`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Record {
    /// The uid of the rollout.
    pub(super) rollout: String,
    /// True for the request that takes the pod back.
    #[serde(default)]
    pub(super) back: bool,
    /// How the task ended, if no agent reported it.
    #[serde(default)]
    pub(super) note: String,
    /// Why the pod failed.
    #[serde(default)]
    pub(super) reason: String,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeFacts {
    pub(super) zone: Option<String>,
    pub(super) ready: bool,
}

/// An `InPlaceRollout`; `None` if it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RolloutFacts(pub(super) Option<Rollout>);

/// The part of an `InPlaceRollout` that is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rollout {
    pub(super) created: Option<Timestamp>,
    pub(super) spec: InPlaceRolloutSpec,
    pub(super) status: InPlaceRolloutStatus,
    /// Phase, message and counts in one line.
    pub(super) message: String,
}

/// A `GameDeployment`; `None` if it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DeploymentFacts(pub(super) Option<Game>);

/// A `GameStatefulSet`; `None` if it cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatefulSetFacts(pub(super) Option<Game>);

/// The part of a `GameDeployment` or `GameStatefulSet` that is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Game {
    pub(super) desired: usize,
    pub(super) ready: i32,
    pub(super) updated: i32,
    pub(super) update_revision: String,
    pub(super) images: String,
    pub(super) state: State,
    pub(super) message: String,
}

/// A revision of a workload; `None` if it has no template.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RevisionFacts(pub(super) Option<Revision>);

/// The part of a revision that is shown.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Revision {
    pub(super) number: i64,
    pub(super) images: String,
    pub(super) cause: Option<String>,
    pub(super) created: Option<Timestamp>,
}

/// An event of this project.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EventFacts {
    /// `Pod`, `InPlaceRollout`.
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) at: Option<Timestamp>,
    pub(super) warning: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

/// Implements [`Trim`] for a type with a function `keep` that reduces the source.
macro_rules! trimmed {
    ($($type:ty: $kind:ty, $source:ty;)*) => {$(
        impl Trim for $type {
            type Kind = $kind;
            type Source = $source;

            fn trim(source: $source) -> (ObjectMeta, Self) {
                Self::keep(source)
            }

            fn groups(&self, _: &ObjectMeta) -> Vec<String> {
                Vec::new()
            }

            fn is_unchanged_since(&self, before: &Self) -> bool {
                self == before
            }
        }
    )*};
}
trimmed! {
    PodFacts: Pod, Pod;
    NodeFacts: Node, Node;
    RolloutFacts: InPlaceRollout, Value;
    DeploymentFacts: GameDeployment, Value;
    StatefulSetFacts: GameStatefulSet, Value;
    RevisionFacts: ControllerRevision, ControllerRevision;
    EventFacts: Event, Event;
}

impl PodFacts {
    fn keep(source: Pod) -> (ObjectMeta, Self) {
        let notes = Notes::of(&source.metadata);
        let annotations = source.metadata.annotations.as_ref();
        let record = annotations.and_then(|all| all.get(annotation::ROLLOUT));
        let owner = controller(&source.metadata);
        let facts = Self {
            // The version would make every change of the pod a change of what is shown.
            pod: podtask::pod::Pod { version: String::new(), ..podtask::pod::Pod::read(&source) },
            uid_in_events: uid_in_events(&source.metadata).map(str::to_owned),
            workload: tally::workload(&source),
            owner: owner.map(|owner| format!("{}/{}", owner.kind.to_ascii_lowercase(), owner.name)),
            unanswered: notes.unanswered().then(|| notes.requested.unwrap_or_else(|| "?".to_owned())),
            record: record.and_then(|text| serde_json::from_str(text).ok()),
        };
        (source.metadata, facts)
    }
}

impl NodeFacts {
    fn keep(source: Node) -> (ObjectMeta, Self) {
        let labels: BTreeMap<_, _> = source.metadata.labels.clone().unwrap_or_default();
        let zone = ZONE.iter().find_map(|key| labels.get(*key)).cloned();
        let conditions = source.status.and_then(|status| status.conditions).unwrap_or_default();
        let ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
        (source.metadata, Self { zone, ready })
    }
}

impl RolloutFacts {
    fn keep(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let rollout = readable::<InPlaceRollout>(&meta, source).map(|rollout| Rollout {
            created: rollout.metadata.creation_timestamp.as_ref().map(|time| time.0),
            message: rollout_verdict::verdict(&rollout, "").message,
            status: rollout.status.unwrap_or_default(),
            spec: rollout.spec,
        });
        (meta, Self(rollout))
    }
}

impl DeploymentFacts {
    fn keep(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let game = Game::of(Kind::Deployment, source);
        (meta, Self(game))
    }
}

impl StatefulSetFacts {
    fn keep(mut source: Value) -> (ObjectMeta, Self) {
        let meta = meta_of(&mut source);
        let game = Game::of(Kind::StatefulSet, source);
        (meta, Self(game))
    }
}

impl Game {
    fn of(kind: Kind, source: Value) -> Option<Self> {
        let object: DynamicObject = serde_json::from_value(source).ok()?;
        let name = Name { kind, name: object.metadata.name.clone().unwrap_or_default() };
        let workload = Workload::of(&name, object).ok()?;
        let verdict = verdict(&workload, "");
        Some(Self {
            desired: workload.spec.replicas,
            ready: workload.status.ready_replicas,
            updated: workload.status.updated_replicas,
            update_revision: workload.status.update_revision,
            images: past::images(&workload.spec.template),
            state: verdict.state,
            message: verdict.message,
        })
    }
}

impl RevisionFacts {
    fn keep(source: ControllerRevision) -> (ObjectMeta, Self) {
        let meta = source.metadata;
        let template = source.data.and_then(|data| revision::template(&data.0));
        let kept = template.map(|template| Revision {
            number: source.revision,
            images: past::images(&template),
            cause: meta.annotations.as_ref().and_then(|all| all.get(past::CAUSE)).cloned(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
        });
        (meta, Self(kept))
    }
}

impl EventFacts {
    fn keep(source: Event) -> (ObjectMeta, Self) {
        let at = source.event_time.map(|time| time.0);
        let at = at.or(source.last_timestamp.or(source.first_timestamp).map(|time| time.0));
        let about = source.involved_object;
        let kept = Self {
            kind: about.kind.unwrap_or_default(),
            name: about.name.unwrap_or_default(),
            uid: about.uid.unwrap_or_default(),
            at: at.or(source.metadata.creation_timestamp.as_ref().map(|time| time.0)),
            warning: source.type_.as_deref() == Some("Warning"),
            reason: source.reason.unwrap_or_default(),
            message: source.message.unwrap_or_default(),
        };
        (source.metadata, kept)
    }
}
