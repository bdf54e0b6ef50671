//! Polls all containers of a node all the time, and records whether two instances of one container ever run at
//! once.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use inplace::{
    api::annotation::HOLDER,
    cri::{client::Client, endpoint::Endpoint, proto::v1::ContainerState},
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

#[derive(Debug, Default)]
struct Seen {
    observations: AtomicUsize,
    doubles: Mutex<Vec<String>>,
}

impl ContainerMonitor {
    pub(super) fn of(endpoint: &str) -> Self {
        let endpoint = Endpoint::parse(endpoint).unwrap();
        let seen = Arc::<Seen>::default();
        let polling = runtime().spawn(watch(endpoint, Arc::clone(&seen)));
        Self { seen, polling }
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
