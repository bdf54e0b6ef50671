//! Restarts containers when a `ConfigMap` or `Secret` that their workload names has changed.
//!
//! What was handled is recorded on the workload. A change that was observed but not handled yet is observed again
//! by the next leader. Must not decide when a restart is due (`config_restart` does), and touches no
//! container: it creates `InPlaceRollout`s.

mod cache;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::in_place_rollout::{InPlaceRollout, InPlaceRolloutStatus, RolloutPhase, UNREACHABLE};
use crate::api::pod_template::PodTemplate;
use crate::api::request::{DEADLINE_SECONDS, MAX_DEADLINE_SECONDS, Order};
use crate::cluster::error::{Class, Error};
use crate::cluster::server::Server;
use crate::config_restart::{self, Change, Content, Malformed, Reference, Source, Step, containers, decide};
use crate::controller::Common;
use crate::controller::config_restart::cache::{Subject, Subjects, Watched};
use crate::controller::events::Events;
use crate::controller::new_rollout::ROLLOUT_TTL_SECONDS;
use crate::podtask::start_first;
use crate::podtask::write::Event;
use crate::process::clock;
use crate::process::log::chain;

/// Interval between two reconciliations. They compare the contents in the cache and ask the API server for
/// nothing.
const TICK: Duration = Duration::from_secs(1);
/// If an object cannot be read for this long, the API server is asked for the reason.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// An object that is listed this many times in a row, and not watched, is one that may only be listed.
const ONLY_LISTED: u32 = 4;
/// Pods that are patched at the same time.
const AT_ONCE: usize = 8;
/// Objects of one namespace that are watched at most. Each is a watch of its own, because a Role may permit it alone.
const WATCHED_OF_NAMESPACE: usize = 256;
/// The pause before the next look at a rollout that has to end first.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// The rollout's name starts with at most this many bytes of the workload's name.
const STEM: usize = 60;

/// The parameters of the restarts of one workload.
#[derive(Clone, Debug)]
struct Options {
    max_unavailable: IntOrString,
    order: Order,
}

impl Options {
    fn of(subject: &Subject) -> Result<Self, Malformed> {
        Ok(Self {
            max_unavailable: config_restart::max_unavailable(subject.max_unavailable.as_deref())?,
            order: config_restart::order(subject.order.as_deref())?,
        })
    }
}

/// Kind, namespace and name of an object that a workload names.
type ObjectKey = (Source, String, String);

/// An object that workloads name.
struct WatchedObject {
    watched: Watched,
    /// When the API server was last asked why it does not return the object.
    asked: Instant,
    /// The API server refused to return it.
    refused: bool,
    /// How many times in a row the API server listed it, while the watch did not return it.
    listed: u32,
}

struct Changes {
    server: Server,
    subjects: Subjects,
    watched: BTreeMap<ObjectKey, WatchedObject>,
    /// The number of watched objects, by namespace.
    counts: HashMap<String, usize>,
    /// The open changes, by the uid of the workload.
    open: HashMap<String, Change>,
    events: Events,
    /// The warnings that were reported on a workload, by its uid and message: each is reported once.
    reported: HashSet<(String, String)>,
}

pub(super) async fn run(common: Common, stop: CancellationToken) {
    let Common { server, identity, .. } = common;
    let subjects = Subjects::watch(&server, &stop);
    let events = Events::new(server.clone(), identity);
    let (watched, counts) = (BTreeMap::new(), HashMap::new());
    let (open, reported) = (HashMap::new(), HashSet::new());
    let mut changes = Changes { server, subjects, watched, counts, open, events, reported };
    let working = async {
        loop {
            changes.reconcile().await;
            sleep(TICK).await;
        }
    };
    stop.run_until_cancelled(working).await;
}

impl Changes {
    async fn reconcile(&mut self) {
        let subjects = self.subjects.list();
        let mut named = BTreeSet::new();
        self.counts.clear();
        for (_, namespace, _) in self.watched.keys() {
            *self.counts.entry(namespace.clone()).or_default() += 1;
        }
        for subject in &subjects {
            // The webhooks and the lease have the same thread.
            yield_now().await;
            let read = config_restart::parse(&subject.text)
                .and_then(|references| Ok((references, Options::of(subject)?)));
            match read {
                Ok((references, options)) => {
                    named.extend(references.iter().map(|reference| object_key(subject, reference)));
                    if let Err(error) = self.reconcile_workload(subject, &references, &options).await {
                        self.record_failure(subject, &error).await;
                    }
                }
                Err(error) => {
                    let note = format!(
                        "annotation {}: its configuration is not watched: {error}",
                        annotation::RESTART_ON_CHANGE
                    );
                    self.report(subject, "InvalidRestartOnChange", true, note).await;
                }
            }
        }
        let there: HashSet<_> = subjects.into_iter().map(|subject| subject.uid).collect();
        self.watched.retain(|key, _| named.contains(key));
        self.open.retain(|uid, _| there.contains(uid));
        self.reported.retain(|(uid, _)| there.contains(uid));
    }

    async fn reconcile_workload(
        &mut self,
        subject: &Subject,
        references: &[Reference],
        options: &Options,
    ) -> Result<(), Error> {
        let mut contents = Vec::new();
        for reference in references {
            contents.push(self.content(subject, reference).await);
        }
        let mut change = self.open.remove(&subject.uid);
        let step =
            decide(&subject.uid, references, &contents, subject.handled.as_ref(), &mut change, clock::now());
        let done = Box::pin(self.take(&step, subject, references, change.as_mut(), options)).await;
        if let Some(change) = change.filter(|_| step != Step::Restart || !matches!(done, Ok(Taken::Done))) {
            self.open.insert(subject.uid.clone(), change);
        }
        done.map(drop)
    }

    async fn take(
        &mut self,
        step: &Step,
        subject: &Subject,
        references: &[Reference],
        change: Option<&mut Change>,
        options: &Options,
    ) -> Result<Taken, Error> {
        match (step, change) {
            (Step::Record(hashes), _) => self.server.record_handled(subject, hashes).await?,
            (Step::Refresh, Some(change)) => {
                let template = self.server.workload_template(subject).await?;
                let (names, labels) =
                    (containers(&template.pod, references, &change.changed), template.labels);
                if self.superseded(subject, change, &names, options).await?.is_none() {
                    return Ok(Taken::Waits);
                }
                if !labels.is_empty() {
                    let pods = self.server.pods_with(&subject.namespace, &labels).await?;
                    let touch = |pod: String| {
                        let (server, namespace, change_id) = (&self.server, &subject.namespace, &change.id);
                        async move { server.touch_pod(namespace, &pod, change_id).await }
                    };
                    let touched: Vec<_> =
                        stream::iter(pods.into_iter().map(touch)).buffer_unordered(AT_ONCE).collect().await;
                    for error in touched.into_iter().filter_map(Result::err) {
                        self.without_refresh(subject, error).await?;
                    }
                }
                change.refreshed = Some(clock::now());
            }
            (Step::Restart, Some(change)) => return self.restart(subject, references, change, options).await,
            _ => {}
        }
        Ok(Taken::Done)
    }

    /// A pod that may not be changed does not hold up the others: its kubelet refreshes the volume in its own time.
    async fn without_refresh(&mut self, subject: &Subject, error: Error) -> Result<(), Error> {
        if !matches!(error.class(), Class::Denied | Class::Final) {
            return Err(error);
        }
        let note = format!("a volume may be refreshed only after the restart: {}", chain(&error));
        self.report(subject, "RestartOnChangeFailed", true, note).await;
        Ok(())
    }

    /// Creates the rollout for `change`, unless another one of the workload has to end first.
    async fn restart(
        &mut self,
        subject: &Subject,
        references: &[Reference],
        change: &mut Change,
        options: &Options,
    ) -> Result<Taken, Error> {
        let pod = self.server.workload_template(subject).await?.pod;
        let mut names = containers(&pod, references, &change.changed);
        let what = change.changed.join(", ");
        let template = PodTemplate(json!({ "spec": pod }));
        let starts_first = options.order == Order::StartFirst;
        let problem = start_first::problem(&template, names.iter().map(String::as_str));
        if names.is_empty() {
            let note = format!(
                "{what} changed, but no container of the pod template uses it: name the container in the annotation, \
                 {what}=CONTAINER"
            );
            self.report_again(subject, "NothingToRestart", note).await;
        } else if let Some(problem) = problem.filter(|_| starts_first) {
            let note = format!(
                "{what} changed, and nothing is restarted: the order StartFirst is not possible: {problem}. Remove the \
                 annotation {}, or name one container, {what}=CONTAINER; then restart {} with `inplace restart`",
                annotation::RESTART_ON_CHANGE_ORDER,
                names.join(", ")
            );
            self.report_again(subject, "CannotStartFirst", note).await;
        } else {
            let grace = start_first::grace_seconds(&template);
            let Some(others) = self.superseded(subject, change, &names, options).await? else {
                return Ok(Taken::Waits);
            };
            // The new rollout supersedes them, so it restarts their containers too. Only one can be started first.
            if !starts_first {
                names = with_those_of(subject, &others, &pod, &names);
            }
            let missing = start_first::missing_seconds(options.order, names.len(), grace);
            let rollout = rollout(subject, change, &names, options, missing);
            self.server.create_rollout(&rollout).await?;
            let name = kube::ResourceExt::name_any(&rollout);
            tracing::info!(%subject, rollout = name, what, "the configuration has changed: created a rollout");
            let note = format!("{what} changed: InPlaceRollout {name} restarts {}", names.join(", "));
            self.report(subject, "ConfigurationChanged", false, note).await;
        }
        self.server.record_handled(subject, &change.handled).await?;
        Ok(Taken::Done)
    }

    /// The rollouts of the workload that one for the containers `names` supersedes. `None` if another one has to end first: the
    /// change is observed again until then, because it may be taken back, or others may be added.
    async fn superseded(
        &mut self,
        subject: &Subject,
        change: &mut Change,
        names: &[String],
        options: &Options,
    ) -> Result<Option<Vec<InPlaceRollout>>, Error> {
        let others = self.server.others_in_progress(&rollout(subject, change, names, options, 0)).await?;
        let Some(other) = others.iter().find(|other| ends_first(subject, other, names, options)) else {
            return Ok(Some(others));
        };
        let (what, other) = (change.changed.join(", "), kube::ResourceExt::name_any(other));
        let note = format!(
            "{what} changed: {} is restarted once InPlaceRollout {other} has ended, or is deleted",
            names.join(", ")
        );
        self.report(subject, "ConfigurationChangeWaits", true, note).await;
        (change.refreshed, change.waits_until) = (None, clock::now().checked_add(LOOK_AGAIN).ok());
        Ok(None)
    }

    /// The cached content of an object that the workload names.
    async fn content(&mut self, subject: &Subject, reference: &Reference) -> Content {
        let key = object_key(subject, reference);
        if !self.watched.contains_key(&key) {
            let count = self.counts.entry(subject.namespace.clone()).or_default();
            if *count >= WATCHED_OF_NAMESPACE {
                let note = format!(
                    "not all objects that annotation {} names are watched: those of one namespace are {WATCHED_OF_NAMESPACE} at \
                     most",
                    annotation::RESTART_ON_CHANGE
                );
                self.report(subject, "TooManyWatchedObjects", true, note).await;
                return Content::Unreadable;
            }
            *count += 1;
        }
        let server = &self.server;
        let object = self.watched.entry(key.clone()).or_insert_with(|| {
            let watched = Watched::new(server, reference.source, &subject.namespace, &reference.name);
            WatchedObject { watched, asked: Instant::now(), refused: false, listed: 0 }
        });
        let content = object.watched.content();
        if content != Content::Unknown {
            (object.refused, object.listed) = (false, 0);
            return content;
        }
        if object.asked.elapsed() >= READ_TIMEOUT {
            object.asked = Instant::now();
            let error = server.unreadable(reference.source, &subject.namespace, &reference.name).await;
            let is_unavailable = error.as_ref().is_some_and(|error| error.class().is_unavailable());
            if !is_unavailable {
                object.listed = if error.is_some() { 0 } else { object.listed + 1 };
                object.refused = error.is_some() || object.listed >= ONLY_LISTED;
            }
            if object.listed >= ONLY_LISTED {
                let note = format!(
                    "{reference} is not watched: the controller may list it, and needs the verb watch as well"
                );
                self.report(subject, "ConfigurationUnreadable", true, note).await;
            } else if let Some(error) = error.filter(|_| !is_unavailable) {
                let grant = match reference.source {
                    Source::ConfigMap => "",
                    Source::Secret => " (apply daemonset/change-secrets to permit it for Secrets)",
                };
                let note = format!(
                    "{reference} is not watched: the controller is not permitted to read it{grant}: {error}"
                );
                self.report(subject, "ConfigurationUnreadable", true, note).await;
            }
        }
        let is_refused = self.watched.get(&key).is_some_and(|object| object.refused);
        if is_refused { Content::Unreadable } else { Content::Unknown }
    }

    async fn record_failure(&mut self, subject: &Subject, error: &Error) {
        let why = chain(error);
        tracing::debug!(%subject, error = why, "the restart on change failed: retrying");
        // If the API server is away, its watches report that. If the workload is gone, there is no object to
        // report on.
        if !error.class().is_unavailable() && !matches!(error.class(), Class::Gone | Class::Refused) {
            self.report(subject, "RestartOnChangeFailed", true, format!("retrying: {why}")).await;
        }
    }

    /// Reports what happens once for each change, also if an earlier change had the same message.
    async fn report_again(&mut self, subject: &Subject, reason: &'static str, message: String) {
        self.reported.remove(&(subject.uid.clone(), message.clone()));
        self.report(subject, reason, true, message).await;
    }

    async fn report(&mut self, subject: &Subject, reason: &'static str, warning: bool, message: String) {
        let key = (subject.uid.clone(), message.clone());
        if warning && self.reported.contains(&key) {
            return;
        }
        let event = Event { reason, message, warning };
        if self.events.report(subject.reference(), &event).await && warning {
            self.reported.insert(key);
        }
    }
}

/// The result of a step.
enum Taken {
    Done,
    /// The change is restarted later.
    Waits,
}

/// True if `other` has to end before the containers `names` are restarted: a user has created it, or a container can only
/// be started first alone. One that only restarts, and has done so in all pods that an agent reaches, may never end.
fn ends_first(subject: &Subject, other: &InPlaceRollout, names: &[String], options: &Options) -> bool {
    let only_restarts = other.spec.containers.iter().all(|container| container.image.is_none());
    let is_left = |status: &InPlaceRolloutStatus| {
        status.phase == RolloutPhase::Running && status.busy == 0 && status.reason == UNREACHABLE
    };
    if only_restarts && other.status.as_ref().is_some_and(is_left) {
        return false;
    }
    let is_same = other.spec.containers.iter().all(|container| names.contains(&container.name));
    !is_restart_of(subject, other) || options.order == Order::StartFirst && !is_same
}

/// True for a rollout that was created for an earlier change of the same workload.
fn is_restart_of(subject: &Subject, rollout: &InPlaceRollout) -> bool {
    let owners = rollout.metadata.owner_references.as_deref().unwrap_or_default();
    let name = rollout.metadata.name.as_deref().unwrap_or_default();
    let id = name.strip_prefix(stem(subject)).and_then(|rest| rest.strip_prefix('-'));
    let is_id = |id: &str| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    owners.iter().any(|owner| owner.uid == subject.uid) && id.is_some_and(is_id)
}

/// The containers `names`, and those that the `rollouts` of earlier changes restart, in the order of the template.
fn with_those_of(
    subject: &Subject,
    rollouts: &[InPlaceRollout],
    pod: &PodSpec,
    names: &[String],
) -> Vec<String> {
    let own = rollouts.iter().filter(|rollout| is_restart_of(subject, rollout));
    let of_others = own.flat_map(|rollout| &rollout.spec.containers);
    let others: HashSet<_> = of_others.map(|container| container.name.as_str()).collect();
    let all = pod.containers.iter().chain(pod.init_containers.iter().flatten()).map(|one| &one.name);
    all.filter(|name| names.contains(name) || others.contains(name.as_str())).cloned().collect()
}

fn object_key(subject: &Subject, reference: &Reference) -> ObjectKey {
    (reference.source, subject.namespace.clone(), reference.name.clone())
}

/// The beginning of the names of the rollouts for a workload.
fn stem(subject: &Subject) -> &str {
    subject.name.get(..STEM).unwrap_or(&subject.name).trim_end_matches(['-', '.'])
}

/// The rollout for `change`. Its name is deterministic, so that a second leader creates no duplicate. The
/// workload owns it, so it is deleted with the workload.
/// `missing`: seconds by which the default deadline of a request is too short for these containers.
fn rollout(
    subject: &Subject,
    change: &Change,
    names: &[String],
    options: &Options,
    missing: u32,
) -> InPlaceRollout {
    let stem = stem(subject);
    let containers: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let reason = format!("{} changed", change.changed.join(", "));
    let deadline = DEADLINE_SECONDS.saturating_add(missing).min(MAX_DEADLINE_SECONDS);
    let made = json!({
        "apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {
            "name": format!("{stem}-{}", change.id), "namespace": subject.namespace,
            "ownerReferences": [{ "apiVersion": subject.api_version(), "kind": subject.kind,
                "name": subject.name, "uid": subject.uid }],
        },
        "spec": {
            "target": { "workloadRef": { "apiVersion": subject.api_version(), "kind": subject.kind,
                "name": subject.name } },
            "containers": containers, "maxUnavailable": options.max_unavailable,
            "ttlSecondsAfterFinished": ROLLOUT_TTL_SECONDS,
            "pod": { "reason": reason, "order": options.order, "deadlineSeconds": deadline },
        },
    });
    serde_json::from_value(made).unwrap_or_else(|_| unreachable!("all of its fields are in the type"))
}
