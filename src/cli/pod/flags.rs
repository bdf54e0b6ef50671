//! Builds a request from the flags of `restart`, `swap` and `plan`. Pure.

use clap::{Args, ValueEnum};

use crate::api::request::{
    ContainerRequest, DEADLINE_SECONDS, Drain, HookRef, InvalidRequest, OnFailure, Order, PreHookPhase,
    READY_TIMEOUT_SECONDS, Request, RequestedEngine,
};
use crate::cli::cluster::Failed;
use crate::cli::flag_help::{default_value, with_default};
use crate::cli::named_value::NamedValue;
use crate::cli::span::Seconds;
use crate::process::random;

/// The flags about the request.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Request")]
pub(super) struct RequestFlags {
    /// Take the pod out of traffic and wait this long before the first stop (requires the readiness gate)
    #[arg(long, value_name = "TIME")]
    grace: Option<Seconds>,
    #[arg(long, value_name = "WHEN", help = with_default(
        "When the pod counts as drained (requires the readiness gate)", default_value::<DrainArg, Drain>()))]
    drain: Option<DrainArg>,
    /// Hook (the name of its HookTemplate) that must pass while the pod still takes traffic
    #[arg(long, value_name = "NAME")]
    pre_hook: Option<String>,
    /// Hook (the name of its HookTemplate) that must pass once the standby can serve (requires --order start-first)
    #[arg(long, value_name = "NAME", conflicts_with = "pre_hook")]
    handover_hook: Option<String>,
    /// Hook (the name of its HookTemplate) that must pass before the pod takes traffic again
    #[arg(long, value_name = "NAME")]
    post_hook: Option<String>,
    /// Value of an argument for both hooks; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    hook_arg: Vec<NamedValue>,
    /// How long the new container must stay up
    #[arg(long, value_name = "TIME")]
    min_ready: Option<Seconds>,
    /// Replace each container only once the previous one is Ready
    #[arg(long)]
    each_ready: bool,
    #[arg(long, value_name = "TIME", help = with_default(
        "How long the new container may take to become Ready", Seconds(READY_TIMEOUT_SECONDS)))]
    ready_timeout: Option<Seconds>,
    /// How long each container has to stop, in place of its pod's terminationGracePeriodSeconds
    #[arg(long, value_name = "TIME")]
    termination_grace: Option<Seconds>,
    #[arg(long, value_name = "TIME", help = with_default(
        "Time until the request must have ended", Seconds(DEADLINE_SECONDS)))]
    deadline: Option<Seconds>,
    #[arg(long, value_name = "WHAT", help = with_default(
        "What happens if a new image does not come up", default_value::<OnFailureArg, OnFailure>()))]
    on_failure: Option<OnFailureArg>,
    #[arg(long, value_name = "ENGINE", help = with_default(
        "The engine", default_value::<EngineArg, RequestedEngine>()))]
    engine: Option<EngineArg>,
    #[arg(long, value_name = "ORDER", help = with_default(
        "Start a standby before the container is stopped (requires an application of which two can run in one pod)",
        default_value::<OrderArg, Order>()))]
    order: Option<OrderArg>,
    /// Clone a container whose environment comes from objects, with the values that the old one was created with
    #[arg(long)]
    allow_stale_env: bool,
    /// Idempotency key: an id that has ended on a pod is not run again there [default: generated]
    #[arg(long)]
    id: Option<String>,
    /// Reason, shown in the history
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DrainArg {
    /// When the time of --grace is over
    Fixed,
    /// When no `EndpointSlice` sends traffic to the pod any more, and the time of --grace after that is over
    Confirmed,
}

impl From<DrainArg> for Drain {
    fn from(arg: DrainArg) -> Self {
        match arg {
            DrainArg::Fixed => Self::Fixed,
            DrainArg::Confirmed => Self::Confirmed,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OnFailureArg {
    /// Roll back to the previous image, once
    Rollback,
    /// Leave the pod as it is for inspection
    Keep,
}

impl From<OnFailureArg> for OnFailure {
    fn from(arg: OnFailureArg) -> Self {
        match arg {
            OnFailureArg::Rollback => Self::Rollback,
            OnFailureArg::Keep => Self::Keep,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OrderArg {
    /// Stop the old container, then start the new one
    StopFirst,
    /// Start a standby that serves while the container is replaced: no downtime
    StartFirst,
}

impl From<OrderArg> for Order {
    fn from(arg: OrderArg) -> Self {
        match arg {
            OrderArg::StopFirst => Self::StopFirst,
            OrderArg::StartFirst => Self::StartFirst,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EngineArg {
    /// The agent chooses
    Auto,
    /// Create the container through the runtime's socket
    Recreate,
    /// Change the pod's spec
    Respec,
    /// Stop the container and let the kubelet start it
    Stop,
}

impl From<EngineArg> for RequestedEngine {
    fn from(arg: EngineArg) -> Self {
        match arg {
            EngineArg::Auto => Self::Auto,
            EngineArg::Recreate => Self::Recreate,
            EngineArg::Respec => Self::Respec,
            EngineArg::Stop => Self::Stop,
        }
    }
}

/// Why the flags do not make a valid request.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidFlags {
    /// Hook arguments without a hook.
    #[error("--hook-arg is given, but none of --pre-hook, --handover-hook and --post-hook: name the hook")]
    NoHook,
    /// The resulting request is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
}

impl RequestFlags {
    /// The id from `--id`, or a new one that begins with `verb`.
    pub(super) fn id(&self, verb: &str) -> Result<String, Failed> {
        self.id.clone().map_or_else(|| fresh_id(verb), Ok)
    }

    /// True when `--id` was given.
    pub(super) fn has_id(&self) -> bool {
        self.id.is_some()
    }

    /// The validated request `id` for `targets`.
    pub(super) fn request(
        &self,
        id: String,
        targets: Vec<ContainerRequest>,
    ) -> Result<Request, InvalidFlags> {
        let Self {
            grace,
            drain,
            pre_hook,
            handover_hook,
            post_hook,
            hook_arg,
            min_ready,
            each_ready,
            ready_timeout,
            termination_grace,
            deadline,
            on_failure,
            engine,
            order,
            allow_stale_env,
            id: _,
            reason,
        } = self.clone();
        let is_hooked = [&pre_hook, &handover_hook, &post_hook].into_iter().any(Option::is_some);
        if !hook_arg.is_empty() && !is_hooked {
            return Err(InvalidFlags::NoHook);
        }
        let args: Vec<_> = hook_arg.into_iter().map(|NamedValue(arg)| arg).collect();
        let hook = |name: Option<String>, phase: PreHookPhase| {
            name.map(|template_name| HookRef { template_name, args: args.clone(), phase })
        };
        let at_handover = hook(handover_hook, PreHookPhase::Handover);
        let default = Request::new(id, targets);
        let or = |given: Option<Seconds>, default: u32| given.map_or(default, |Seconds(seconds)| seconds);
        let request = Request {
            grace_period_seconds: or(grace, default.grace_period_seconds),
            drain: drain.map_or(default.drain, Into::into),
            pre_hook: hook(pre_hook, PreHookPhase::Start).or(at_handover),
            post_hook: hook(post_hook, PreHookPhase::Start),
            each_ready,
            min_ready_seconds: or(min_ready, default.min_ready_seconds),
            ready_timeout_seconds: or(ready_timeout, default.ready_timeout_seconds),
            termination_grace_period_seconds: termination_grace.map(|Seconds(seconds)| seconds),
            deadline_seconds: or(deadline, default.deadline_seconds),
            on_failure: on_failure.map_or(default.on_failure, Into::into),
            engine: engine.map_or(default.engine, Into::into),
            order: order.map_or(default.order, Into::into),
            allow_stale_env,
            reason: reason.unwrap_or_default(),
            ..default
        };
        request.check()?;
        Ok(request)
    }
}

/// `restart-7k3m9qx2`: the verb and 40 random bits in Crockford's base 32, whose letters cannot be confused with
/// each other.
fn fresh_id(verb: &str) -> Result<String, Failed> {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
    let bits = random::number();
    let mut bits = bits.map_err(|why| Failed::Other(format!("no id can be generated: {why}; set --id")))?;
    let mut id = format!("{verb}-");
    for _ in 0..8 {
        id.push(char::from(ALPHABET[usize::try_from(bits % 32).unwrap_or_default()]));
        bits /= 32;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: RequestFlags,
    }

    fn request(flags: &str) -> Result<Request, InvalidFlags> {
        let words = std::iter::once("test").chain(flags.split_whitespace());
        let targets = vec![ContainerRequest { name: "app".into(), image: None }];
        Line::try_parse_from(words).unwrap().flags.request("web-1".into(), targets)
    }

    #[test]
    fn without_flags_it_is_the_request_with_its_defaults() {
        assert_eq!(
            request("").unwrap(),
            Request::new("web-1".into(), vec![ContainerRequest { name: "app".into(), image: None }])
        );
    }

    #[test]
    fn the_help_of_a_flag_names_the_default_of_the_request() {
        let mut named = Vec::new();
        for arg in Line::command().get_arguments() {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let (Some(long), Some((_, default))) = (arg.get_long(), help.split_once("[default: ")) else {
                continue;
            };
            if long == "id" {
                continue;
            }
            let default = default.trim_end_matches(']');
            assert_eq!(request(&format!("--{long} {default}")).unwrap(), request("").unwrap(), "--{long}");
            named.push(format!("{long} {default}"));
        }
        named.sort();
        assert_eq!(
            named,
            [
                "deadline 10m",
                "drain fixed",
                "engine auto",
                "on-failure rollback",
                "order stop-first",
                "ready-timeout 2m"
            ]
        );
    }

    #[test]
    fn every_flag_is_a_field_of_the_contract() {
        let request = request(
            "--grace 30s --drain confirmed --pre-hook drain --post-hook check --hook-arg k=v --hook-arg x=a=b \
             --min-ready 5 \
             --ready-timeout 1m --termination-grace 7s --deadline 5m --on-failure keep --engine respec --allow-stale-env \
             --reason ticket-42 --id other",
        );
        let hook = |name| json!({"templateName": name, "args": [{"name": "k", "value": "v"}, {"name": "x", "value": "a=b"}]});
        assert_eq!(
            serde_json::to_value(request.unwrap()).unwrap(),
            json!({
                "id": "web-1", "containers": [{"name": "app"}], "gracePeriodSeconds": 30, "drain": "Confirmed",
                "preHook": hook("drain"), "postHook": hook("check"), "minReadySeconds": 5,
                "readyTimeoutSeconds": 60, "terminationGracePeriodSeconds": 7, "deadlineSeconds": 300, "onFailure": "Keep", "engine": "Respec",
                "allowStaleEnv": true,
                "reason": "ticket-42",
            })
        );
    }

    #[test]
    fn what_makes_no_request_is_said_before_anything_is_written() {
        assert_eq!(request("--hook-arg k=v"), Err(InvalidFlags::NoHook));
        assert!(request("--grace 20m").unwrap_err().to_string().contains("deadlineSeconds 600"));
        assert!(request("--deadline 0").unwrap_err().to_string().contains("deadlineSeconds"));
        assert!(Line::try_parse_from(["test", "--engine", "magic"]).is_err());
        assert!(Line::try_parse_from(["test", "--hook-arg", "k"]).is_err());
    }

    #[test]
    fn ids_are_readable_and_differ() {
        let ids: std::collections::BTreeSet<_> =
            (0..100).map(|_| RequestFlags::default().id("restart").unwrap()).collect();
        assert_eq!(ids.len(), 100);
        for id in ids {
            let tail = id.strip_prefix("restart-").unwrap();
            assert!(tail.len() == 8 && tail.chars().all(|c| c.is_ascii_alphanumeric()), "{id}");
            Request::new(id, vec![ContainerRequest { name: "app".into(), image: None }]).check().unwrap();
        }
        let given = RequestFlags { id: Some("mine".into()), ..RequestFlags::default() };
        assert_eq!(given.id("restart").unwrap(), "mine");
    }
}
