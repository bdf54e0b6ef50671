//! Tests of the engine itself, in this process, with a fake runtime that fails on demand.
//!
//! [`Fixture::sane`] holds the rules that apply everywhere: never two running containers of one name, and nothing of the
//! engine's own left behind. Each file adds one kind of fault.

mod crash;
mod files;
mod full_journal;
mod holder;
mod hook;
mod journal;
mod matrix;
mod panic;
mod pulls;
mod race;
mod refuse;
mod shutdown;
mod slow_journal;
mod sweep;
mod withdraw;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::pod_ref::PodRef;
use inplace::api::request::Request;
use inplace::api::status::{Phase, Status};
use inplace::cri::client::Client;
use inplace::cri::endpoint::Endpoint;
use inplace::cri::proto::v1::ContainerState;
use inplace::node::drive::{ControlHandle, Observer};
use inplace::node::holder::{Holder, HolderArgs};
use inplace::node::{Error, Node};
use inplace::operation::outcome::Withdrawal;
use inplace::operation::snapshot::Owner;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::runtime::{Fake, Made, Pod};
pub(super) use sweep::forgotten_fence;

/// An image on the node for holders.
const HOLDER: &str = "inplace:v1";
/// Only a failing test waits this long.
const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// A node with one pod, and an engine on it.
struct Fixture {
    fake: Fake,
    node: Node,
    pod: PodRef,
    /// The ID of the instance of `app` that runs at the beginning.
    first: String,
    /// The same in the form that the history uses.
    original: String,
    withdraw: watch::Sender<Option<Withdrawal>>,
    shutdown: CancellationToken,
    state: tempfile::TempDir,
}

/// The pod `fixture/web-0` with the container `app`. No other program manages it.
fn pod() -> Pod {
    Pod::new("shop", "web-0").owner(Owner::NodeRun).container("app", "img:v1").grace(1)
}

/// The same pod where other programs may act: its replacement is not created before the stop.
fn shared_pod() -> Pod {
    pod().label(annotation::NODE_RUN, "false")
}

fn request(text: &str) -> Request {
    Request::parse(Some(text)).unwrap().unwrap()
}

/// A request with this deadline in seconds.
fn short(text: &str, deadline_seconds: u32) -> Request {
    Request { deadline_seconds, ..request(text) }
}

fn pod_ref(made: &Made) -> PodRef {
    PodRef { namespace: made.namespace.clone(), name: made.name.clone(), uid: made.uid.clone() }
}

fn node(fake: &Fake, state: &Path) -> Node {
    let client = Client::new(&Endpoint::parse(&fake.endpoint()).unwrap(), None);
    Node::new(client, state, 2, 0).unwrap()
}

fn nobody() -> Observer {
    Arc::new(|_| {})
}

impl Fixture {
    async fn open() -> Self {
        Self::of(pod()).await
    }

    /// A shop with this pod, where `img:v2` has yet to be pulled.
    async fn of(pod: Pod) -> Self {
        let fake = Fake::start().await;
        let made = fake.put(pod);
        fake.model(|m| m.remote_image("img:v2").size = 1 << 20);
        let state = tempfile::tempdir().unwrap();
        let node = node(&fake, state.path());
        let first = made.id("app").to_owned();
        let (withdraw, shutdown) = (watch::Sender::new(None), CancellationToken::new());
        let original = fake.only("app").about();
        Self { node, pod: pod_ref(&made), first, original, withdraw, shutdown, state, fake }
    }

    /// Adds an earlier instance of `app` that has ended.
    fn aged(mut self) -> Self {
        self.first = self.fake.model(|m| {
            m.die("app", 1);
            m.kubelet_restarts("app").unwrap()
        });
        self.original = self.fake.only("app").about();
        self.fake.forget();
        self
    }

    fn control(&self) -> ControlHandle {
        ControlHandle { withdrawal: self.withdraw.subscribe(), shutdown: self.shutdown.clone() }
    }

    async fn restart(&self) -> Result<Status, Error> {
        self.ask(request("restart app")).await
    }

    async fn swap(&self) -> Result<Status, Error> {
        self.ask(request("swap app=img:v2")).await
    }

    async fn ask(&self, request: Request) -> Result<Status, Error> {
        let observer = nobody();
        self.patiently(self.node.carry_out(&self.pod, request, self.control(), &observer)).await
    }

    /// Waits for something that must end long before the timeout.
    async fn patiently<R>(&self, ending: impl Future<Output = R>) -> R {
        let ended = tokio::time::timeout(WAIT_LIMIT, ending).await;
        ended.unwrap_or_else(|_| panic!("no end: {:#?}\n{:#?}", self.fake.history(), self.fake.story()))
    }

    /// As the agent does: a request is repeated while the runtime is away before anything has begun.
    async fn insist(&self, request: Request) -> Result<Status, Error> {
        loop {
            match self.ask(request.clone()).await {
                Err(error) if error.reason() == "RuntimeAway" => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                ended => return ended,
            }
        }
    }

    /// Another process, with the journal that an earlier one has left.
    fn next_process(&mut self) {
        self.shutdown = CancellationToken::new();
        self.withdraw = watch::Sender::new(None);
        let holder = self.node.holder.take();
        self.node = Node { holder, ..node(&self.fake, self.state.path()) };
    }

    /// The first instance of `app` is removed right after every `call`, as if its kubelet had collected it.
    fn collect_after(&self, call: &'static str) {
        self.fake.after(call, |m| {
            let old = m.instances("app")[0].id.clone();
            m.vanish(&old);
        });
    }

    /// Configures `image` as the image of the holders beside a kubelet.
    fn held_by(mut self, image: &str) -> Self {
        self.fake.model(|m| {
            m.image(HOLDER);
        });
        let wanted = HolderArgs { holder_image: Some(image.to_owned()), pod_uid: None };
        self.node.holder = Some(Holder::new(wanted));
        self
    }

    async fn resume(&self) -> Result<Option<Status>, Error> {
        let observer = nobody();
        self.patiently(self.node.resume(&self.pod, self.control(), &observer)).await
    }

    /// True when the journal holds an open operation.
    fn is_open(&self) -> bool {
        self.node.journal.load(&self.pod).unwrap().open.is_some()
    }

    /// How many instances of `app` were started by the engine.
    fn starts(&self) -> usize {
        self.fake.history().iter().filter(|event| event.starts_with("started app#")).count()
    }

    /// The rules that must hold at every end.
    #[track_caller]
    fn sane(&self, what: &str) {
        let history = self.fake.history();
        assert!(most_at_once(&self.original, &history) <= 1, "{what}: two of one name ran: {history:#?}");
        let left = self.fake.model(|m| {
            let left = m.containers.iter();
            let left = left.filter(|c| c.state == ContainerState::ContainerCreated || c.is_fence());
            left.map(whose).collect::<Vec<_>>()
        });
        assert!(left.is_empty(), "{what}: left behind: {left:?}\n{history:#?}");
        assert!(!self.is_open(), "{what}: the journal is open");
    }

    /// Checks that exactly one new instance runs, from `image`, and that the status reports it.
    #[track_caller]
    fn reached(&self, status: &Status, image: &str) {
        self.sane(&status.message);
        let (instance, report) = (self.fake.only("app"), &status.containers[0]);
        assert_eq!(report.to.as_ref().map(|to| &to.container_id), Some(&instance.id), "{status:?}");
        assert_eq!((instance.image(), instance.id != self.first), (image, true));
    }

    /// Checks for a success with exactly one start.
    #[track_caller]
    fn succeeded(&self, ended: Result<Status, Error>, image: &str) {
        let status = ended.unwrap_or_else(|error| panic!("{error}\n{:#?}", self.fake.history()));
        assert_eq!(status.phase, Phase::Succeeded, "{status:#?}\n{:#?}", self.fake.history());
        self.reached(&status, image);
        assert_eq!(self.starts(), 1, "{:#?}", self.fake.history());
    }

    /// Checks that the first instance still runs and nothing was done to it.
    #[track_caller]
    fn untouched(&self) {
        let instance = self.fake.only("app");
        assert_eq!((&instance.id, instance.signalled), (&self.first, false), "{:#?}", self.fake.history());
        assert!(self.fake.fences().is_empty());
    }
}

fn whose(container: &super::runtime::Container) -> String {
    format!("{} {}", container.about(), container.label(annotation::OPERATION).unwrap_or("of others"))
}

/// The maximum number of instances of one name that ran at the same time. `first` ran at the beginning.
fn most_at_once(first: &str, history: &[String]) -> usize {
    let mut running: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let began = std::iter::once(("started", first));
    let mut most = 0;
    for (verb, about) in began.chain(history.iter().filter_map(|event| event.split_once(' '))) {
        let about = about.split(' ').next().unwrap_or_default();
        let Some((name, _)) = about.split_once('#') else { continue };
        let instances = running.entry(name).or_default();
        match verb {
            "started" => instances.push(about),
            "exited" => instances.retain(|instance| *instance != about),
            _ => {}
        }
        most = most.max(instances.len());
    }
    most
}

#[test]
fn two_at_once_would_be_seen() {
    let history = |events: &[&str]| events.iter().map(|event| (*event).to_owned()).collect::<Vec<_>>();
    let fine = ["created fence app#2", "exited app#0 143", "started app#1", "started side#7"];
    assert_eq!(most_at_once("app#0", &history(&fine)), 1);
    assert_eq!(most_at_once("app#0", &history(&["started app#1", "exited app#0 143"])), 2);
}
