//! The answer: the object that the agent writes into the status annotation and `inplace node ... -o json` prints.
//!
//! Plain data with its spelling; what goes in is decided by `operation::report`.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a request is, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The id of the request that this answers.
    pub id: String,
    /// Where it stands.
    pub phase: Phase,
    /// The step it is in, or was in when it ended. Absent when it never began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// One word for programs: why it ended so, or what it waits for. Empty when all is well.
    pub reason: String,
    /// One line for people.
    pub message: String,
    /// When the request was taken up.
    #[serde(with = "millis")]
    #[schemars(with = "Option<Timestamp>")]
    pub started_at: Option<Timestamp>,
    /// When it reached its last phase.
    #[serde(with = "millis")]
    #[schemars(with = "Option<Timestamp>")]
    pub finished_at: Option<Timestamp>,
    /// One entry per container of the request, in its order.
    pub containers: Vec<ContainerReport>,
}

/// What became of one container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerReport {
    /// Name in the pod spec.
    pub name: String,
    /// What was asked for.
    pub action: Action,
    /// The way it was done, or would have been done.
    pub engine: Engine,
    /// The container that ran before.
    pub from: Incarnation,
    /// The one that runs now; absent until it was seen running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Incarnation>,
    /// When the old one had finished, by the runtime's clock.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub stopped_at: Option<Timestamp>,
    /// When the new one started, by the runtime's clock.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub started_at: Option<Timestamp>,
    /// When the new one had proven itself.
    #[serde(default, with = "millis", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Timestamp>")]
    pub ready_at: Option<Timestamp>,
    /// Milliseconds from `stopped_at` to `started_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downtime_ms: Option<i64>,
}

/// One life of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Incarnation {
    /// The runtime's id.
    #[serde(rename = "containerID")]
    pub container_id: String,
    /// Counts from 0; the kubelet's restart count follows it.
    pub attempt: u32,
    /// The image as the pod names it.
    pub image: String,
    /// The runtime's id of that image.
    #[serde(rename = "imageID")]
    pub image_id: String,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Seen; waits for a permit, or for the request before on its pod.
    Pending,
    /// Being carried out.
    Running,
    /// Everything asked for was observed.
    Succeeded,
    /// It did not work out; the message says what was touched.
    Failed,
    /// The new image did not come up; the one from before runs again.
    RolledBack,
    /// It cannot be done as written; nothing was touched.
    Refused,
    /// Withdrawn or replaced before anything was touched.
    Cancelled,
}

/// The stages of an operation, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Step {
    /// Get the images onto the node.
    Pull,
    /// Ask while still serving.
    PreHook,
    /// Close the readiness gate and wait.
    Drain,
    /// Replace container by container.
    Swap,
    /// Watch the new ones.
    Verify,
    /// Ask before serving again.
    PostHook,
    /// Open the readiness gate.
    Ready,
    /// Back to what ran before.
    Rollback,
}

/// What is done to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Action {
    /// The same image again.
    Restart,
    /// Another image.
    Swap,
}

/// The way it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Engine {
    /// Fence, stop, create a clone and start it over the runtime's socket.
    Recreate,
    /// Change the pod's spec and let the kubelet do it.
    Respec,
    /// Stop and wait for the kubelet.
    Stop,
}

impl Phase {
    /// True for the phases that nothing follows.
    pub fn is_terminal(self) -> bool {
        !matches!(self, Self::Pending | Self::Running)
    }
}

macro_rules! display_as_serialized {
    ($($type:ty),*) => {$(
        impl std::fmt::Display for $type {
            /// The spelling of the contract.
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
        let instance = |id: &str, attempt| Incarnation {
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
