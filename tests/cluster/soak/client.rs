//! A client of a pod that sends request after request, each over a connection of its own, and must always be served.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use super::watch::{Pods, clock};
use crate::{pod::is_ready, start_first::ask};

/// The time between two requests.
const PAUSE: Duration = Duration::from_millis(15);
/// More failures than this are not kept until the next check.
const MOST: usize = 10_000;

/// Ends when dropped.
pub(super) struct Client {
    pub(super) pod: String,
    pub(super) node: usize,
    pub(super) shared: Arc<Answers>,
    thread: Option<JoinHandle<()>>,
}

/// A request that got no answer.
pub(super) struct FailedRequest {
    pub(super) began: i64,
    pub(super) ended: i64,
    pub(super) error: String,
}

#[derive(Default)]
pub(super) struct Answers {
    pub(super) served: AtomicU64,
    pub(super) refused: AtomicU64,
    /// The requests that failed since the last check.
    pub(super) failed: Mutex<Vec<FailedRequest>>,
    ends: AtomicBool,
}

impl Client {
    /// Begins when the pod is Ready; requests go to its present address.
    pub(super) fn of(pod: &str, node: usize, pods: Arc<Mutex<Pods>>) -> Self {
        let shared = Arc::<Answers>::default();
        let (answers, name) = (Arc::clone(&shared), pod.to_owned());
        let thread = thread::spawn(move || {
            while !answers.ends.load(Ordering::Relaxed) {
                if let Some(address) = address(&pods, &name) {
                    answers.request(address);
                }
                thread::sleep(PAUSE);
            }
        });
        Self { pod: pod.to_owned(), node, shared, thread: Some(thread) }
    }
}

impl Answers {
    fn request(&self, address: SocketAddr) {
        let began = clock();
        match ask(address) {
            Ok(_) => {
                self.served.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                let mut failed = self.failed.lock().unwrap();
                if failed.len() < MOST {
                    failed.push(FailedRequest { began, ended: clock(), error: error.to_string() });
                }
            }
        }
    }
}

/// The address of the pod once it was Ready for the first time. It does not depend on the kubelet's later reports.
fn address(pods: &Mutex<Pods>, name: &str) -> Option<SocketAddr> {
    let pods = pods.lock().unwrap();
    let pod = pods.by_name.get(name).filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
    let status = pod.status.as_ref()?;
    let has_started =
        is_ready(pod) || status.container_statuses.iter().flatten().any(|one| one.restart_count > 0);
    let ip = status.pod_ip.as_ref().filter(|_| has_started)?;
    format!("{ip}:8080").parse().ok()
}

impl Drop for Client {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
