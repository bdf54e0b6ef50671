//! Checks that a `PodDisruptionBudget` is respected at every moment, by a watch on the pods.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    runtime::watcher::{self, watcher},
};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;

use crate::{
    cluster::{Cluster, block_on, runtime},
    pod::is_ready,
    support::wait::eventually,
};

/// The watch. It ends when dropped.
pub(crate) struct Budget {
    /// The number of Ready pods after each change, since all were Ready.
    seen: Arc<Mutex<Vec<usize>>>,
    task: JoinHandle<()>,
}

/// `policy/v1`, or its predecessor on old API servers.
pub(crate) fn interface(cluster: &Cluster) -> String {
    let groups = block_on(cluster.client.list_api_groups()).unwrap().groups;
    let policy = groups.into_iter().find(|group| group.name == "policy").unwrap();
    policy.preferred_version.unwrap().group_version
}

impl Budget {
    /// Watches the pods with the label `app: NAME`, from the moment when `count` pods are Ready.
    pub(crate) fn watch(cluster: &Cluster, name: &str, count: usize) -> Self {
        let api: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let task = runtime().spawn(follow(api, format!("app={name}"), count, Arc::clone(&seen)));
        let budget = Self { seen, task };
        eventually("the watch to have begun", || (!budget.seen.lock().unwrap().is_empty()).then_some(()));
        budget
    }

    /// Asserts that the number of Ready pods was never below `least`, and reached it.
    pub(crate) fn was_never_broken(&self, least: usize) {
        assert!(!self.task.is_finished(), "the watch has broken off");
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.iter().min(), Some(&least), "{seen:?}");
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(api: Api<Pod>, labels: String, count: usize, seen: Arc<Mutex<Vec<usize>>>) {
    let events = watcher(api, watcher::Config::default().labels(&labels));
    tokio::pin!(events);
    let mut ready = BTreeMap::new();
    while let Some(event) = events.next().await {
        // A broken watch may have missed a change: the test then fails.
        match event.unwrap() {
            watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => {
                ready.insert(pod.metadata.name.clone(), is_ready(&pod));
            }
            watcher::Event::Delete(pod) => {
                ready.remove(&pod.metadata.name);
            }
            watcher::Event::Init | watcher::Event::InitDone => {}
        }
        let now = ready.values().filter(|ready| **ready).count();
        let mut seen = seen.lock().unwrap();
        if now == count || !seen.is_empty() {
            seen.push(now);
        }
    }
}
