//! The request: the value of one annotation, a line for people or JSON for programs. Both are parsed into [`Request`].
//!
//! The parser is total: every text is absent, valid, or invalid with a message that says what to change. It does not look
//! at the pod: `operation::preflight` checks whether the containers exist.

use jiff::SignedDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::image::ImageRef;
use crate::api::serde_default::is_default;

/// Maximum length of the annotation in bytes. Kubernetes allows 256 KiB for all annotations of an object.
const MAX_TEXT: usize = 16 * 1024;
/// Maximum number of containers in one request.
pub(crate) const MAX_CONTAINERS: usize = 64;
/// Maximum length of an id. It is also the source of a label value, see [`label_value`].
const MAX_ID: usize = 128;

/// The request for one pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    /// The idempotency key. If it is absent, the parser sets a hash of the text.
    #[serde(default)]
    pub id: String,
    /// The containers to restart or swap, in this order.
    pub containers: Vec<ContainerRequest>,
    /// True if each container is replaced only once the previous one is Ready.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub each_ready: bool,
    /// Seconds that the pod is out of traffic before its first container is stopped. 0: no drain, unless `drain` is
    /// `Confirmed`.
    #[serde(default)]
    pub grace_period_seconds: u32,
    /// When the pod counts as drained.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drain: Drain,
    /// Hook that must succeed before the pod is taken out of traffic and a container is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_hook: Option<HookRef>,
    /// Hook that must succeed before the pod takes traffic again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_hook: Option<HookRef>,
    /// Seconds that a new container must stay up before it is accepted.
    #[serde(default)]
    pub min_ready_seconds: u32,
    /// Seconds that a new container may take to become Ready.
    #[serde(default = "default_ready_timeout")]
    pub ready_timeout_seconds: u32,
    /// Seconds that each container has to stop, its preStop handler included, in place of the pod's own
    /// `terminationGracePeriodSeconds`. As with a kubelet, the stop itself has at least 2 s, and with 0 the handler is not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub termination_grace_period_seconds: Option<u32>,
    /// Seconds until the request must have ended.
    #[serde(default = "default_deadline")]
    pub deadline_seconds: u32,
    /// What happens if the new image of a swap does not come up.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// How the containers are replaced; `Auto` chooses for each container.
    #[serde(default)]
    pub engine: RequestedEngine,
    /// Whether the new container is started before or after the old one is stopped.
    #[serde(default, skip_serializing_if = "is_default")]
    pub order: Order,
    /// True if a container may be cloned although its environment has values of `ConfigMaps`, Secrets or labels: the new one has
    /// them as they were when the old one was created. By default a kubelet starts such a container.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_stale_env: bool,
    /// Free text for the history.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// One container of a request: with an image it is a swap, without one a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ContainerRequest {
    /// Name in the pod spec.
    pub name: String,
    /// The new image; absent for a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// A hook by the name of its template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HookRef {
    /// Name of a `HookTemplate` in the pod's namespace.
    pub template_name: String,
    /// Values for the template's arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<HookArg>,
    /// When a `preHook` runs. A `postHook` has no phase.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: PreHookPhase,
}

/// When a `preHook` runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PreHookPhase {
    /// Before anything is started or stopped.
    #[default]
    Start,
    /// With the order `StartFirst`: once the standby can serve, and before the container is stopped. Commands of the hook for
    /// that container run in the standby.
    Handover,
}

/// An argument of a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HookArg {
    /// The name of the argument in the template.
    pub name: String,
    /// The value of the argument.
    pub value: String,
}

/// What happens if the new image of a swap does not come up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnFailure {
    /// Roll back to the previous image, once.
    #[default]
    Rollback,
    /// Leave everything in its current state for inspection.
    Keep,
}

/// Whether a new container is started before or after the old one is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    /// The old container is stopped first.
    #[default]
    StopFirst,
    /// A standby, which is a second container with the new image, is started first. It proves that the new container can
    /// run, and serves while the container is replaced. Two processes of the application must be able to run side by
    /// side in the pod: ports are shared by `SO_REUSEPORT`.
    StartFirst,
}

/// When a pod counts as drained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Drain {
    /// When the grace period is over.
    #[default]
    Fixed,
    /// When no `EndpointSlice` sends traffic to the pod any more, and the grace period after that is over.
    Confirmed,
}

/// The engine that a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestedEngine {
    /// The agent chooses.
    #[default]
    Auto,
    /// Create the container through the runtime's socket.
    Recreate,
    /// Change the pod's spec.
    Respec,
    /// Stop the container and let the kubelet start it.
    Stop,
}

/// Why the text is not a request. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequest {
    /// The text is longer than 16 KiB.
    #[error("the request is longer than {MAX_TEXT} bytes")]
    TooLong,
    /// The text is not JSON, and its first word is not a known verb.
    #[error(
        "the request starts with `{0}`: write `restart NAME[,NAME]`, `swap NAME=IMAGE[,NAME=IMAGE]` or a JSON object"
    )]
    Verb(String),
    /// The line form does not follow its grammar.
    #[error("{0}")]
    Line(String),
    /// The JSON is malformed, has an unknown field, or a value of the wrong type.
    #[error("the request is not valid: {0}")]
    Json(String),
    /// A value is out of its bounds.
    #[error("{field}: {problem}")]
    Value {
        /// The path of the field in the JSON.
        field: String,
        /// What is wrong, or what is valid.
        problem: String,
    },
}

/// The default of `readyTimeoutSeconds`.
pub const READY_TIMEOUT_SECONDS: u32 = 120;
/// The default of `deadlineSeconds`.
pub const DEADLINE_SECONDS: u32 = 600;
/// The maximum of `deadlineSeconds`.
pub const MAX_DEADLINE_SECONDS: u32 = 86_400;

/// The minimum time that a standby is observed which adds no listening socket although others listen in the pod: servers
/// that cannot share a port often retry for some seconds.
pub const SILENT_STANDBY: SignedDuration = SignedDuration::from_secs(6);

fn default_ready_timeout() -> u32 {
    READY_TIMEOUT_SECONDS
}

fn default_deadline() -> u32 {
    DEADLINE_SECONDS
}

impl Request {
    /// A request for `containers` with the default values of all other fields.
    pub fn new(id: String, containers: Vec<ContainerRequest>) -> Self {
        Self {
            id,
            containers,
            each_ready: false,
            grace_period_seconds: 0,
            drain: Drain::default(),
            pre_hook: None,
            post_hook: None,
            min_ready_seconds: 0,
            ready_timeout_seconds: READY_TIMEOUT_SECONDS,
            termination_grace_period_seconds: None,
            deadline_seconds: DEADLINE_SECONDS,
            on_failure: OnFailure::default(),
            engine: RequestedEngine::default(),
            order: Order::default(),
            allow_stale_env: false,
            reason: String::new(),
        }
    }

    /// The name of the field that requires a drain of the pod; `None` if the pod is not drained.
    pub fn drained_by(&self) -> Option<&'static str> {
        if self.grace_period_seconds > 0 {
            return Some("gracePeriodSeconds");
        }
        (self.drain == Drain::Confirmed).then_some("drain")
    }

    /// The names of the containers that are arguments of the `preHook` (`ModifiedContainer[i]`): those that get another image,
    /// and at the handover all that are replaced.
    pub fn modified_for_pre_hook(&self) -> Vec<String> {
        let is_handover = self.pre_hook.as_ref().is_some_and(|hook| hook.phase == PreHookPhase::Handover);
        let modified = self.containers.iter().filter(|target| is_handover || target.image.is_some());
        modified.map(|target| target.name.clone()).collect()
    }

    /// Seconds that all new containers together must stay up: `minReadySeconds` once, or with `eachReady` once per container.
    pub fn seconds_to_prove(&self) -> u64 {
        let turns = if self.each_ready { self.containers.len().max(1) as u64 } else { 1 };
        u64::from(self.min_ready_seconds) * turns
    }

    /// Seconds of the deadline that the proof of a standby needs at least; 0 with the order `StopFirst`.
    pub fn seconds_to_start_first(&self) -> u64 {
        match self.order {
            Order::StopFirst => 0,
            Order::StartFirst => {
                u64::from(self.min_ready_seconds).max(SILENT_STANDBY.as_secs().unsigned_abs())
            }
        }
    }

    /// Parses the value of the annotation. `Ok(None)` if it is absent or blank: nothing is requested.
    pub fn parse(text: Option<&str>) -> Result<Option<Self>, InvalidRequest> {
        let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else { return Ok(None) };
        if text.len() > MAX_TEXT {
            return Err(InvalidRequest::TooLong);
        }
        let mut request = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|error| InvalidRequest::Json(error.to_string()))?
        } else {
            parse_line(text)?
        };
        if request.id.is_empty() {
            request.id = text_id(text);
        }
        request.check()?;
        Ok(Some(request))
    }

    /// Checks every bound. [`Self::parse`] calls it; requests that are built in code need it as well.
    pub fn check(&self) -> Result<(), InvalidRequest> {
        let value = |field: &str, problem: String| InvalidRequest::Value { field: field.to_owned(), problem };
        if self.id.is_empty() || self.id.len() > MAX_ID || !self.id.chars().all(|c| c.is_ascii_graphic()) {
            return Err(value("id", format!("1 to {MAX_ID} visible ASCII characters without spaces")));
        }
        if self.containers.is_empty() || self.containers.len() > MAX_CONTAINERS {
            return Err(value("containers", format!("name 1 to {MAX_CONTAINERS} containers")));
        }
        for (index, target) in self.containers.iter().enumerate() {
            if !is_dns_label(&target.name) {
                let problem = format!("`{}` is not a container name", target.name);
                return Err(value(&format!("containers[{index}].name"), problem));
            }
            if self.containers[..index].iter().any(|earlier| earlier.name == target.name) {
                let problem = format!("`{}` is named twice", target.name);
                return Err(value(&format!("containers[{index}].name"), problem));
            }
            if let Some(image) = &target.image
                && let Err(error) = ImageRef::parse(image)
            {
                return Err(value(&format!("containers[{index}].image"), error.to_string()));
            }
        }
        if !(1..=MAX_DEADLINE_SECONDS).contains(&self.deadline_seconds) {
            return Err(value("deadlineSeconds", format!("1 to {MAX_DEADLINE_SECONDS}")));
        }
        for (field, seconds) in [
            ("gracePeriodSeconds", self.grace_period_seconds),
            ("minReadySeconds", self.min_ready_seconds),
            ("terminationGracePeriodSeconds", self.termination_grace_period_seconds.unwrap_or(0)),
        ] {
            if seconds >= self.deadline_seconds {
                let problem =
                    format!("{seconds} does not fit into deadlineSeconds {}", self.deadline_seconds);
                return Err(value(field, problem));
            }
        }
        // The default value counts as not given: a short deadline alone also limits the time to become Ready.
        let seconds = self.ready_timeout_seconds;
        if seconds > self.deadline_seconds && seconds != READY_TIMEOUT_SECONDS {
            let problem = format!(
                "{seconds} does not fit into deadlineSeconds {}: use a smaller value or a longer deadline",
                self.deadline_seconds
            );
            return Err(value("readyTimeoutSeconds", problem));
        }
        for (field, hook) in [("preHook", &self.pre_hook), ("postHook", &self.post_hook)] {
            if let Some(hook) = hook
                && !is_dns_subdomain(&hook.template_name)
            {
                let problem = format!("`{}` is not the name of a HookTemplate", hook.template_name);
                return Err(value(&format!("{field}.templateName"), problem));
            }
        }
        let is_handover =
            |hook: &Option<HookRef>| hook.as_ref().is_some_and(|hook| hook.phase == PreHookPhase::Handover);
        if is_handover(&self.post_hook) {
            return Err(value("postHook.phase", "only a preHook has the phase Handover".to_owned()));
        }
        if is_handover(&self.pre_hook) && self.order != Order::StartFirst {
            return Err(value("preHook.phase", "Handover requires the order StartFirst".to_owned()));
        }
        Ok(())
    }
}

/// Parses `restart a,b #2` or `swap a=IMAGE,b=IMAGE #2`. The mark after `#` has no other effect than to change the text,
/// and with it the id.
fn parse_line(text: &str) -> Result<Request, InvalidRequest> {
    let mut words = text.split_whitespace();
    let verb = words.next().unwrap_or_default();
    let list = words.next();
    let mark = words.next();
    if !matches!(verb, "restart" | "swap") {
        return Err(InvalidRequest::Verb(verb.chars().take(32).collect()));
    }
    let Some(list) = list.filter(|list| !list.starts_with('#')) else {
        return Err(InvalidRequest::Line(format!("`{verb}` names no container")));
    };
    if let Some(extra) = words.next().or(mark.filter(|mark| !mark.starts_with('#'))) {
        let hint = "separate containers by commas without spaces, and put `#MARK` last";
        return Err(InvalidRequest::Line(format!("`{extra}` is not valid here: {hint}")));
    }
    let containers = list.split(',').map(|item| parse_item(verb, item)).collect::<Result<_, _>>()?;
    Ok(Request::new(String::new(), containers))
}

fn parse_item(verb: &str, item: &str) -> Result<ContainerRequest, InvalidRequest> {
    match (verb, item.split_once('=')) {
        ("restart", None) => Ok(ContainerRequest { name: item.to_owned(), image: None }),
        ("swap", Some((name, image))) => {
            Ok(ContainerRequest { name: name.to_owned(), image: Some(image.to_owned()) })
        }
        ("swap", None) => Err(InvalidRequest::Line(format!("`{item}` has no image: write NAME=IMAGE"))),
        _ => Err(InvalidRequest::Line(format!(
            "`{item}` has an image: a restart takes names only, use `swap`"
        ))),
    }
}

/// The id of a request without one: a hash of the text, in which runs of white space count as one space.
fn text_id(text: &str) -> String {
    let even = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("text-{:016x}", fingerprint(&even))
}

/// The hash of a text, for use in names: FNV-1a, 64 bit.
pub(crate) fn fingerprint(text: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// RFC 1123 label: what Kubernetes allows as a container name.
pub(crate) fn is_dns_label(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=63).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || c == '-')
}

/// The id as a label value: the id itself, or a hash of it if Kubernetes does not accept the id as a label value.
pub fn label_value(id: &str) -> String {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let fits = (1..=63).contains(&id.len())
        && id.starts_with(edge)
        && id.ends_with(edge)
        && id.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'));
    if fits { id.to_owned() } else { format!("id-{:016x}", fingerprint(id)) }
}

/// RFC 1123 subdomain: what Kubernetes allows as the name of most objects.
pub(crate) fn is_dns_subdomain(name: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(edge) && part.ends_with(edge) && part.chars().all(|c| edge(c) || c == '-')
    };
    name.len() <= 253 && name.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Request {
        Request::parse(Some(text)).unwrap().unwrap()
    }

    fn error(text: &str) -> String {
        Request::parse(Some(text)).unwrap_err().to_string()
    }

    #[test]
    fn both_spellings_read_into_the_same_request() {
        let line = parse("swap app=repo/app:v2");
        let json = parse(r#"{"containers":[{"name":"app","image":"repo/app:v2"}]}"#);
        assert_eq!(Request { id: String::new(), ..line }, Request { id: String::new(), ..json });
        let restart = parse("restart app,side #2");
        assert_eq!(restart.containers.len(), 2);
        assert!(restart.containers.iter().all(|target| target.image.is_none()));
    }

    #[test]
    fn without_a_text_there_is_no_request() {
        assert_eq!(Request::parse(None), Ok(None));
        assert_eq!(Request::parse(Some("  \n")), Ok(None));
    }

    #[test]
    fn the_id_of_a_text_changes_with_its_mark_and_not_with_its_spaces() {
        assert_eq!(parse("restart app").id, parse("  restart   app ").id);
        assert_ne!(parse("restart app").id, parse("restart app #2").id);
        assert_ne!(parse("restart app #2").id, parse("restart app #3").id);
        assert_eq!(parse(r#"{"id":"web-1","containers":[{"name":"a"}]}"#).id, "web-1");
    }

    #[test]
    fn every_json_field_of_the_contract_is_read() {
        let request = parse(
            r#"{"id":"web-7f9c-1","containers":[{"name":"app","image":"repo/app:v2"},{"name":"side"}],
            "gracePeriodSeconds":30,"drain":"Confirmed","preHook":{"templateName":"drain","args":[{"name":"k","value":"v"}]},
            "postHook":{"templateName":"check"},"minReadySeconds":5,"readyTimeoutSeconds":60,"deadlineSeconds":300,
            "onFailure":"Keep","engine":"Recreate","reason":"ticket 42"}"#,
        );
        assert_eq!((request.grace_period_seconds, request.drain), (30, Drain::Confirmed));
        assert_eq!(request.pre_hook.as_ref().unwrap().args[0].value, "v");
        assert_eq!(request.on_failure, OnFailure::Keep);
        assert_eq!(request.engine, RequestedEngine::Recreate);
        let again = parse(&serde_json::to_string(&request).unwrap());
        assert_eq!(again, request);
    }

    #[test]
    fn a_short_deadline_alone_is_accepted() {
        let request = parse(r#"{"containers":[{"name":"a"}],"deadlineSeconds":60}"#);
        assert_eq!((request.deadline_seconds, request.ready_timeout_seconds), (60, 120));
        parse(r#"{"containers":[{"name":"a"}],"deadlineSeconds":60,"readyTimeoutSeconds":60}"#);
    }

    #[test]
    fn an_id_is_its_own_label_where_it_can_be() {
        assert_eq!(label_value("web-7f9c_1.a"), "web-7f9c_1.a");
        for id in ["a/b", "-a", "a.", &"x".repeat(64)] {
            let label = label_value(id);
            assert!(label.starts_with("id-") && label.len() == 19, "{label}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let long = format!("restart {}", "a".repeat(20_000));
        for (text, expect) in [
            ("reboot app", "`reboot`"),
            ("restart", "names no container"),
            ("restart #2", "names no container"),
            ("restart app=img", "use `swap`"),
            ("swap app", "NAME=IMAGE"),
            ("swap app=", "containers[0].image"),
            ("swap app=Repo:v", "containers[0].image"),
            ("restart app, side", "is not valid here"),
            ("restart app #2 #3", "`#3`"),
            ("restart app,", "containers[1].name"),
            ("restart App", "`App`"),
            ("restart app,app", "named twice"),
            (r#"{"containers":[]}"#, "1 to 64"),
            (r#"{"containers":[{"name":"a"}],"graceSeconds":3}"#, "unknown field `graceSeconds`"),
            (r#"{"containers":[{"name":"a","tag":"v"}]}"#, "unknown field `tag`"),
            (r#"{"containers":[{"name":"a"}],"deadlineSeconds":0}"#, "deadlineSeconds: 1 to 86400"),
            (r#"{"containers":[{"name":"a"}],"deadlineSeconds":-1}"#, "invalid value"),
            (r#"{"containers":[{"name":"a"}],"gracePeriodSeconds":600}"#, "does not fit"),
            (
                r#"{"containers":[{"name":"a"}],"terminationGracePeriodSeconds":600}"#,
                "terminationGracePeriodSeconds: 600 does not fit",
            ),
            (
                r#"{"containers":[{"name":"a"}],"readyTimeoutSeconds":601}"#,
                "readyTimeoutSeconds: 601 does not fit into deadlineSeconds 600",
            ),
            (r#"{"containers":[{"name":"a"}],"drain":"Quick"}"#, "unknown variant `Quick`"),
            (r#"{"containers":[{"name":"a"}],"engine":"Magic"}"#, "unknown variant `Magic`"),
            (r#"{"containers":[{"name":"a"}],"preHook":{"templateName":""}}"#, "preHook.templateName"),
            (
                r#"{"containers":[{"name":"a"}],"postHook":{"templateName":"../pods/a"}}"#,
                "postHook.templateName",
            ),
            (r#"{"id":"a b","containers":[{"name":"a"}]}"#, "id: 1 to 128"),
            (r#"{"containers":[{"name":"a"}]"#, "EOF"),
            (&long, "longer than"),
        ] {
            assert!(error(text).contains(expect), "{text:.60} -> {}", error(text));
        }
    }
}
