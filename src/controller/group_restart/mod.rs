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
/// How long rollouts are remembered: the longest window of a policy.
const KEPT: Duration = Duration::from_secs(86_400);
/// The groups of which rollouts of an earlier leader are remembered. Users can create any number of such rollouts.
const MAX_GROUPS: usize = 1024;
/// The same, rollouts of one group.
const MAX_OF_GROUP: usize = 64;

/// A rollout that this process has created, or an earlier leader.
#[derive(Debug)]
struct Created {
    /// As it was last known.
    last: Earlier,
    since: Instant,
    was_seen: bool,
}

impl Created {
    /// Takes over what the cache has. A rollout that is not there any more was deleted, which ends it.
    fn update(&mut self, cached: Option<&Earlier>, now: Timestamp) {
        if let Some(cached) = cached {
            self.last.clone_from(cached);
            self.was_seen = true;
        } else if self.was_seen || self.since.elapsed() >= UNSEEN {
            let at = if self.was_seen { now } else { self.last.created };
            self.last.ended = self.last.ended.or(Some(at));
        }
    }
}

struct Controller {
    server: Server,
    groups: Groups,
    events: Events,
    /// The rollouts that this process has created, or an earlier leader.
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
        let open: Vec<_> = earlier.iter().filter(|one| one.ended.is_none()).collect();
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
        let last =
            Earlier { name, uid: String::new(), created: now, prepared: None, started: None, ended: None };
        let created = Created { last, since: Instant::now(), was_seen: false };
        self.created.entry(group.clone()).or_default().push(created);
        self.report(group, pod, &restart.uid, "GroupRestarted", note, false).await;
        Ok(())
    }

    /// The group restarts that were begun for a group, also those that a user has deleted since: a deletion cancels one, so
    /// that none is created for the same failures.
    fn earlier(&mut self, group: &GroupKey) -> Vec<Earlier> {
        let mut earlier = self.groups.rollouts(group);
        adopt(&mut self.created, group, &earlier);
        let Some(created) = self.created.get_mut(group) else { return earlier };
        created.retain(|one| one.since.elapsed() < KEPT);
        let now = clock::now();
        for one in created.iter_mut() {
            let cached = earlier.iter().find(|known| known.name == one.last.name);
            one.update(cached, now);
            if cached.is_none() {
                earlier.push(one.last.clone());
            }
        }
        if created.is_empty() {
            self.created.remove(group);
        }
        earlier
    }

    /// True until the cache has had the rollout.
    fn is_unseen(&self, group: &GroupKey, name: &str) -> bool {
        self.created.get(group).into_iter().flatten().any(|one| one.last.name == name && !one.was_seen)
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

/// Remembers the rollouts that an earlier leader has created, as far as there is room.
fn adopt(created: &mut HashMap<GroupKey, Vec<Created>>, group: &GroupKey, cached: &[Earlier]) {
    if !created.contains_key(group) && created.len() >= MAX_GROUPS {
        created.retain(|_, all| all.iter().any(|one| one.since.elapsed() < KEPT));
        if created.len() >= MAX_GROUPS {
            return;
        }
    }
    for one in cached {
        let known = || created.get(group).into_iter().flatten();
        if known().count() >= MAX_OF_GROUP {
            return;
        }
        if !known().any(|known| known.last.name == one.name) {
            let adopted = Created { last: one.clone(), since: Instant::now(), was_seen: true };
            created.entry(group.clone()).or_default().push(adopted);
        }
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
            "containers": containers, "strategy": "Together", "together": restart.terms,
            "ttlSecondsAfterFinished": ROLLOUT_TTL_SECONDS,
            "pod": { "reason": reason, "allowStaleEnv": restart.allow_stale_env },
        },
    });
    serde_json::from_value(made).unwrap_or_else(|_| unreachable!("all of its fields are in the type"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::group_failure::GroupFailure;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_790_000_000 + second).unwrap()
    }

    fn failed(name: &str, second: i64) -> GroupPod {
        let container_id = format!("c-{second}");
        let failure =
            GroupFailure { container: "app".to_owned(), container_id, exit_code: 1, finished_at: at(second) };
        GroupPod {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            created: None,
            failure: Some(failure),
            policy: String::new(),
            restarted_by: None,
        }
    }

    /// Several workers have failed, and the user deletes the group restart that was begun for the first one.
    #[test]
    fn the_deletion_of_a_group_restart_cancels_it_for_all_failures_until_then() {
        let pods = [failed("a", 10), failed("b", 12)];
        let name = decide("train", &pods[..1], &[], at(11)).restart.unwrap().name;
        let last =
            Earlier { name, uid: String::new(), created: at(11), prepared: None, started: None, ended: None };
        let mut created = Created { last, since: Instant::now(), was_seen: false };
        created.update(None, at(12));
        assert_eq!(created.last.ended, None, "the cache may not have it yet");
        let cached = Earlier { uid: "r-1".to_owned(), ..created.last.clone() };
        created.update(Some(&cached), at(13));
        assert_eq!(created.last, cached);
        for second in [14, 50] {
            created.update(None, at(second));
            assert_eq!(created.last.ended, Some(at(14)));
        }
        let earlier = [created.last.clone()];
        assert_eq!(decide("train", &pods, &earlier, at(60)), Decision::default());
        let next = decide("train", &[failed("b", 15)], &earlier, at(60));
        assert!(next.restart.is_some(), "it has failed after the deletion");
        // The deletion of one that has ended is no end.
        let cached = Earlier { ended: Some(at(20)), ..cached };
        created.update(Some(&cached), at(60));
        created.update(None, at(70));
        assert_eq!(created.last.ended, Some(at(20)));
    }

    /// The next leader has them in its cache.
    #[test]
    fn rollouts_of_an_earlier_leader_are_remembered_as_far_as_there_is_room() {
        let group = |name: &str| GroupKey { namespace: "shop".to_owned(), name: name.to_owned() };
        let rollouts = |count: usize| {
            let one = |number: usize| Earlier {
                name: format!("t-failed-{number}"),
                uid: String::new(),
                created: at(10),
                prepared: None,
                started: None,
                ended: None,
            };
            (0..count).map(one).collect::<Vec<_>>()
        };
        let mut created = HashMap::new();
        adopt(&mut created, &group("none"), &[]);
        assert!(created.is_empty());
        for _ in 0..2 {
            adopt(&mut created, &group("train"), &rollouts(2));
        }
        let known = created.get_mut(&group("train")).unwrap();
        assert_eq!(known.len(), 2);
        known[0].update(None, at(20));
        assert_eq!(known[0].last.ended, Some(at(20)), "a deletion cancels it");
        adopt(&mut created, &group("train"), &rollouts(2 * MAX_OF_GROUP));
        assert_eq!(created[&group("train")].len(), MAX_OF_GROUP);
        for number in 0..2 * MAX_GROUPS {
            adopt(&mut created, &group(&number.to_string()), &rollouts(1));
        }
        assert_eq!(created.len(), MAX_GROUPS);
    }
}
