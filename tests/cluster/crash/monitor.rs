//! Polls all containers of a node all the time, and records whether two instances of one container ever run at
//! once, and where a kubelet counts the instances of a container from 0 again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inplace::{
    api::annotation::{HOLDER, OPERATION},
    cri::{
        client::Client,
        endpoint::Endpoint,
        proto::v1::{Container, ContainerState},
    },
};
use tokio::{task::JoinHandle, time::sleep};

use crate::cluster::runtime;

/// Time between two polls.
const PAUSE: Duration = Duration::from_millis(30);

/// Polls until dropped.
pub(super) struct ContainerMonitor {
    seen: Arc<Seen>,
    polling: JoinHandle<()>,
}

/// What a monitor has recorded.
#[derive(Debug, Default)]
pub(super) struct Seen {
    observations: AtomicUsize,
    doubles: Mutex<Vec<String>>,
    first_attempts: Mutex<FirstAttempts>,
}

/// By sandbox and name of a container: the attempts 0 that a kubelet created, as seconds and ids.
type FirstAttempts = BTreeMap<(String, String), BTreeSet<(u64, String)>>;

impl Seen {
    /// When a kubelet created an instance of the container with the attempt 0 again, in seconds.
    pub(super) fn counted_anew(&self, sandbox: &str, name: &str) -> Vec<u64> {
        let key = (sandbox.to_owned(), name.to_owned());
        let all = self.first_attempts.lock().unwrap();
        all.get(&key).into_iter().flatten().skip(1).map(|(at, _)| *at).collect()
    }

    fn record_first_attempt(&self, container: &Container) {
        let Some(metadata) = container.metadata.as_ref().filter(|metadata| metadata.attempt == 0) else {
            return;
        };
        let key = (container.pod_sandbox_id.clone(), metadata.name.clone());
        let at = u64::try_from(container.created_at).unwrap() / 1_000_000_000;
        self.first_attempts.lock().unwrap().entry(key).or_default().insert((at, container.id.clone()));
    }
}

impl ContainerMonitor {
    pub(super) fn of(endpoint: &str) -> Self {
        let endpoint = Endpoint::parse(endpoint).unwrap();
        let seen = Arc::<Seen>::default();
        let polling = runtime().spawn(watch(endpoint, Arc::clone(&seen)));
        Self { seen, polling }
    }

    /// What is recorded, now and later.
    pub(super) fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen)
    }

    pub(super) fn assert_clean(&self) {
        assert!(self.seen.observations.load(Ordering::Relaxed) > 100, "the monitor observed too rarely");
        let doubles = self.seen.doubles.lock().unwrap();
        assert!(doubles.is_empty(), "two at once: {doubles:#?}");
    }
}

impl Drop for ContainerMonitor {
    fn drop(&mut self) {
        self.polling.abort();
    }
}

async fn watch(endpoint: Endpoint, seen: Arc<Seen>) {
    let client = Client::new(&endpoint, None);
    loop {
        sleep(PAUSE).await;
        // A runtime that is unavailable returns nothing.
        let Ok(containers) = client.containers(None).await else { continue };
        seen.observations.fetch_add(1, Ordering::Relaxed);
        let labels = |container: &&Container| {
            [HOLDER, OPERATION].iter().any(|label| container.labels.contains_key(*label))
        };
        containers
            .iter()
            .filter(|container| !labels(container))
            .for_each(|container| seen.record_first_attempt(container));
        let mut running: Vec<_> = containers
            .iter()
            .filter(|container| container.state() == ContainerState::ContainerRunning)
            .filter(|container| !container.labels.contains_key(HOLDER))
            .map(|container| {
                let name = container.metadata.as_ref().map_or("", |metadata| metadata.name.as_str());
                (container.pod_sandbox_id.as_str(), name, container.id.as_str())
            })
            .collect();
        running.sort_unstable();
        for pair in running.windows(2) {
            if (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1) {
                let double =
                    format!("{} in sandbox {}: {} and {}", pair[0].1, pair[0].0, pair[0].2, pair[1].2);
                let mut doubles = seen.doubles.lock().unwrap();
                if !doubles.contains(&double) {
                    doubles.push(double);
                }
            }
        }
    }
}
