//! A fake container runtime that can be made to fail: the real protocol over a real socket, in front of a small
//! model of containerd.
//!
//! It produces faults that a real runtime does not produce on demand: lost replies, a restart between two calls,
//! another client that acts at the worst moment. The normal behaviour of a real runtime is tested on a real runtime
//! (`tests/node`).
//!
//! ```text
//! let fake = Fake::start().await;
//! let pod = fake.pod("shop", "web-0", &[("app", "img:v1")]);
//! fake.on("CreateContainer").about("app#1").fault(Fault::FailAfterEffect);
//! fake.after("StopContainer", |m| drop(m.kubelet_restarts("app")));
//! ... the code under test, connected to fake.endpoint() ...
//! assert_eq!(fake.only("app").attempt(), 1);
//! assert!(fake.fences().is_empty());
//! assert_eq!(fake.history(), ["created fence app#2", "signalled app#0", ...]);
//! ```
//!
//! The server has a thread and a clock of its own, so it works with every kind of test runtime, also with paused
//! time. It stops when the [`Fake`] is dropped.
#![allow(dead_code, reason = "a toolbox: not every test needs every tool")]

mod calls;
mod client;
mod containers;
mod dispatch;
mod faults;
mod image_service;
mod images;
mod kubelet;
mod messages;
mod model;
mod parts;
mod pod;
mod runtime_service;
mod server;
mod tests;
mod verbose;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

pub(crate) use calls::{Call, Outcome};
pub(crate) use faults::{Fault, On};
pub(crate) use model::Model;
pub(crate) use parts::{Container, Exec};
pub(crate) use pod::{Made, Pod};

use server::Shared;

/// How long a test waits for an expected state. Only reached by a failing test.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// A running fake runtime.
pub(crate) struct Fake {
    shared: Arc<Shared>,
    handle: Handle,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    folder: tempfile::TempDir,
}

impl Fake {
    /// Starts an empty node, which is reachable when this returns.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let shared = Arc::new(Shared::new(folder.path()));
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let thread = {
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            std::thread::spawn(move || runtime.block_on(server::run(shared, stop)))
        };
        shared.up().await;
        Self { shared, handle, stop, thread: Some(thread), folder }
    }

    /// The runtime endpoint to connect to.
    pub(crate) fn endpoint(&self) -> String {
        format!("unix://{}", self.shared.socket().display())
    }

    /// Reads or changes the model atomically.
    pub(crate) fn model<R>(&self, work: impl FnOnce(&mut Model) -> R) -> R {
        self.shared.change(work)
    }

    /// Waits until the model fulfils the condition.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut(&Model) -> bool) {
        self.patiently(what, self.shared.until(|model| condition(model).then_some(()))).await;
    }

    /// Uses the clock of the fake, since the clock of the test may be paused.
    async fn patiently<R>(&self, what: &str, coming: impl Future<Output = R>) -> R {
        let mut timer = self.handle.spawn(async { tokio::time::sleep(WAIT_LIMIT).await });
        tokio::select! {
            came = coming => {
                timer.abort();
                came
            }
            _ = &mut timer => {
                panic!("never happened: {what}\nhistory: {:#?}\ncalls: {:#?}", self.history(), self.story())
            }
        }
    }

    // ---- pods ----

    /// Adds a pod as a kubelet creates it: a ready sandbox and running containers.
    pub(crate) fn pod(&self, namespace: &str, name: &str, containers: &[(&str, &str)]) -> Made {
        let pod = Pod::new(namespace, name);
        self.put(containers.iter().fold(pod, |pod, (name, image)| pod.container(name, image)))
    }

    /// Adds a pod with special settings. Its creation is not in the history.
    pub(crate) fn put(&self, pod: Pod) -> Made {
        self.model(|model| pod.put(model))
    }

    /// Sets the answers of containers to commands.
    pub(crate) fn exec(&self, answer: impl FnMut(&Container, &[String]) -> Exec + Send + 'static) {
        self.model(|model| model.exec = Box::new(answer));
    }

    // ---- present state ----

    /// The running instances of `what`: a container's name, or `pod/name`.
    pub(crate) fn running(&self, what: &str) -> Vec<Container> {
        self.shared.read(|model| model.running(what).into_iter().cloned().collect())
    }

    /// The only running instance of `what`.
    pub(crate) fn only(&self, what: &str) -> Container {
        let running = self.running(what);
        let [only] = running.as_slice() else {
            panic!("{} of {what} run\nhistory: {:#?}", running.len(), self.history())
        };
        only.clone()
    }

    /// All instances of `what`, oldest first, without fences.
    pub(crate) fn instances(&self, what: &str) -> Vec<Container> {
        self.shared.read(|model| model.instances(what).into_iter().cloned().collect())
    }

    /// All fences.
    pub(crate) fn fences(&self) -> Vec<Container> {
        self.shared.read(|model| model.containers.iter().filter(|c| c.is_fence()).cloned().collect())
    }

    // ---- recorded calls and events ----

    /// The effects that really took place, in order, independent of the answers: `created app#1`, `started app#1`,
    /// `signalled app#0`, `exited app#0 143`, `removed fence app#2`, `pulled img:v2`.
    pub(crate) fn history(&self) -> Vec<String> {
        self.shared.read(|model| model.history.clone())
    }

    /// How often exactly this event occurred.
    pub(crate) fn times(&self, event: &str) -> usize {
        self.shared.read(|model| model.history.iter().filter(|happened| *happened == event).count())
    }

    /// The calls of one name.
    pub(crate) fn calls(&self, name: &str) -> Vec<Call> {
        faults::assert_call(name);
        self.all_calls().into_iter().filter(|call| call.name == name).collect()
    }

    /// Waits until a call has arrived, whatever its result.
    pub(crate) async fn arrived(&self, name: &str, about: &str) {
        faults::assert_call(name);
        let is = |call: &Call| call.name == name && call.about == about;
        let come = |_: &Model| self.shared.log.all().iter().any(is).then_some(());
        self.patiently(&format!("{name} {about}"), self.shared.until(come)).await;
    }

    /// All calls since the start, or since [`Self::forget`].
    pub(crate) fn all_calls(&self) -> Vec<Call> {
        self.shared.log.all()
    }

    /// The mutating calls, one line each. Empty if the code under test changed nothing.
    pub(crate) fn story(&self) -> Vec<String> {
        self.all_calls().iter().filter(|call| call.mutates()).map(ToString::to_string).collect()
    }

    /// Clears the recorded calls and the history.
    pub(crate) fn forget(&self) {
        self.shared.log.clear();
        self.model(|model| model.history.clear());
    }

    // ---- rules for future calls ----

    /// Begins a rule for calls of this name from now on; without further methods it applies to the next call.
    pub(crate) fn on(&self, call: &'static str) -> On<'_> {
        On::new(&self.shared, call)
    }

    /// Changes the model right after the next call of this name takes effect, before its answer.
    pub(crate) fn after(&self, call: &'static str, change: impl FnMut(&mut Model) + Send + 'static) {
        self.on(call).then(change);
    }

    /// Changes the model right before the next call of this name takes effect.
    pub(crate) fn before(&self, call: &'static str, change: impl FnMut(&mut Model) + Send + 'static) {
        self.on(call).first(change);
    }

    /// The runtime restarts instead of answering the next call of this name, which has no effect.
    pub(crate) fn restart_before(&self, call: &'static str, away: Duration) {
        self.on(call).fault(Fault::Restart(away));
    }

    /// The runtime restarts instead of answering the next call of this name, which has taken effect.
    pub(crate) fn restart_after(&self, call: &'static str, away: Duration) {
        self.on(call).fault(Fault::RestartAfterEffect(away));
    }

    /// Stops the runtime until [`Self::come_back`]. Containers keep running.
    pub(crate) fn go_away(&self) {
        self.shared.go_away(None);
    }

    /// Starts the runtime again with its old state. It is reachable when this returns.
    pub(crate) async fn come_back(&self) {
        self.shared.come_back();
        self.up().await;
    }

    /// Waits for the end of a restart.
    pub(crate) async fn up(&self) {
        self.patiently("the runtime is back", self.shared.up()).await;
    }

    /// Closes all connections; new ones are accepted.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            // A second panic during a failing test would hide the first.
            assert!(ended.is_ok() || std::thread::panicking(), "the fake runtime itself has failed");
        }
    }
}
