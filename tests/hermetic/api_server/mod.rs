//! A fake API server for pods, hooks and leases that misbehaves on demand: real HTTP on the loopback interface, in
//! front of a small store.
//!
//! It does what a real server does not do on demand: it loses answers, breaks off watches, drops its history, and
//! lets another client write at the worst moment. The regular behaviour of an API server is tested with a real one
//! (`tests/cluster`).
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
//! The server has its own thread and clock, so it works with every kind of test runtime, and also with paused time.
//! It ends when the [`ApiServer`] is dropped.
#![allow(dead_code, reason = "a toolbox: not every test needs every tool")]

mod crowd;
mod faults;
mod http;
mod listener;
mod patch;
pub(crate) mod pods;
mod query;
mod resize;
mod store;
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub(crate) use crowd::Crowd;
pub(crate) use faults::{Fault, On};
pub(crate) use store::Store;

use listener::Shared;

/// How long a test waits for an expected event. Only a failing test reaches it.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// A running fake API server.
pub(crate) struct ApiServer {
    shared: Arc<Shared>,
    handle: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl ApiServer {
    /// Starts a server with an empty store; it is reachable when this returns.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::new());
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let thread = {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            std::thread::spawn(move || runtime.block_on(listener::run(shared, stop)))
        };
        shared.up().await;
        Self { shared, handle, stop, thread: Some(thread), folder }
    }

    /// Writes a kubeconfig for this server, and returns its path.
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

    /// Reads or changes the store atomically.
    pub(crate) fn store<R>(&self, work: impl FnOnce(&mut Store) -> R) -> R {
        self.shared.change(work)
    }

    /// Waits until the store meets `condition`.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut(&Store) -> bool) {
        let coming = self.shared.until(|store| condition(store).then_some(()));
        self.patiently(what, coming).await;
    }

    /// Waits for `coming`, with a timeout by the clock of the fake, because the clock of the test may be paused.
    pub(crate) async fn patiently<R>(&self, what: &str, coming: impl Future<Output = R>) -> R {
        let mut timer = self.handle.spawn(async { tokio::time::sleep(WAIT_LIMIT).await });
        tokio::select! {
            came = coming => {
                timer.abort();
                came
            }
            _ = &mut timer => panic!("never happened: {what}\ncalls: {:#?}", self.calls()),
        }
    }

    // ---- objects ----

    /// Stores a new or changed object; an object without a uid gets one.
    pub(crate) fn put(&self, pod: Value) -> Value {
        self.store(|store| store.put(pod))
    }

    /// The current state of a pod.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Value {
        self.store(|store| store.pod(namespace, name).unwrap_or_else(|| panic!("no pod {namespace}/{name}")))
    }

    /// Changes a pod, as another client does.
    pub(crate) fn edit(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.store(|store| store.edit(namespace, name, change));
    }

    /// Removes a pod at once.
    pub(crate) fn remove(&self, namespace: &str, name: &str) {
        self.store(|store| store.remove(namespace, name));
    }

    /// The current state of an object of another kind (`hookruns`).
    pub(crate) fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.store(|store| store.get(plural, namespace, name))
    }

    /// Changes an object of another kind, as another client does.
    pub(crate) fn edit_of(&self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.store(|store| store.edit_of(plural, namespace, name, change));
    }

    /// Stores a secret with these fields, given in plain text.
    pub(crate) fn secret(&self, namespace: &str, name: &str, data: &[(&str, &str)]) {
        self.store(|store| store.put_secret(namespace, name, data));
    }

    /// All events that were written.
    pub(crate) fn events(&self) -> Vec<Value> {
        self.store(|store| store.events.clone())
    }

    // ---- what happened ----

    /// All calls, one line each, in the order of their arrival: `LIST pods`, `NEXT pods` (a further page), `WATCH pods`, `PATCH pod shop/web-0`,
    /// `PATCH pod/status shop/web-0`, `POST event shop/web-0.17f`.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.shared.change(|store| store.calls.clone())
    }

    /// The calls that change something.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.calls().into_iter().filter(|call| !call.starts_with(['L', 'N', 'W', 'G'])).collect()
    }

    /// The number of calls whose line begins with `call`.
    pub(crate) fn count(&self, call: &str) -> usize {
        self.calls().iter().filter(|line| line.starts_with(call)).count()
    }

    /// Clears the list of calls.
    pub(crate) fn forget(&self) {
        self.store(|store| store.calls.clear());
    }

    /// Waits until this many calls whose line begins with `call` have arrived, whatever their result.
    pub(crate) async fn arrived(&self, call: &str, times: usize) {
        let is = |store: &Store| store.calls.iter().filter(|line| line.starts_with(call)).count() >= times;
        self.until(&format!("{times} times {call}"), is).await;
    }

    // ---- faults and changes ----

    /// Selects calls of this kind (`PATCH pod`) for a fault or a change; the next call only, unless specified
    /// otherwise.
    pub(crate) fn on(&self, call: &'static str) -> On<'_> {
        On::new(&self.shared, call)
    }

    /// Makes a change as another client, directly before the next call of this kind takes effect.
    pub(crate) fn before(&self, call: &'static str, change: impl FnMut(&mut Store) + Send + 'static) {
        self.on(call).first(change);
    }

    /// Stops the server until [`Self::come_back`]. The objects are kept.
    pub(crate) async fn go_away(&self) {
        self.shared.go_away();
        self.patiently("the server is away", self.shared.away()).await;
    }

    /// Starts the server again at the same address; it is reachable when this returns.
    pub(crate) async fn come_back(&self) {
        self.shared.come_back();
        self.patiently("the server is back", self.shared.up()).await;
    }

    /// Closes all connections without a message; new connections are accepted.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }

    /// Ends all watches, as a server does when their time is over.
    pub(crate) fn end_watches(&self) {
        self.store(Store::end_watches);
    }

    /// Drops the history: open watches get an error, and later ones cannot continue from an earlier version.
    pub(crate) fn compact(&self) {
        self.store(Store::compact);
    }

    /// From now on the server's watch cache, which answers lists that may be old, is not updated.
    pub(crate) fn lag(&self) {
        self.store(Store::lag);
    }

    /// Makes the server silent, with all connections open, or ends the silence.
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
            // A second panic during a failing test would only hide the first one.
            assert!(ended.is_ok() || std::thread::panicking(), "the fake API server itself has failed");
        }
    }
}
