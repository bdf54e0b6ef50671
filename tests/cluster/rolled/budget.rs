//! Whether a `PodDisruptionBudget` was kept, seen by a watch on the pods themselves from the first to the last moment.

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
    pod::{eventually, is_ready},
};

/// The watch. It ends with the value.
pub(super) struct Budget {
    /// How many pods were Ready, at each change since all were.
    seen: Arc<Mutex<Vec<usize>>>,
    task: JoinHandle<()>,
}

/// `policy/v1`, or what came before it.
pub(super) fn interface(cluster: &Cluster) -> String {
    let groups = block_on(cluster.client.list_api_groups()).unwrap().groups;
    let policy = groups.into_iter().find(|group| group.name == "policy").unwrap();
    policy.preferred_version.unwrap().group_version
}

impl Budget {
    /// Of the pods with the label `app: NAME`, from the moment on when as many as given are Ready.
    pub(super) fn watch(cluster: &Cluster, name: &str, count: usize) -> Self {
        let api: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let task = runtime().spawn(follow(api, format!("app={name}"), count, Arc::clone(&seen)));
        let budget = Self { seen, task };
        eventually("the watch to have begun", || (!budget.seen.lock().unwrap().is_empty()).then_some(()));
        budget
    }

    /// Never were fewer pods Ready than that, and sometimes no more.
    pub(super) fn was_never_broken(&self, least: usize) {
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
        // A watch that breaks off may have missed something: the test then fails.
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
