//! The status: the object that the agent writes into the status annotation and `inplace node ... -o json` prints.
//!
//! Plain data and its JSON form; `operation::report` decides the content.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::group::GroupProgress;

/// The progress of a request and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The id of the request.
    pub id: String,
    /// The phase.
    pub phase: Phase,
    /// The current step, or the last step of a request that has ended. Absent if the operation has not begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// One word for programs: why the request failed, was refused, rolled back or cancelled. Otherwise empty.
    pub reason: String,
    /// One line for users: the details.
    pub message: String,
    /// When the operation began.
    #[serde(with = "millis")]
    #[schemars(with = "Option<Timestamp>")]
    pub started_at: Option<Timestamp>,
    /// When the request ended.
    #[serde(with = "millis")]
    #[schemars(with = "Option<Timestamp>")]
    pub finished_at: Option<Timestamp>,
    /// How far the pod is in a group restart, if the request is part of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupProgress>,
    /// One entry per container of the request, in its order.
    pub containers: Vec<ContainerReport>,
}

impl Status {
    /// True when this status says that the request `id` has ended: it is the end of that request, or of a group restart
    /// that came after it.
    pub fn has_ended(&self, id: &str) -> bool {
        let before = |group: &GroupProgress| !id.is_empty() && group.ended_request == id;
        self.id == id && self.phase.is_terminal() || self.group.as_ref().is_some_and(before)
    }

    /// How the request `id` has ended, as this status says: its own phase, or that before a group restart.
    pub fn ended_phase(&self, id: &str) -> Option<Phase> {
        if self.id == id {
            return Some(self.phase).filter(|phase| phase.is_terminal());
        }
        self.group.as_ref().filter(|_| self.has_ended(id)).and_then(|group| group.ended_phase)
    }
}

/// The result for one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    /// Name in the pod spec.
    pub name: String,
    /// The requested action.
    pub action: Action,
    /// The engine that the plan chose.
    pub engine: Engine,
    /// The previous instance.
    pub from: ContainerInstance,
    /// The new instance; absent until it was observed running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<ContainerInstance>,
    /// When the previous instance ended, by the runtime's clock.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub stopped_at: Option<Timestamp>,
    /// When the new instance started, by the runtime's clock.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub started_at: Option<Timestamp>,
    /// When the new container was accepted: it stayed up and was Ready.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub ready_at: Option<Timestamp>,
    /// Milliseconds from `stoppedAt` to `startedAt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime_ms: Option<i64>,
}

/// One instance of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContainerInstance {
    /// The runtime's id of the container.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// The runtime's attempt number, from 0; the kubelet's restart count follows it.
    pub attempt: u32,
    /// The image as the pod names it.
    pub image: String,
    /// The runtime's id of the image.
    #[serde(rename = "imageID")]
    pub image_id: String,
}

/// The phase of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// The request waits for a permit, or for the previous request on its pod.
    Pending,
    /// The operation is in progress.
    Running,
    /// All requested changes were observed.
    Succeeded,
    /// The operation failed; the message says what was touched.
    Failed,
    /// The swap failed; the previous image runs again.
    RolledBack,
    /// The request cannot be carried out as written; nothing was touched.
    Refused,
    /// The request was withdrawn or replaced before anything was touched.
    Cancelled,
}

/// The steps of an operation, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Step {
    /// Pull the images to the node.
    Pull,
    /// Run the hook before the pod is drained.
    PreHook,
    /// Start a standby for each container and check that it can serve.
    Standby,
    /// Run the hook that must pass once the standby can serve.
    Handover,
    /// Close the readiness gate and wait for the grace period.
    Drain,
    /// Replace the containers one by one.
    Swap,
    /// Check that the new containers stay up and become Ready.
    Verify,
    /// Run the hook before the pod takes traffic again.
    PostHook,
    /// Open the readiness gate.
    Ready,
    /// Return to the old image.
    Rollback,
}

/// The action on a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Action {
    /// Restart the container with the same image.
    Restart,
    /// Replace the container by one with another image.
    Swap,
}

/// How the container is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Engine {
    /// Create a fence, stop the container, create a clone of it and start the clone, through the runtime's socket.
    Recreate,
    /// Change the pod's spec; the kubelet replaces the container.
    Respec,
    /// Stop the container; the kubelet starts it again.
    Stop,
}

impl Phase {
    /// The phases of a request that has ended.
    pub const ENDS: [Self; 5] =
        [Self::Succeeded, Self::Failed, Self::RolledBack, Self::Refused, Self::Cancelled];

    /// True if the request has ended: no other phase follows.
    pub fn is_terminal(self) -> bool {
        Self::ENDS.contains(&self)
    }
}

macro_rules! display_as_serialized {
    ($($type:ty),*) => {$(
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&format!("{self:?}"))
            }
        }
    )*};
}
display_as_serialized!(Phase, Step, Action, Engine);

/// RFC 3339 in UTC, always with three decimals, or null.
pub mod millis {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    /// The text form of `at`.
    pub fn text(at: Timestamp) -> String {
        format!("{at:.3}")
    }

    /// Writes the text form.
    // serde's `with` hands the field over by reference.
    #[expect(clippy::ref_option, reason = "the signature is serde's")]
    pub(crate) fn serialize<S: Serializer>(at: &Option<Timestamp>, out: S) -> Result<S::Ok, S::Error> {
        match at {
            Some(at) => out.serialize_str(&text(*at)),
            None => out.serialize_none(),
        }
    }

    /// Reads any RFC 3339 time.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<Option<Timestamp>, D::Error> {
        Option::<Timestamp>::deserialize(input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_spelled_as_the_contract_says() {
        let at = |text: &str| Some(text.parse::<Timestamp>().unwrap());
        let instance = |id: &str, attempt| ContainerInstance {
            container_id: id.into(),
            attempt,
            image: "repo/app:v1".into(),
            image_id: "sha256:1".into(),
        };
        let status = Status {
            id: "web-1".into(),
            phase: Phase::Running,
            step: Some(Step::Drain),
            reason: String::new(),
            message: String::new(),
            started_at: at("2026-11-20T10:00:00Z"),
            finished_at: None,
            group: None,
            containers: vec![ContainerReport {
                name: "app".into(),
                action: Action::Swap,
                engine: Engine::Respec,
                from: instance("a", 3),
                to: Some(instance("b", 4)),
                stopped_at: at("2026-11-20T10:00:01.123456789Z"),
                started_at: at("2026-11-20T10:00:01.184Z"),
                ready_at: None,
                downtime_ms: Some(61),
            }],
        };
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["startedAt"], "2026-11-20T10:00:00.000Z");
        assert_eq!(json["finishedAt"], serde_json::Value::Null);
        assert_eq!(json["containers"][0]["stoppedAt"], "2026-11-20T10:00:01.123Z");
        assert_eq!(json["containers"][0]["from"]["containerID"], "a");
        assert_eq!(json["containers"][0]["to"]["imageID"], "sha256:1");
        assert_eq!(json["containers"][0]["downtimeMs"], 61);
        assert_eq!(json["step"], "Drain");
        assert_eq!(serde_json::from_value::<Status>(json).unwrap().containers[0].to, status.containers[0].to);
    }
}
