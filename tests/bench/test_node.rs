//! The setup of the measurements: a private node, the engine as in the agent, and a recorder of runtime calls and
//! effects.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::manifest::Manifest;
use inplace::api::pod_ref::PodRef;
use inplace::api::request::Request;
use inplace::api::status::{Phase, Status};
use inplace::cri::client::Client;
use inplace::cri::endpoint::Endpoint;
use inplace::cri::proto::v1;
use inplace::node::Node;
use inplace::node::drive::{ControlHandle, Observer, OperationEvent};
use inplace::node::launch::{self, Dirs, Started};
use inplace::operation::effect::Verb;
use inplace::process::clock;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::support::lab::{Lab, Options};

/// Time limit of an image pull.
const PULL: Duration = Duration::from_secs(300);

/// A private node with an engine.
pub(crate) struct TestNode {
    // Before `lab`, so that no calls are in progress when the lab is dropped.
    pub(crate) client: Client,
    node: Node,
    pub(crate) dirs: Dirs,
    received: Arc<Mutex<Vec<Event>>>,
    requests: Mutex<u32>,
    pub(crate) lab: Lab,
}

/// A finished call or effect.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) what: What,
    pub(crate) took: Duration,
    pub(crate) ended: Instant,
    /// The end by the runtime's clock.
    pub(crate) at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A call to the runtime.
    Call(&'static str),
    /// An effect, including everything it does.
    Effect(Verb),
}

impl Event {
    fn now(what: What, took: Duration) -> Self {
        Self { what, took, ended: Instant::now(), at: clock::now() }
    }

    /// Milliseconds from the given time of the runtime's clock to the event's end.
    #[expect(clippy::cast_precision_loss)]
    pub(crate) fn after(&self, nanoseconds: i64) -> f64 {
        (self.at.as_nanosecond() - i128::from(nanoseconds)) as f64 / 1e6
    }
}

/// When a container's process started and ended by the runtime's clock, in nanoseconds; 0 means not yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Instance {
    pub(crate) started_at: i64,
    pub(crate) finished_at: i64,
}

impl TestNode {
    pub(crate) fn new() -> Self {
        let lab = Lab::own(&Options::default());
        let received: Arc<Mutex<Vec<Event>>> = Arc::default();
        let sink = Arc::clone(&received);
        let endpoint = Endpoint::parse(&lab.endpoint).unwrap();
        let client = Client::new(
            &endpoint,
            Some(Arc::new(move |call, took, _| {
                let event = Event::now(What::Call(call), took);
                sink.lock().unwrap().push(event);
            })),
        );
        let state = lab.dir.join("inplace");
        let node = Node::new(client.clone(), &state, 2, 256).unwrap();
        let dirs = Dirs::new(state).unwrap();
        Self { client, node, dirs, received, requests: Mutex::new(0), lab }
    }

    /// Starts a pod `bench/NAME` with a container `app` of this image.
    pub(crate) async fn pod(&self, name: &str, image: &str) -> Started {
        let manifest = Manifest::parse(&manifest(name, image, "")).unwrap();
        Box::pin(launch::run(&self.client, &manifest, &self.dirs, PULL)).await.unwrap()
    }

    pub(crate) async fn remove(&self, pod: &PodRef) {
        launch::rm(&self.client, &pod.namespace, &pod.name, &self.dirs).await.unwrap();
    }

    /// Has the engine carry out one request line, and checks the terminal phase.
    pub(crate) async fn carry_out(&self, pod: &PodRef, line: &str, end: Phase) -> (Status, Vec<Event>) {
        let count = {
            let mut requests = self.requests.lock().unwrap();
            *requests += 1;
            *requests
        };
        let request = Request::parse(Some(&format!("{line} #{count}"))).unwrap().unwrap();
        let (_withdraw, withdrawal) = watch::channel(None);
        let control = ControlHandle { withdrawal, shutdown: CancellationToken::new() };
        let sink = Arc::clone(&self.received);
        let observer: Observer = Arc::new(move |operation_event| {
            if let OperationEvent::Effect { verb, took, .. } = operation_event {
                let event = Event::now(What::Effect(verb), took);
                sink.lock().unwrap().push(event);
            }
        });
        self.received().clear();
        let status = Box::pin(self.node.carry_out(pod, request, control, &observer)).await.unwrap();
        assert_eq!(status.phase, end, "{line}: {}", status.message);
        (status, std::mem::take(&mut *self.received()))
    }

    /// Start and end of one container.
    pub(crate) async fn instance(&self, id: &str) -> Instance {
        let status = self.client.container(id, false).await.unwrap().unwrap().status.unwrap();
        Instance { started_at: status.started_at, finished_at: status.finished_at }
    }

    /// All containers of a pod, including fences.
    pub(crate) async fn containers(&self, pod: &PodRef) -> Vec<v1::Container> {
        self.client.containers(Some((annotation::POD_UID, &pod.uid))).await.unwrap()
    }

    fn received(&self) -> MutexGuard<'_, Vec<Event>> {
        self.received.lock().unwrap()
    }
}

/// The manifest of a pod `bench/NAME` with a container `app`.
pub(crate) fn manifest(name: &str, image: &str, metadata: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{namespace: bench, name: {name}{metadata}}}\nspec:\n  \
         terminationGracePeriodSeconds: 5\n  containers:\n    - {{name: app, image: \"{image}\"}}\n"
    )
}

/// Milliseconds from the end of one container to the start of another.
#[expect(clippy::cast_precision_loss)]
pub(crate) fn between(ended: Instance, began: Instance) -> f64 {
    assert!(ended.finished_at > 0 && began.started_at > 0, "{ended:?} {began:?}");
    (began.started_at - ended.finished_at) as f64 / 1e6
}
