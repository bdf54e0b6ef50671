//! An API server for pods, hooks and leases that can be told to misbehave: real HTTP on the loopback in front of a small store.
//!
//! For what a real one does not do on demand: answers that get lost, a watch that breaks off, a history that was
//! thrown away, somebody else who writes at the worst moment. What the real one does by itself is tested on the real
//! one (`tests/cluster`).
//!
//! ```text
//! let api = ApiServer::start().await;
//! api.put(pods::pod("shop", "web-0", "node-1"));
//! api.on("PATCH pod").fault(Fault::Answer(429, "slow down"));
//! api.before("PATCH pod", |store| store.remove("shop", "web-0"));
//! ... the code under test, connected by api.kubeconfig() ...
//! assert_eq!(api.calls(), ["LIST pods", "WATCH pods", "PATCH pod shop/web-0"]);
//! ```
//!
//! The server has a thread and a clock of its own, so it works beside every kind of test runtime, and with paused time
//! too. It ends when the [`ApiServer`] is dropped.
#![allow(dead_code, reason = "a toolbox: not every test needs every tool")]

mod door;
mod faults;
mod http;
mod patch;
pub(crate) mod pods;
mod store;
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub(crate) use faults::{Fault, On};
pub(crate) use store::Store;

use door::Shared;

/// How long a test waits for what must come. Only reached by a test that fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running fake.
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
    handle: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl ApiServer {
    /// An empty cluster, reachable when this returns.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::new());
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let thread = {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            std::thread::spawn(move || runtime.block_on(door::run(shared, stop)))
        };
        shared.up().await;
        Self { shared, handle, stop, thread: Some(thread), folder }
    }

    /// A file that says how to connect.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("kubeconfig");
        let address = self.shared.address();
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: fake\n\
             clusters: [{{name: fake, cluster: {{server: 'http://{address}'}}}}]\n\
             users: [{{name: fake, user: {{token: the-token}}}}]\n\
             contexts: [{{name: fake, context: {{cluster: fake, user: fake, namespace: shop}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Looks at the store or changes it, in one piece.
    pub(crate) fn store<R>(&self, work: impl FnOnce(&mut Store) -> R) -> R {
        self.shared.change(work)
    }

    /// Waits until the store is as described.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut(&Store) -> bool) {
        let coming = self.shared.until(|store| condition(store).then_some(()));
        self.patiently(what, coming).await;
    }

    /// By the clock of the fake: that of the test may stand still.
    pub(crate) async fn patiently<R>(&self, what: &str, coming: impl Future<Output = R>) -> R {
        let mut patience = self.handle.spawn(async { tokio::time::sleep(PATIENCE).await });
        tokio::select! {
            came = coming => {
                patience.abort();
                came
            }
            _ = &mut patience => panic!("never happened: {what}\ncalls: {:#?}", self.calls()),
        }
    }

    // ---- objects ----

    /// A pod as it is, new or changed; an object without a uid gets one.
    pub(crate) fn put(&self, pod: Value) -> Value {
        self.store(|store| store.put(pod))
    }

    /// The pod as it is now.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Value {
        self.store(|store| store.pod(namespace, name).unwrap_or_else(|| panic!("no pod {namespace}/{name}")))
    }

    /// Somebody changes a pod.
    pub(crate) fn edit(&self, namespace: &str, name: &str, deed: impl FnOnce(&mut Value)) {
        self.store(|store| store.edit(namespace, name, deed));
    }

    /// The pod is gone at once.
    pub(crate) fn remove(&self, namespace: &str, name: &str) {
        self.store(|store| store.remove(namespace, name));
    }

    /// An object of another kind (`hookruns`) as it is now.
    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.store(|store| store.get(plural, namespace, name))
    }

    /// Somebody changes an object of another kind.
    pub(crate) fn edit_of(&self, plural: &str, namespace: &str, name: &str, deed: impl FnOnce(&mut Value)) {
        self.store(|store| store.edit_of(plural, namespace, name, deed));
    }

    /// A secret with these fields, in clear.
    pub(crate) fn secret(&self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        self.store(|store| store.put_secret(namespace, name, data));
    }

    /// All events that were written.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.store(|store| store.events.clone())
    }

    // ---- what happened ----

    /// All calls, one line each, in their order of arrival: `LIST pods`, `WATCH pods`, `PATCH pod shop/web-0`,
    /// `PATCH pod/status shop/web-0`, `POST event shop/web-0.17f`.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.change(|store| store.calls.clone())
    }

    /// Those that change something.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.calls().into_iter().filter(|call| !call.starts_with(['L', 'W', 'G'])).collect()
    }

    /// How many calls begin so.
    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| line.starts_with(call)).count()
    }

    /// Begins the list of calls anew.
    pub(crate) fn forget(&self) {
        self.store(|store| store.calls.clear());
    }

    /// Waits until this many calls that begin so have arrived, whatever becomes of them.
    pub(crate) async fn arrived(&self, call: &str, times: usize) {
        let is = |store: &Store| store.calls.iter().filter(|line| line.starts_with(call)).count() >= times;
        self.until(&format!("{times} times {call}"), is).await;
    }

    // ---- what is to happen ----

    /// What is to happen at calls of this kind (`PATCH pod`) from now on; without more at the next one.
    pub(crate) fn on(&self, call: &'static str) -> On<'_> {
        On::new(&self.shared, call)
    }

    /// Somebody acts right before the next call of this kind takes effect.
    pub(crate) fn before(&self, call: &'static str, deed: impl FnMut(&mut Store) + Send + 'static) {
        self.on(call).first(deed);
    }

    /// The server ends, until [`Self::come_back`]. It keeps its objects.
    pub(crate) async fn go_away(&self) {
        self.shared.go_away();
        self.patiently("the server is away", self.shared.away()).await;
    }

    /// The server is there again when this returns, at the same place.
    pub(crate) async fn come_back(&self) {
        self.shared.come_back();
        self.patiently("the server is back", self.shared.up()).await;
    }

    /// Closes all connections without a word; new ones are welcome.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }

    /// Ends all watches as a server does when their time is over.
    pub(crate) fn end_watches(&self) {
        self.store(Store::end_watches);
    }

    /// Throws the history away: watches that are open are told, later ones cannot go on from before.
    pub(crate) fn compact(&self) {
        self.store(Store::compact);
    }

    /// From now on the server's memory, which answers lists that may be old, stays behind.
    pub(crate) fn lag(&self) {
        self.store(Store::lag);
    }

    /// The server says nothing any more, with all connections open; or it does again.
    pub(crate) fn mute(&self, mute: bool) {
        self.store(|store| store.mute = mute);
    }

    /// Sends a bookmark to all watches.
    pub(crate) fn bookmark(&self) {
        self.store(Store::bookmark);
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            // A second panic during a failing test would only hide the first.
            assert!(ended.is_ok() || std::thread::panicking(), "the fake API server itself has failed");
        }
    }
}
