//! Restarts the group of a pod when one of its containers has failed.
//!
//! Must not decide which failure restarts a group (`group_restart` does), and touches no container: it creates
//! `InPlaceRollout`s with the strategy `Together`.

mod cache;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::api::pod_ref::PodRef;
use crate::cluster::error::{Class, Error};
use crate::cluster::event;
use crate::cluster::server::Server;
use crate::controller::Common;
use crate::controller::events::Events;
use crate::controller::group_restart::cache::{GroupKey, Groups};
use crate::controller::new_rollout::ROLLOUT_TTL_SECONDS;
use crate::group_restart::{Decision, Earlier, GroupPod, Left, Restart, decide};
use crate::podtask::write::Event;
use crate::process::clock;
use crate::process::log::chain;

/// The pause before a group is looked at again after an error.
const RETRY: Duration = Duration::from_secs(1);
/// How long a rollout that was created counts before the cache has it.
const UNSEEN: Duration = Duration::from_secs(60);
/// The same after an error that a repetition does not solve.
const RETRY_REFUSED: Duration = Duration::from_secs(60);
/// How long the rollouts that this process has created are remembered: the longest window of a policy.
const KEPT: Duration = Duration::from_secs(86_400);

/// A rollout that this process has created.
#[derive(Debug)]
struct Created {
    name: String,
    at: Timestamp,
    since: Instant,
    was_seen: bool,
}

struct Controller {
    server: Server,
    groups: Groups,
    events: Events,
    /// The rollouts that this process has created.
    created: HashMap<GroupKey, Vec<Created>>,
    /// Groups to look at again at the given time or earlier.
    again: BTreeMap<GroupKey, Instant>,
    /// The failures of each group that restart nothing.
    left: HashMap<GroupKey, Vec<Left>>,
}

pub(super) async fn run(common: Common, stop: CancellationToken) {
    let Common { server, identity, .. } = common;
    let groups = Groups::watch(&server, &stop);
    let events = Events::new(server.clone(), identity);
    let (created, again, left) = (HashMap::new(), BTreeMap::new(), HashMap::new());
    let mut controller = Controller { server, groups, events, created, again, left };
    let working = async {
        loop {
            controller.reconcile().await;
            let next = controller.again.values().min().copied();
            tokio::select! {
                () = controller.groups.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    };
    stop.run_until_cancelled(working).await;
}

impl Controller {
    async fn reconcile(&mut self) {
        let now = Instant::now();
        for group in self.groups.touched() {
            self.again.insert(group, now);
        }
        if !self.groups.is_current() {
            // The watches wake this loop when they are connected again.
            let later = now + RETRY;
            self.again.values_mut().for_each(|at| *at = later.max(*at));
            return;
        }
        let due = self.again.iter().filter(|(_, at)| **at <= now).map(|(group, _)| group.clone());
        for group in due.collect::<Vec<_>>() {
            self.again.remove(&group);
            if let Err(error) = self.reconcile_group(&group).await {
                tracing::warn!(
                    namespace = group.namespace,
                    group = group.name,
                    error = chain(&error),
                    "the group restart after a failure cannot begin: retrying"
                );
                let is_refused = matches!(error.class(), Class::Final | Class::Denied);
                self.again.insert(group, now + if is_refused { RETRY_REFUSED } else { RETRY });
            }
        }
    }

    async fn reconcile_group(&mut self, group: &GroupKey) -> Result<(), Error> {
        let earlier = self.earlier(group);
        let open: Vec<_> = earlier.iter().filter(|one| !one.has_ended).collect();
        if !open.is_empty() {
            if open.iter().any(|one| self.is_unseen(group, &one.name)) {
                self.again.insert(group.clone(), Instant::now() + RETRY);
            }
            return Ok(());
        }
        let mut pods = self.groups.pods(group);
        self.forget_left(group, &mut pods);
        let now = clock::now();
        let Decision { restart, again_at, left } = decide(&group.name, &pods, &earlier, now);
        for left in left {
            if !self.left.get(group).is_some_and(|all| all.contains(&left)) {
                let (pod, uid, message) = (&left.pod, &left.uid, left.message.clone());
                self.report(group, pod, uid, left.reason, message, true).await;
                self.left.entry(group.clone()).or_default().push(left);
            }
        }
        if let Some(at) = again_at {
            let pause = Duration::try_from(at.duration_since(now)).unwrap_or(RETRY);
            self.again.insert(group.clone(), Instant::now() + pause);
        }
        let Some(restart) = restart else { return Ok(()) };
        self.server.create_rollout(&rollout(group, &restart)).await?;
        let (pod, name) = (&restart.pod, restart.name.clone());
        let code = restart.failure.exit_code;
        let note = format!(
            "container {} exited with code {code}: InPlaceRollout {name} restarts the group {}",
            restart.failure.container, group.name
        );
        tracing::info!(namespace = group.namespace, pod, note, "a group is restarted after a failure");
        let created = Created { name, at: now, since: Instant::now(), was_seen: false };
        self.created.entry(group.clone()).or_default().push(created);
        self.report(group, pod, &restart.uid, "GroupRestarted", note, false).await;
        Ok(())
    }

    /// The group restarts that were begun for a group, also those that a user has deleted since: a deletion cancels one, so
    /// that it is not created again for the same failure.
    fn earlier(&mut self, group: &GroupKey) -> Vec<Earlier> {
        let mut earlier = self.groups.rollouts(group);
        let Some(created) = self.created.get_mut(group) else { return earlier };
        created.retain(|one| one.since.elapsed() < KEPT);
        for one in created.iter_mut() {
            if earlier.iter().any(|known| known.name == one.name) {
                one.was_seen = true;
            } else {
                let has_ended = one.was_seen || one.since.elapsed() >= UNSEEN;
                earlier.push(Earlier { name: one.name.clone(), created: one.at, has_ended });
            }
        }
        earlier
    }

    /// True until the cache has had the rollout.
    fn is_unseen(&self, group: &GroupKey, name: &str) -> bool {
        self.created.get(group).into_iter().flatten().any(|one| one.name == name && !one.was_seen)
    }

    /// Removes the failures that restart nothing from the pods, and forgets those that the pods do not have any more.
    fn forget_left(&mut self, group: &GroupKey, pods: &mut [GroupPod]) {
        let Some(left) = self.left.get_mut(group) else { return };
        left.retain(|left| {
            pods.iter().any(|pod| pod.uid == left.uid && pod.failure.as_ref() == Some(&left.failure))
        });
        for pod in pods {
            let is_left = |left: &Left| {
                left.for_good && left.uid == pod.uid && pod.failure.as_ref() == Some(&left.failure)
            };
            if left.iter().any(is_left) {
                pod.failure = None;
            }
        }
        if left.is_empty() {
            self.left.remove(group);
        }
    }

    async fn report(
        &self,
        group: &GroupKey,
        pod: &str,
        uid: &str,
        reason: &'static str,
        message: String,
        warning: bool,
    ) -> bool {
        let (namespace, name, uid) = (group.namespace.clone(), pod.to_owned(), uid.to_owned());
        let about = event::pod(&PodRef { namespace, name, uid });
        self.events.report(about, &Event { reason, message, warning }).await
    }
}

/// The rollout for a failure. Its name is the same for each leader, so that a second one creates no duplicate.
fn rollout(group: &GroupKey, restart: &Restart) -> InPlaceRollout {
    let labels = json!({ annotation::GROUP_RESTART: group.name });
    let containers: Vec<_> = restart.containers.iter().map(|name| json!({ "name": name })).collect();
    let (container, code) = (&restart.failure.container, restart.failure.exit_code);
    let reason = format!("container {container} of pod {} exited with code {code}", restart.pod);
    let made = json!({
        "apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": { "name": restart.name, "namespace": group.namespace, "labels": labels },
        "spec": {
            "target": { "selector": { "matchLabels": labels } },
            "containers": containers, "strategy": "Together",
            "together": { "barrier": restart.barrier, "barrierTimeoutSeconds": restart.barrier_seconds },
            "ttlSecondsAfterFinished": ROLLOUT_TTL_SECONDS,
            "pod": { "reason": reason, "allowStaleEnv": restart.allow_stale_env },
        },
    });
    serde_json::from_value(made).unwrap_or_else(|_| unreachable!("all of its fields are in the type"))
}
