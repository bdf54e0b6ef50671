//! Restart on configuration change: which containers to restart when a `ConfigMap` or `Secret` that they use changes,
//! and when.
//!
//! A change has to settle first. Then the kubelets of the pods are made to refresh mounted volumes, and then one
//! rollout restarts the containers. The workload stores hashes of what was handled; an object that is observed for
//! the first time restarts nothing.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::request::{Order, fingerprint, is_dns_label, is_dns_subdomain};
use crate::api::workload::quarter;

/// A change has settled when nothing more has changed for this long.
const QUIET: SignedDuration = SignedDuration::from_secs(10);
/// A change that does not settle is handled after this long.
const MAX_WAIT: SignedDuration = SignedDuration::from_secs(60);
/// How long kubelets get to refresh mounted volumes after they were triggered.
const MOUNTS: SignedDuration = SignedDuration::from_secs(10);
/// Maximum number of objects that one workload may name.
const MAX_OBJECTS: usize = 32;
/// Maximum length of an annotation, in bytes. Whoever may create a workload writes it, and it is parsed every second.
pub const MAX_TEXT: usize = 16 * 1024;

/// The kind of an object that holds configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// A `ConfigMap`.
    ConfigMap,
    /// A `Secret`.
    Secret,
}

/// One object that a workload names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Kind of the object.
    pub source: Source,
    /// Name of the object, in the workload's namespace.
    pub name: String,
    /// The containers to restart; empty: those that mount the object or take environment values from it.
    pub containers: Vec<String>,
}

/// An annotation that cannot be parsed. The message says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// An entry of the list is malformed.
    #[error(
        "`{0}` is not valid: write configmap/NAME or secret/NAME, optionally followed by =CONTAINER+CONTAINER"
    )]
    Entry(String),
    /// An object is named twice.
    #[error("{0} is named twice")]
    Twice(String),
    /// The annotation is too long.
    #[error("it has more than {MAX_TEXT} bytes")]
    TooLong,
    /// Too many objects are named.
    #[error("more than {MAX_OBJECTS} objects are named")]
    TooMany,
    /// The annotation for `maxUnavailable` is malformed.
    #[error("`{0}` is neither a number of pods from 1 on nor a percentage such as 25%")]
    MaxUnavailable(String),
    /// The annotation for the order is malformed.
    #[error("`{0}` is neither StopFirst nor StartFirst")]
    Order(String),
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.source {
            Source::ConfigMap => "configmap",
            Source::Secret => "secret",
        };
        write!(f, "{kind}/{}", self.name)
    }
}

/// Parses `configmap/NAME[=CONTAINER+CONTAINER],secret/NAME`.
///
/// # Errors
/// If the text has any other form.
pub fn parse(text: &str) -> Result<Vec<Reference>, Malformed> {
    if text.len() > MAX_TEXT {
        return Err(Malformed::TooLong);
    }
    let mut references: Vec<Reference> = Vec::new();
    for entry in text.split(',').map(str::trim) {
        let reference = entry_of(entry).ok_or_else(|| Malformed::Entry(entry.chars().take(64).collect()))?;
        if references
            .iter()
            .any(|before| (before.source, &before.name) == (reference.source, &reference.name))
        {
            return Err(Malformed::Twice(reference.to_string()));
        }
        if references.len() == MAX_OBJECTS {
            return Err(Malformed::TooMany);
        }
        references.push(reference);
    }
    Ok(references)
}

fn entry_of(entry: &str) -> Option<Reference> {
    let (object, containers) = match entry.split_once('=') {
        Some((object, containers)) => (object, containers.split('+').map(str::to_owned).collect()),
        None => (entry, Vec::new()),
    };
    let (kind, name) = object.split_once('/')?;
    let source = match kind {
        "configmap" => Source::ConfigMap,
        "secret" => Source::Secret,
        _ => return None,
    };
    let right = is_dns_subdomain(name) && containers.iter().all(|container| is_dns_label(container));
    right.then(|| Reference { source, name: name.to_owned(), containers })
}

/// Parses how many pods may be unavailable; the default is 25 %.
///
/// # Errors
/// If it is neither a number nor a percentage.
pub fn max_unavailable(text: Option<&str>) -> Result<IntOrString, Malformed> {
    let Some(text) = text.map(str::trim) else { return Ok(quarter()) };
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u16>().ok().filter(|number| *number > 0);
    match number {
        Some(share) if text.ends_with('%') && share <= 100 => Ok(IntOrString::String(text.to_owned())),
        Some(number) if !text.ends_with('%') => Ok(IntOrString::Int(number.into())),
        _ => Err(Malformed::MaxUnavailable(text.chars().take(64).collect())),
    }
}

/// Parses the order of the restarts; the default is `StopFirst`.
///
/// # Errors
/// If it is neither `StopFirst` nor `StartFirst`.
pub fn order(text: Option<&str>) -> Result<Order, Malformed> {
    match text.map(str::trim) {
        None | Some("StopFirst") => Ok(Order::StopFirst),
        Some("StartFirst") => Ok(Order::StartFirst),
        Some(other) => Err(Malformed::Order(other.chars().take(64).collect())),
    }
}

/// What the cache holds of one of the objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Not read yet.
    Unknown,
    /// The API server refuses to return it.
    Unreadable,
    /// The object does not exist.
    Absent,
    /// The object exists.
    Present {
        /// Hash of the content.
        hash: String,
        /// Resource version: it distinguishes a later change back to the same content.
        version: String,
    },
}

/// What was handled: hash by object.
pub type HandledHashes = BTreeMap<String, String>;

/// A change that was observed and is not handled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The objects that have changed.
    pub changed: Vec<String>,
    /// The hashes to store once this change is handled.
    pub handled: HandledHashes,
    /// Identifies the change: the same for every replica of the controller that observes it.
    pub id: String,
    /// Set once the kubelets were triggered to refresh. Whatever changes after that is another change.
    pub refreshed: Option<Timestamp>,
    /// Set while another rollout of the workload has to end first: when to look again.
    pub waits_until: Option<Timestamp>,
    noticed: Timestamp,
    last: Timestamp,
}

/// What to do about one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing at this time.
    Nothing,
    /// Store the current hashes. Nothing is restarted.
    Record(HandledHashes),
    /// Make the kubelets of the pods refresh mounted volumes.
    Refresh,
    /// Restart the containers.
    Restart,
}

/// Decides for the workload `uid`, whose `references` have these `contents`. `handled`: what was handled; `change`: what
/// was observed so far.
pub fn decide(
    uid: &str,
    references: &[Reference],
    contents: &[Content],
    handled: Option<&HandledHashes>,
    change: &mut Option<Change>,
    now: Timestamp,
) -> Step {
    if let Some(Change { refreshed: Some(at), .. }) = change {
        return if now >= later(*at, MOUNTS) { Step::Restart } else { Step::Nothing };
    }
    if contents.contains(&Content::Unknown) {
        return Step::Nothing;
    }
    let (mut next, mut changed, mut versions) = (HandledHashes::new(), Vec::new(), Vec::new());
    for (reference, content) in references.iter().zip(contents) {
        let key = reference.to_string();
        let before = handled.and_then(|handled| handled.get(&key));
        match (content, before) {
            (Content::Present { hash, version }, before) => {
                if before.is_some_and(|before| before != hash) {
                    changed.push(key.clone());
                    versions.push(version.as_str());
                }
                next.insert(key, hash.clone());
            }
            // The hash is kept while the object is missing or cannot be read: later it is compared with that.
            (_, Some(before)) => drop(next.insert(key, before.clone())),
            (_, None) => {}
        }
    }
    if changed.is_empty() {
        *change = None;
        return if handled == Some(&next) { Step::Nothing } else { Step::Record(next) };
    }
    let id = format!("{:016x}", fingerprint(&format!("{uid} {next:?} {versions:?}")));
    let before = change.take();
    let noticed = before.as_ref().map_or(now, |before| before.noticed);
    let waits_until = before.as_ref().and_then(|before| before.waits_until);
    let last = before.filter(|before| before.handled == next).map_or(now, |before| before.last);
    *change = Some(Change { changed, handled: next, id, refreshed: None, waits_until, noticed, last });
    let due = later(last, QUIET).min(later(noticed, MAX_WAIT));
    let due = waits_until.map_or(due, |until| due.max(until));
    if now >= due { Step::Refresh } else { Step::Nothing }
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(at)
}

/// The containers of `pod` to restart for `changed`, in the order of the template: those that are named, otherwise
/// those that use the object.
pub fn containers(pod: &PodSpec, references: &[Reference], changed: &[String]) -> Vec<String> {
    let changed: Vec<_> =
        references.iter().filter(|reference| changed.contains(&reference.to_string())).collect();
    // Init containers that keep running are sidecars.
    let sidecars = pod.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let restarts = |container: &&Container| {
        changed.iter().any(|reference| match reference.containers.as_slice() {
            [] => uses(pod, container, reference),
            named => named.contains(&container.name),
        })
    };
    pod.containers.iter().chain(sidecars).filter(restarts).map(|container| container.name.clone()).collect()
}

fn uses(pod: &PodSpec, container: &Container, reference: &Reference) -> bool {
    let is = |source, name: &str| source == reference.source && name == reference.name;
    let volumes: BTreeSet<_> = pod
        .volumes
        .iter()
        .flatten()
        .filter(|volume| holds(volume, &is))
        .map(|volume| volume.name.as_str())
        .collect();
    let mounts = container.volume_mounts.iter().flatten().any(|mount| volumes.contains(mount.name.as_str()));
    let whole = container.env_from.iter().flatten().any(|from| {
        from.config_map_ref.as_ref().is_some_and(|map| is(Source::ConfigMap, &map.name))
            || from.secret_ref.as_ref().is_some_and(|secret| is(Source::Secret, &secret.name))
    });
    let values = container.env.iter().flatten().filter_map(|value| value.value_from.as_ref());
    let mut values = values.map(|from| {
        from.config_map_key_ref.as_ref().is_some_and(|key| is(Source::ConfigMap, &key.name))
            || from.secret_key_ref.as_ref().is_some_and(|key| is(Source::Secret, &key.name))
    });
    mounts || whole || values.any(|used| used)
}

fn holds(volume: &Volume, is: &impl Fn(Source, &str) -> bool) -> bool {
    let map = volume.config_map.as_ref().is_some_and(|map| is(Source::ConfigMap, &map.name));
    let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.as_deref());
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let mut projected = sources.map(|source| {
        source.config_map.as_ref().is_some_and(|map| is(Source::ConfigMap, &map.name))
            || source.secret.as_ref().is_some_and(|secret| is(Source::Secret, &secret.name))
    });
    map || secret.is_some_and(|name| is(Source::Secret, name)) || projected.any(|held| held)
}

#[cfg(test)]
mod tests;
