//! The flags of `restart` and `swap` that apply to workloads and not to single pods. Pure.

use std::fmt;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::group::{OnUnprepared, Strategy, TogetherTerms};
use crate::api::in_place_rollout::first;
use crate::api::workload::{UpdateFailurePolicy, nothing, quarter};
use crate::cli::flag_help::with_default;
use crate::cli::span::Seconds;
use crate::podtask::amount::Amount;

/// Default `--ttl` of a rollout that a command creates: how long it stays after it has ended.
pub(super) const TTL: Seconds = Seconds(86_400);

/// The flags about the rollout over the pods of a workload.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Rollout to the pods of a workload")]
pub(in crate::cli) struct RolloutFlags {
    /// All pods with these labels, whatever their owner, instead of the pods of a workload: KEY=VALUE[,KEY=VALUE]
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "id")]
    pub(in crate::cli) selector: Option<Labels>,
    #[command(flatten)]
    pub(super) group: GroupFlags,
    #[arg(long, value_name = "AMOUNT", help = with_default(
        "How many pods may be unavailable at the same time: a number or a percentage", Share(quarter())))]
    pub(super) max_unavailable: Option<Share>,
    #[arg(long, value_name = "AMOUNT", help = with_default(
        "How many pods are not changed: a number or a percentage", Share(nothing())))]
    pub(super) partition: Option<Share>,
    #[arg(long, value_name = "AMOUNT", help = with_default(
        "Start no further pods after this many failures: a number or a percentage", Share(first())))]
    pub(super) failure_threshold: Option<Share>,
    /// What happens at --failure-threshold or after --progress-deadline: the pods stay as they are, or those that were
    /// swapped go back to their images from before [default: pause]
    #[arg(long, value_name = "WHAT")]
    pub(super) on_rollout_failure: Option<OnRolloutFailure>,
    /// Time until the whole rollout must have ended [default: no limit; --deadline applies to each pod]
    #[arg(long, value_name = "TIME")]
    pub(super) rollout_deadline: Option<Seconds>,
    /// Time without a further pod that is done or has failed after which the rollout fails [default: no limit; time while
    /// it is paused does not count]
    #[arg(long, value_name = "TIME")]
    pub(super) progress_deadline: Option<Seconds>,
    #[arg(long, value_name = "TIME|never", help = with_default(
        "Time after the end until the rollout is deleted; or `never` to keep it", TTL))]
    pub(super) ttl: Option<Ttl>,
    /// Start no pod before `inplace rollout resume`
    #[arg(long)]
    pub(super) paused: bool,
    /// Swap although the workload's template names another image, which new pods will have
    #[arg(long)]
    pub(super) allow_template_drift: bool,
}

/// The flags about a group restart.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct GroupFlags {
    /// Restart all pods at once: prepare all, stop all, and start only when all have stopped (a group restart)
    #[arg(long, conflicts_with_all = ["max_unavailable", "partition", "failure_threshold", "on_rollout_failure"])]
    together: bool,
    /// Start each pod as soon as it has stopped, without waiting for the others
    #[arg(long, requires = "together")]
    no_barrier: bool,
    /// Restart the others if a pod cannot be prepared [default: the group restart fails, and no container is stopped]
    #[arg(long, requires = "together")]
    skip_unprepared: bool,
    /// Time until all pods must be prepared [default: 30s]
    #[arg(long, value_name = "TIME", requires = "together")]
    prepare_timeout: Option<Seconds>,
    /// How long a stopped container waits for the other pods, at most 5m; longer than the grace period of the pods [default:
    /// 60s]
    #[arg(long, value_name = "TIME", requires = "together", conflicts_with = "no_barrier")]
    barrier_timeout: Option<Seconds>,
}

impl GroupFlags {
    /// The strategy, and the parameters of a group restart.
    pub(super) fn strategy(self) -> (Strategy, Option<TogetherTerms>) {
        if !self.together {
            return (Strategy::Rolling, None);
        }
        let on_unprepared = if self.skip_unprepared { OnUnprepared::Skip } else { OnUnprepared::Fail };
        let default = TogetherTerms::default();
        let seconds = |given: Option<Seconds>, default| {
            given.map_or(default, |Seconds(seconds)| i32::try_from(seconds).unwrap_or(i32::MAX))
        };
        let terms = TogetherTerms {
            barrier: !self.no_barrier,
            on_unprepared,
            prepare_timeout_seconds: seconds(self.prepare_timeout, default.prepare_timeout_seconds),
            barrier_timeout_seconds: seconds(self.barrier_timeout, default.barrier_timeout_seconds),
        };
        (Strategy::Together, Some(terms))
    }
}

impl RolloutFlags {
    /// The name of a flag that was given, if any. None of these flags applies to a single pod.
    pub(in crate::cli) fn given(&self) -> Option<&'static str> {
        let Self {
            selector,
            group: GroupFlags { together, no_barrier, skip_unprepared, prepare_timeout, barrier_timeout },
            max_unavailable,
            partition,
            failure_threshold,
            on_rollout_failure,
            rollout_deadline,
            progress_deadline,
            ttl,
            paused,
            allow_template_drift,
        } = self;
        [
            (selector.is_some(), "-l"),
            (*together, "--together"),
            (*no_barrier, "--no-barrier"),
            (*skip_unprepared, "--skip-unprepared"),
            (prepare_timeout.is_some(), "--prepare-timeout"),
            (barrier_timeout.is_some(), "--barrier-timeout"),
            (max_unavailable.is_some(), "--max-unavailable"),
            (partition.is_some(), "--partition"),
            (failure_threshold.is_some(), "--failure-threshold"),
            (on_rollout_failure.is_some(), "--on-rollout-failure"),
            (rollout_deadline.is_some(), "--rollout-deadline"),
            (progress_deadline.is_some(), "--progress-deadline"),
            (ttl.is_some(), "--ttl"),
            (*paused, "--paused"),
            (*allow_template_drift, "--allow-template-drift"),
        ]
        .into_iter()
        .find_map(|(given, flag)| given.then_some(flag))
    }
}

/// What happens to the pods of a rollout that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum OnRolloutFailure {
    /// The pods stay as they are
    Pause,
    /// Pods that were swapped go back to their images from before, in place
    Abort,
}

impl From<OnRolloutFailure> for UpdateFailurePolicy {
    fn from(policy: OnRolloutFailure) -> Self {
        match policy {
            OnRolloutFailure::Pause => Self::Pause,
            OnRolloutFailure::Abort => Self::Abort,
        }
    }
}

/// A number or a percentage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Share(pub(super) IntOrString);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Amount::parse(text).map_err(|error| error.to_string())?;
        Ok(Self(text.parse().map_or_else(|_| IntOrString::String(text.to_owned()), IntOrString::Int)))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            IntOrString::Int(number) => number.fmt(f),
            IntOrString::String(percentage) => percentage.fmt(f),
        }
    }
}

/// How long a rollout stays after it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ttl(pub(super) Option<Seconds>);

impl FromStr for Ttl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "never" { Ok(Self(None)) } else { text.parse().map(|span| Self(Some(span))) }
    }
}

/// Labels that a pod must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Labels(pub(super) Vec<(String, String)>);

impl FromStr for Labels {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let pair = |term: &str| {
            let (key, value) = term.split_once("==").or_else(|| term.split_once('='))?;
            let (key, value) = (key.trim(), value.trim());
            let plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
            (!key.is_empty() && plain(key) && plain(value)).then(|| (key.to_owned(), value.to_owned()))
        };
        text.split(',').map(|term| pair(term).ok_or(term)).collect::<Result<_, _>>().map(Self).map_err(
            |term| {
                format!("`{term}` is not KEY=VALUE; for other selectors create an InPlaceRollout from YAML")
            },
        )
    }
}
