//! Restarts the group of a pod when one of its containers has failed.
//!
//! Must not decide which failure restarts a group (`group_restart` does), and touches no container: it creates
//! `InPlaceRollout`s with the strategy `Together`.

mod cache;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::api::annotation;
use crate::api::in_place_rollout::InPlaceRollout;
use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::controller::Common;
use crate::controller::events::Events;
use crate::controller::group_restart::cache::{GroupKey, Groups};
use crate::group_restart::{Earlier, Restart, Step, decide};
use crate::podtask::write::Event;
use crate::process::clock;
use crate::process::log::chain;

/// The pause before a group is looked at again after an error.
const RETRY: Duration = Duration::from_secs(1);
/// How long a rollout that was created counts before the cache has it.
const UNSEEN: Duration = Duration::from_secs(60);
/// A finished rollout is kept for one day, so that users can find out what happened.
const ROLLOUT_TTL_SECONDS: i32 = 86_400;

struct Controller {
    server: Server,
    groups: Groups,
    events: Events,
    /// The rollout that was created last for a group, until the cache has it.
    unseen: HashMap<GroupKey, (Earlier, Instant)>,
    /// Groups to look at again.
    again: BTreeSet<GroupKey>,
    /// The failures that were reported as restarting nothing, by the uid of the pod and the message.
    reported: HashSet<(String, String)>,
}

pub(super) async fn run(common: Common, stop: CancellationToken) {
    let Common { server, identity, .. } = common;
    let groups = Groups::watch(&server, &stop);
    let events = Events::new(server.clone(), identity);
    let (unseen, again, reported) = (HashMap::new(), BTreeSet::new(), HashSet::new());
    let mut controller = Controller { server, groups, events, unseen, again, reported };
    let working = async {
        loop {
            controller.reconcile().await;
            let retry = !controller.again.is_empty();
            tokio::select! {
                () = controller.groups.changed() => {}
                () = sleep(RETRY), if retry => {}
            }
        }
    };
    stop.run_until_cancelled(working).await;
}

impl Controller {
    async fn reconcile(&mut self) {
        let mut due = std::mem::take(&mut self.again);
        due.extend(self.groups.touched());
        if !self.groups.is_current() {
            self.again = due;
            return;
        }
        for group in due {
            if let Err(error) = self.reconcile_group(&group).await {
                tracing::warn!(
                    namespace = group.namespace,
                    group = group.name,
                    error = chain(&error),
                    "the group restart after a failure cannot begin: retrying"
                );
                self.again.insert(group);
            }
        }
    }

    async fn reconcile_group(&mut self, group: &GroupKey) -> Result<(), Error> {
        let (pods, mut earlier) = self.groups.of(group);
        self.unseen.retain(|_, (_, since)| since.elapsed() < UNSEEN);
        if let Some((created, _)) = self.unseen.get(group) {
            if earlier.iter().any(|one| one.name == created.name) {
                self.unseen.remove(group);
            } else {
                earlier.push(created.clone());
            }
        }
        match decide(&group.name, &pods, &earlier, clock::now()) {
            Step::Nothing => {}
            Step::Restart(restart) => {
                self.server.create_rollout(&rollout(group, &restart)).await?;
                let (pod, name) = (&restart.pod, restart.name.clone());
                let code = restart.failure.exit_code;
                let note = format!(
                    "container {} exited with code {code}: InPlaceRollout {name} restarts the group {}",
                    restart.failure.container, group.name
                );
                tracing::info!(
                    namespace = group.namespace,
                    pod,
                    note,
                    "a group is restarted after a failure"
                );
                let created = Earlier { name, created: clock::now(), has_ended: false };
                self.unseen.insert(group.clone(), (created, Instant::now()));
                self.report(group, pod, &restart.uid, "GroupRestarted", note, false).await;
            }
            Step::Leave { pod, uid, reason, message } => {
                let key = (uid.clone(), message.clone());
                if !self.reported.contains(&key)
                    && self.report(group, &pod, &uid, reason, message, true).await
                {
                    self.reported.insert(key);
                }
            }
        }
        let there: HashSet<_> = pods.iter().map(|pod| pod.uid.as_str()).collect();
        if there.is_empty() {
            self.unseen.remove(group);
        }
        Ok(())
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
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(group.namespace.clone()),
            name: Some(pod.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
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
            "containers": containers, "strategy": "Together", "together": { "barrier": restart.barrier },
            "ttlSecondsAfterFinished": ROLLOUT_TTL_SECONDS, "pod": { "reason": reason },
        },
    });
    serde_json::from_value(made).unwrap_or_else(|_| unreachable!("all of its fields are in the type"))
}
