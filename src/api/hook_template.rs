//! `HookTemplate`: what a hook measures, how often, and when it has passed. Fields and their names are those of bk-bcs
//! (`tkex.tencent.com/v1alpha1`); the doc comment of a field says if it is an extension of this project.
//!
//! Types only: `hook::check` finds contradictions between fields.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::request::HookArg;

/// A duration in the syntax of Go. An empty text counts as no duration.
const DURATION: &str = r"^(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))*)$";
/// A reusable hook.
#[derive(CustomResource, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tkex.tencent.com",
    version = "v1alpha1",
    kind = "HookTemplate",
    doc = "What a hook measures, how often, and when it has passed.",
    namespaced,
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct HookTemplateSpec {
    /// The metrics; each has its own verdict, and the worst verdict decides.
    #[schemars(length(min = 1, max = 64))]
    pub metrics: Vec<Metric>,
    /// Arguments for `{{ args.NAME }}`. An argument without a value must be set for each run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub args: Vec<Argument>,
    /// Whether the metrics are measured at the same time or one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Parallel"))]
    pub policy: Option<Policy>,
}

/// One declared argument.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Argument {
    /// The name by which the template's fields refer to the argument (`{{args.NAME}}`).
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// The value; absent in a template if it is set for each run.
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
    /// Each starts when the previous one has ended.
    Ordered,
}
/// One metric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// The name, unique in the hook.
    #[schemars(length(min = 1, max = 256))]
    pub name: String,
    /// The time from the end of a measurement to the start of the next one, as `90s` or `1m30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = DURATION))]
    pub interval: Option<String>,
    /// The time from the start of the run to the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = DURATION))]
    pub initial_delay: Option<String>,
    /// Maximum number of measurements; 0 or absent: one without an interval, unlimited with an interval.
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
    /// Number of failed measurements that are tolerated. Absent: none, or any number if a limit of successful
    /// measurements is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub failure_limit: Option<i32>,
    /// Number of successful measurements that make the metric successful; 0 or absent: no such limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub successful_limit: Option<i32>,
    /// Number of inconclusive measurements that are tolerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub inconclusive_limit: Option<i32>,
    /// Number of errors in a row that are tolerated; absent: 4.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub consecutive_error_limit: Option<i32>,
    /// Number of successful measurements in a row that make the metric successful.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub consecutive_successful_limit: Option<i32>,
    /// The source of the measurement.
    pub provider: Provider,
}
/// The source of the measurement: exactly one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provider {
    /// An HTTP server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub web: Option<Web>,
    /// A Prometheus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<Prometheus>,
    /// The annotations of the pod in the API server.
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
    /// Default: GET. An extension of this project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// The headers of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub headers: Vec<Header>,
    /// The body of the request. An extension of this project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub body: Option<String>,
    /// Timeout of the whole exchange, 60 at most; 0 or absent: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 60))]
    pub timeout_seconds: Option<i32>,
    /// The JSON path of the result in the response, as `{$.age}` or `$.age`. Absent: the whole body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub json_path: Option<String>,
    /// Accepted status codes; empty: 200 to 299. An extension of this project.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(range(min = 200, max = 599)))]
    pub status_codes: Vec<u16>,
    /// How the server is authenticated. An extension of this project.
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
    /// The name of the HTTP header.
    #[schemars(length(min = 1, max = 256))]
    pub key: String,
    /// The value of the HTTP header.
    #[schemars(length(max = 16_384))]
    pub value: String,
}

/// TLS of a web hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// CA certificates (PEM) that are trusted instead of the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 65_536))]
    pub ca_bundle: Option<String>,
    /// The expected name in the server's certificate, if it differs from the host in the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub server_name: Option<String>,
    /// True to accept any certificate.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub insecure_skip_verify: bool,
}
/// An instant query. `query` is a template; so is `address`, an extension of this project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Prometheus {
    /// The base URL of the Prometheus server.
    #[schemars(length(min = 1, max = 4096))]
    pub address: String,
    /// `PromQL` that returns a scalar or a vector.
    #[schemars(length(min = 1, max = 16_384))]
    pub query: String,
}

/// Fields of the pod to compare or to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kubernetes {
    /// All of them must hold.
    #[schemars(length(min = 1, max = 64))]
    pub fields: Vec<Field>,
    /// Whether the fields are compared or set.
    pub function: Function,
}

/// One field of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Field {
    /// `metadata.annotations.KEY`.
    #[schemars(length(max = 512), regex(pattern = r"^metadata\.annotations\..+"))]
    pub path: String,
    /// The value that the field is compared with or set to.
    #[schemars(length(max = 16_384))]
    pub value: String,
}
/// What is done with the fields.
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
    /// The container of the pod.
    #[schemars(length(min = 1, max = 253))]
    pub container: String,
    /// The program and its arguments; each is a template. An extension of this project.
    #[schemars(length(min = 1, max = 256), inner(length(max = 16_384)))]
    pub command: Vec<String>,
    /// Timeout, 60 at most; 0 or absent: 10. An extension of this project.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 60))]
    pub timeout_seconds: Option<i32>,
}
