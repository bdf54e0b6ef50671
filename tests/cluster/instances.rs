//! Records every instance of every container on a node.
//! The runtime is polled for the containers. The start and end times are the runtime's own, so that two instances at once are
//! detected also between two polls. A poll must only see each instance before it is removed: no attempt may be missing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use inplace::{
    api::annotation::{CONTAINER_NAME, FENCE_NAME, POD_UID},
    cri::{
        client::Client,
        endpoint::Endpoint,
        proto::v1::{Container, ContainerState},
    },
};
use tokio::runtime::Builder;

use crate::cluster::Node;

const PAUSE: Duration = Duration::from_millis(100);

/// A thread that watches a node's runtime.
pub(crate) struct Instances {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<Record>,
}

/// The observations.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// By the pod's uid and the container's name; then by attempt.
    instances: BTreeMap<(String, String), BTreeMap<u32, Instance>>,
    /// Polls in which two containers of one name ran.
    pub(crate) together: Vec<String>,
    /// Containers of one name and attempt; the runtime must never have two.
    pub(crate) twins: Vec<String>,
    pub(crate) observations: u32,
}

/// One container; times by the runtime's clock in nanoseconds, 0 means not yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Instance {
    pub(crate) id: String,
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
}

impl Instances {
    /// Starts to watch.
    pub(crate) fn watch(node: &Node) -> Self {
        let ending = Arc::new(AtomicBool::new(false));
        let (stop, endpoint) = (Arc::clone(&ending), Endpoint::parse(&node.endpoint).unwrap());
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let (client, mut record) = (Client::new(&endpoint, None), Record::default());
                loop {
                    // One more poll after the end, to record everything until then.
                    let last = stop.load(Ordering::SeqCst);
                    record.observe(&client).await;
                    if last {
                        return record;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            })
        });
        Self { ending, thread }
    }

    /// Stops, and returns the record.
    pub(crate) fn end(self) -> Record {
        self.ending.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

impl Record {
    async fn observe(&mut self, client: &Client) {
        // A runtime that is unavailable is polled again.
        let Ok(all) = client.containers(None).await else { return };
        self.observations += 1;
        let mut running: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for container in &all {
            let Some(key) = key(container) else { continue };
            let attempt = container.metadata.as_ref().unwrap().attempt;
            let state = container.state();
            if state == ContainerState::ContainerRunning {
                running.entry(key.clone()).or_default().push(container.id.clone());
            }
            let instance = self.instances.entry(key.clone()).or_default().entry(attempt).or_default();
            if instance.id.is_empty() {
                instance.id.clone_from(&container.id);
            } else if instance.id != container.id {
                self.twins.push(format!("{key:?} {attempt}: {} and {}", instance.id, container.id));
            }
            let ran = state != ContainerState::ContainerCreated;
            let ended = state == ContainerState::ContainerExited;
            if ((ran && instance.started_at == 0) || (ended && instance.finished_at == 0))
                && let Ok(Some(answer)) = client.container(&container.id, false).await
            {
                let status = answer.status.unwrap();
                (instance.started_at, instance.finished_at) = (status.started_at, status.finished_at);
            }
        }
        let together = running.into_iter().filter(|(_, ids)| ids.len() > 1);
        self.together.extend(together.map(|(key, ids)| format!("{key:?}: {ids:?}")));
    }

    /// The instances of one container. Asserts that they follow one another: never two at a time, by the
    /// runtime's clock or in any poll, and no attempt number is missing or used twice.
    pub(crate) fn one_at_a_time(&self, uid: &str, name: &str) -> Vec<(u32, Instance)> {
        let key = (uid.to_owned(), name.to_owned());
        let is_it = |line: &&String| line.contains(&format!("{key:?}"));
        let wrong: Vec<_> = self.together.iter().chain(&self.twins).filter(is_it).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let instances: Vec<_> = self.instances[&key].clone().into_iter().collect();
        for pair in instances.windows(2) {
            let [(before, old), (attempt, new)] = pair else { unreachable!() };
            assert_eq!(before + 1, *attempt, "an attempt is left out: {pair:?}");
            assert!(old.finished_at > 0, "its end was not seen: {pair:?}");
            assert!(old.finished_at <= new.started_at, "two at once: {pair:?}");
        }
        instances
    }
}

/// Pod uid and name of a container; `None` for a fence.
fn key(container: &Container) -> Option<(String, String)> {
    let name = container.labels.get(CONTAINER_NAME).filter(|name| *name != FENCE_NAME)?;
    Some((container.labels.get(POD_UID)?.clone(), name.clone()))
}
