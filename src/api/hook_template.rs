//! `HookTemplate`: what a gate measures, how often, and what counts as passed. Fields and spellings are those that users of
//! bk-bcs know (`tkex.tencent.com/v1alpha1`); what is ours is said at the field.
//!
//! Shapes only: what contradicts itself is found by `hook::check`.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::request::HookArg;

/// How Go spells a duration. An empty one is none.
const DURATION: &str = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*)$";

/// A gate that can be used again and again.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "HookTemplate",
    doc = "What a gate measures, how often, and what counts as passed.",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct HookTemplateSpec {
    /// The measurements; each has its own verdict, the worst one counts.
    #[schemars(length(min = 1, max = 64))]
    pub metrics: Vec<Metric>,
    /// Arguments that `{{ args.NAME }}` stands for. One without a value gets it when the hook is run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<Argument>,
    /// Whether the metrics are measured at the same time or one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
}

/// One declared argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Argument {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// Its value; absent in a template where it is given for each run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16_384))]
    pub value: Option<String>,
}

impl From<HookArg> for Argument {
    fn from(arg: HookArg) -> Self {
        Self { name: arg.name, value: Some(arg.value) }
    }
}

/// The order of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Policy {
    /// All at the same time.
    #[default]
    Parallel,
    /// Each begins when the one before it has ended.
    Ordered,
}

/// One thing that is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// Its name, once per hook.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// From the end of a measurement to the next one, as `90s` or `1m30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = DURATION))]
    pub interval: Option<String>,
    /// From the start of the run to the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = DURATION))]
    pub initial_delay: Option<String>,
    /// Measurements at most; 0 or absent: one without an interval, any number with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub count: Option<i32>,
    /// CEL over `result`: true makes a measurement successful.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub success_condition: Option<String>,
    /// CEL over `result`: true makes a measurement failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub failure_condition: Option<String>,
    /// Failed measurements that are borne. Absent: none, unless a limit of successes says that this polls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failure_limit: Option<i32>,
    /// Successful measurements that are enough; 0 or absent: no such limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub successful_limit: Option<i32>,
    /// Inconclusive measurements that are borne.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub inconclusive_limit: Option<i32>,
    /// Errors in a row that are borne; absent: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub consecutive_error_limit: Option<i32>,
    /// Successful measurements in a row that are enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub consecutive_successful_limit: Option<i32>,
    /// What is asked.
    pub provider: Provider,
}

/// What is asked: exactly one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provider {
    /// An HTTP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web: Option<Web>,
    /// A Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<Prometheus>,
    /// The pod as the API server shows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<Kubernetes>,
    /// A command in a container of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<Exec>,
}

impl Provider {
    /// True for `kubernetes` with `function: patch`.
    pub fn sets_annotations(&self) -> bool {
        self.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.function == Function::Patch)
    }
}

/// An HTTP request. `url`, header values and `body` are templates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Web {
    /// `http://` or `https://`.
    #[schemars(length(min = 1, max = 4096))]
    pub url: String,
    /// GET unless another one is named (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Sent along.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub headers: Vec<Header>,
    /// Sent as it is (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub body: Option<String>,
    /// For the whole exchange, 60 at most; 0 or absent: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 60))]
    pub timeout_seconds: Option<i32>,
    /// Where the result is in the JSON of the answer, as `{$.age}` or `$.age`. Absent: the whole body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub json_path: Option<String>,
    /// Status codes that are an answer (ours); empty: 200 to 299.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 200, max = 599)))]
    pub status_codes: Vec<u16>,
    /// How the server proves who it is (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// HTTP methods of a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Patch,
    Delete,
}

/// A header; its value is a template, its key is not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// Its name.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// Its value.
    #[schemars(length(max = 16_384))]
    pub value: String,
}

/// TLS of a web hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Certificates (PEM) that are trusted instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub ca_bundle: Option<String>,
    /// The name to expect in the server's certificate, when it is not the one in the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub server_name: Option<String>,
    /// Take any certificate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_verify: bool,
}

/// An instant query. `query` is a template; so is `address` (ours).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Prometheus {
    /// Its base URL.
    #[schemars(length(min = 1, max = 4096))]
    pub address: String,
    /// `PromQL`; a scalar or a vector comes back.
    #[schemars(length(min = 1, max = 16_384))]
    pub query: String,
}

/// Fields of the pod to compare or to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kubernetes {
    /// All of them must hold.
    #[schemars(length(min = 1, max = 64))]
    pub fields: Vec<Field>,
    /// What is done with them.
    pub function: Function,
}

/// One field of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Field {
    /// `metadata.annotations.KEY`.
    #[schemars(length(max = 512), regex(pattern = r"^metadata\.annotations\..+"))]
    pub path: String,
    /// Its value.
    #[schemars(length(max = 16_384))]
    pub value: String,
}

/// What is done with fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// Compare.
    Get,
    /// Set.
    Patch,
}

/// A command, run without a shell by the node's runtime. Exit code 0 is success; what it prints is `result`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    /// Which container of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub container: String,
    /// The program and its arguments; each is a template (ours).
    #[schemars(length(min = 1, max = 256), inner(length(max = 16_384)))]
    pub command: Vec<String>,
    /// 60 at most; 0 or absent: 10 (ours).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 60))]
    pub timeout_seconds: Option<i32>,
}
