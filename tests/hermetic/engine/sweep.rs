//! Tests of the sweep: what is removed without an operation, and what is never removed.

use inplace::api::annotation;
use inplace::cri::proto::v1::ContainerState;
use inplace::node::journal::Entry;
use inplace::node::sweep::{remove_gone, sweep};
use inplace::operation::snapshot::Owner;

use super::super::runtime::{Fault, Model, Pod};
use super::{Fixture, nobody, pod_ref, request};

/// Creates a container like the running `name`, with this attempt and these additional labels, and does not start it.
fn create(m: &mut Model, name: &str, attempt: u32, labels: &[(&str, &str)]) -> String {
    let instance = m.running(name)[0].clone();
    let mut config = instance.config;
    config.metadata.as_mut().unwrap().attempt = attempt;
    config.labels.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    m.create(&instance.sandbox_id, config, instance.pod_config).unwrap()
}

const FENCE: [(&str, &str); 2] =
    [(annotation::CONTAINER_NAME, annotation::FENCE_NAME), (annotation::OPERATION, "long-ago")];
const STANDBY: [(&str, &str); 3] = [
    (annotation::CONTAINER_NAME, annotation::STANDBY_NAME),
    (annotation::STANDBY, "app"),
    (annotation::OPERATION, "long-ago"),
];
const OURS: [(&str, &str); 1] = [(annotation::OPERATION, "long-ago")];

/// Creates the fence of an operation that is no longer recorded, for the running `name`.
pub(in super::super) fn forgotten_fence(m: &mut Model, name: &str, attempt: u32) {
    create(m, name, attempt, &FENCE);
}

impl Fixture {
    pub(super) async fn sweep(&self) -> usize {
        sweep(&self.node.client, &self.node.journal, None).await.unwrap()
    }

    /// Lets the container with this ID be created so many seconds ago.
    fn created(&self, id: &str, seconds: i64) {
        let age = jiff::SignedDuration::from_secs(seconds);
        let created_at = i64::try_from((inplace::process::clock::now() - age).as_nanosecond()).unwrap();
        self.fake.model(|m| m.container_mut(id).unwrap().created_at = created_at);
    }

    /// Another pod on the node, with a container `db`.
    fn neighbour(&self) -> super::PodRef {
        pod_ref(&self.fake.put(Pod::new("shop", "db-0").owner(Owner::Kubelet).container("db", "img:v1")))
    }

    /// Begins a restart in a process that dies once the fence is created.
    pub(super) async fn die_fenced(&mut self) {
        self.fake.on("StopContainer").fault(Fault::Hang);
        let (node, pod, control) = (self.node.clone(), self.pod.clone(), self.control());
        let process =
            tokio::spawn(
                async move { node.carry_out(&pod, request("restart app"), control, &nobody()).await },
            );
        self.fake.arrived("StopContainer", "app#0").await;
        process.abort();
        assert!(process.await.unwrap_err().is_cancelled());
        self.next_process();
        assert_eq!(self.fake.fences().len(), 1);
    }
}

#[tokio::test]
async fn what_is_ours_and_forgotten_goes_and_what_is_others_stays() {
    let fixture = Fixture::open().await;
    fixture.neighbour();
    let (theirs, ran) = fixture.fake.model(|m| {
        // A fence may be running.
        let running = create(m, "app", 2, &FENCE);
        m.start(&running).unwrap();
        create(m, "db", 2, &FENCE);
        create(m, "app", 3, &OURS);
        // A user can name a container so, but cannot give it the agent's label.
        let named = create(m, "app", 4, &FENCE[..1]);
        m.start(&named).unwrap();
        create(m, "app", 5, &FENCE[..1]);
        // The agent's label on a container that has run is only its history: no instance that ran is ever swept.
        let ran = create(m, "db", 3, &OURS);
        m.start(&ran).unwrap();
        (create(m, "app", 1, &[]), ran)
    });
    fixture.fake.forget();
    assert_eq!(fixture.sweep().await, 3);
    assert_eq!(fixture.fake.fences().len(), 2, "those of the user");
    assert_eq!(fixture.fake.instances("app").last().unwrap().id, theirs);
    assert_eq!(fixture.fake.instances("db").last().unwrap().id, ran);
    assert!(fixture.fake.story().iter().all(|call| call.starts_with("Remove")), "{:?}", fixture.fake.story());
    assert_eq!((fixture.sweep().await, fixture.fake.story().len()), (0, 3));
}

/// A user can name a container like a standby, but cannot give it the labels.
#[tokio::test]
async fn a_forgotten_standby_goes_once_its_container_runs_or_has_ended_beside_it() {
    let fixture = Fixture::open().await;
    let (app, standby) = fixture.fake.model(|m| {
        create(m, "app", 8, &STANDBY[..1]);
        let standby = create(m, "app", 7, &STANDBY);
        let app = m.running("app")[0].id.clone();
        m.start(&standby).unwrap();
        m.exit(&app, 1);
        (app, standby)
    });
    let is_left = |id: &str| fixture.fake.instances("app").iter().any(|instance| instance.id == id);
    assert_eq!(fixture.sweep().await, 0);
    assert!(is_left(&standby) && is_left(&app), "nothing else serves");
    // One that could not be started has replaced nothing.
    fixture.fake.model(|m| {
        let failed = create(m, "app", 2, &[(annotation::CONTAINER_NAME, "app")]);
        let failed = m.container_mut(&failed).unwrap();
        (failed.state, failed.exit_code) = (ContainerState::ContainerExited, 128);
    });
    assert_eq!(fixture.sweep().await, 0);
    assert!(is_left(&standby));
    fixture.fake.model(|m| {
        let next = create(m, "app", 1, &[(annotation::CONTAINER_NAME, "app")]);
        m.start(&next).unwrap();
        m.exit(&next, 1);
        let standby = m.container_mut(&standby).unwrap();
        let ports = r#"[{"containerPort":80}]"#;
        standby.config.annotations.insert(annotation::PORTS.to_owned(), ports.to_owned());
    });
    assert_eq!(fixture.sweep().await, 0, "it shares its ports, and serves");
    fixture.fake.model(|m| {
        m.container_mut(&standby).unwrap().config.annotations.remove(annotation::PORTS);
    });
    assert_eq!(fixture.sweep().await, 1);
    assert!(!is_left(&standby) && is_left(&app));
    assert!(fixture.fake.story().iter().any(|call| call.starts_with("Stop")), "{:?}", fixture.fake.story());
    assert_eq!(fixture.sweep().await, 0);
}

/// A container that has just started may load for a while, or fail.
#[tokio::test]
async fn a_forgotten_standby_runs_its_handler_and_only_beside_a_container_that_has_run_for_a_minute() {
    let fixture = Fixture::open().await;
    let (app, standby) = fixture.fake.model(|m| {
        let standby = create(m, "app", 7, &STANDBY);
        let config = &mut m.container_mut(&standby).unwrap().config;
        let handler = r#"{"exec":{"command":["bye"]}}"#;
        config.annotations.insert(annotation::PRE_STOP.to_owned(), handler.to_owned());
        let app = m.running("app")[0].id.clone();
        m.start(&standby).unwrap();
        (app, standby)
    });
    fixture.fake.forget();
    fixture.created(&app, 30);
    assert_eq!(fixture.sweep().await, 0);
    fixture.created(&app, 70);
    assert_eq!(fixture.sweep().await, 1);
    let story = fixture.fake.story();
    let calls: Vec<_> = story.iter().map(|call| call.split_whitespace().next().unwrap()).collect();
    assert_eq!(calls, ["ExecSync", "StopContainer", "RemoveContainer"], "{story:?}");
    assert!(fixture.fake.instances("app").iter().all(|instance| instance.id != standby));
}

/// Starts a standby of an operation that is no longer recorded beside `app`, and returns the IDs of both.
fn forgotten_standby(m: &mut Model) -> (String, String) {
    let standby = create(m, "app", 7, &STANDBY);
    let app = m.running("app")[0].id.clone();
    m.start(&standby).unwrap();
    (app, standby)
}

/// An image may load longer than a minute. The standby served before the container was created.
#[tokio::test]
async fn a_forgotten_standby_stays_while_its_container_may_still_load() {
    let fixture = Fixture::open().await;
    let (app, standby) = fixture.fake.model(forgotten_standby);
    fixture.created(&standby, 400);
    fixture.created(&app, 100);
    assert_eq!(fixture.sweep().await, 0);
    fixture.created(&app, 205);
    assert_eq!(fixture.sweep().await, 1);
    assert!(fixture.fake.instances("app").iter().all(|instance| instance.id != standby));
}

/// It may hold something that the container needs to stay up.
#[tokio::test]
async fn a_forgotten_standby_that_shares_its_ports_is_kept_for_an_hour_beside_a_container_that_ends() {
    let fixture = Fixture::open().await;
    let standby = fixture.fake.model(|m| {
        let (app, standby) = forgotten_standby(m);
        m.exit(&app, 1);
        let next = create(m, "app", 1, &[(annotation::CONTAINER_NAME, "app")]);
        m.start(&next).unwrap();
        m.exit(&next, 1);
        let annotations = &mut m.container_mut(&standby).unwrap().config.annotations;
        annotations.insert(annotation::PORTS.to_owned(), r#"[{"containerPort":80}]"#.to_owned());
        standby
    });
    for (age, removed) in [(3500, 0), (3700, 1)] {
        fixture.created(&standby, age);
        assert_eq!(fixture.sweep().await, removed, "{age} s");
    }
    assert!(fixture.fake.instances("app").iter().all(|instance| instance.id != standby));
}

/// A request sweeps its pod first.
#[tokio::test]
async fn a_request_that_is_refused_stops_a_standby_only_where_its_container_serves() {
    for (age, stays) in [(30, true), (70, false)] {
        let fixture = Fixture::open().await;
        let (app, standby) = fixture.fake.model(forgotten_standby);
        fixture.created(&app, age);
        fixture.fake.forget();
        let error = fixture.ask(request("restart other")).await.unwrap_err();
        assert_eq!(error.reason(), "UnknownContainer", "{error}");
        assert_eq!(fixture.fake.story().is_empty(), stays, "{:?}", fixture.fake.story());
        let is_left = fixture.fake.instances("app").iter().any(|instance| instance.id == standby);
        assert_eq!(is_left, stays, "{age} s");
    }
}

#[tokio::test]
async fn an_open_operation_takes_care_of_its_own() {
    let mut fixture = Fixture::open().await;
    fixture.die_fenced().await;
    fixture.neighbour();
    fixture.fake.model(|m| create(m, "db", 2, &FENCE));
    assert_eq!(fixture.sweep().await, 1, "the neighbour's");
    assert_eq!(fixture.fake.fences()[0].name(), "app");
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
}

/// The next request on a pod sweeps it first, and is not hindered by what was left.
#[tokio::test]
async fn a_request_finds_its_pod_swept() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| {
        create(m, "app", 2, &FENCE);
        create(m, "app", 1, &OURS);
    });
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert_eq!(fixture.fake.only("app").attempt(), 1);
}

/// A container that cannot be removed now does not prevent the removal of the others.
#[tokio::test]
async fn one_that_stays_does_not_keep_the_others() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| (2..5).for_each(|attempt| drop(create(m, "app", attempt, &FENCE))));
    fixture.fake.on("RemoveContainer").fault(Fault::Fail(tonic::Code::Unknown, "busy"));
    assert_eq!(fixture.sweep().await, 2);
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (1, 0));
}

/// Nor does a container whose state the runtime cannot report. Without a runtime there is nothing to sweep.
#[tokio::test]
async fn one_that_cannot_be_read_does_not_keep_the_others() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| (2..5).for_each(|attempt| drop(create(m, "app", attempt, &FENCE))));
    let unreadable = || Fault::Fail(tonic::Code::Unknown, "no shim");
    fixture.fake.on("ContainerStatus").about("fence app#2").always().fault(unreadable());
    assert_eq!(fixture.sweep().await, 2);
    let left = fixture.fake.fences();
    assert!(matches!(left.as_slice(), [fence] if fence.attempt() == 2), "{left:?}");
    fixture.fake.go_away();
    assert!(sweep(&fixture.node.client, &fixture.node.journal, None).await.is_err());
}

/// The journal of a pod is removed with the pod, and not before. An unfinished operation stays for a person to check.
#[tokio::test]
async fn a_pod_that_is_gone_is_forgotten() {
    let mut fixture = Fixture::open().await;
    fixture.die_fenced().await;
    let (journal, client) = (&fixture.node.journal, &fixture.node.client);
    let known = |pod: &super::PodRef| journal.path(&pod.uid).exists();
    let mut gone = Entry::new(super::PodRef { uid: "gone".into(), ..fixture.pod.clone() });
    gone.open = journal.load(&fixture.pod).unwrap().open;
    assert!(gone.open.is_some());
    journal.write(&gone).unwrap();
    remove_gone(client, journal).await.unwrap();
    assert!(known(&fixture.pod) && known(&gone.pod));
    gone.open = None;
    journal.write(&gone).unwrap();
    remove_gone(client, journal).await.unwrap();
    assert!(known(&fixture.pod) && !known(&gone.pod));
}

/// A request that was refused leaves a lock and no journal. So does the sweep of a pod without an operation.
#[tokio::test]
async fn the_lock_of_a_pod_that_is_gone_is_removed_unless_it_is_held() {
    let fixture = Fixture::open().await;
    let (journal, client) = (&fixture.node.journal, &fixture.node.client);
    let file = |uid: &str, end: &str| journal.path(uid).with_extension(end);
    let gone = super::PodRef { uid: "gone".into(), ..fixture.pod.clone() };
    let held = super::PodRef { uid: "held".into(), ..fixture.pod.clone() };
    drop((journal.hold(&fixture.pod).unwrap(), journal.hold(&gone).unwrap()));
    std::fs::write(file("gone-too", "panics"), "one\n").unwrap();
    let lock = journal.hold(&held).unwrap();
    remove_gone(client, journal).await.unwrap();
    let left = |end: &str| {
        let uids = [fixture.pod.uid.as_str(), "gone", "gone-too", "held"];
        uids.map(|uid| file(uid, end).exists())
    };
    assert_eq!(left("lock"), [true, false, false, true]);
    assert_eq!(left("panics"), [false; 4]);
    drop(lock);
    remove_gone(client, journal).await.unwrap();
    assert_eq!(left("lock"), [true, false, false, false]);
}

/// A container of the agent is created when the list is taken, and runs when the sweep reaches it.
#[tokio::test]
async fn what_has_started_since_the_list_was_taken_is_not_ended() {
    let fixture = Fixture::open().await;
    let started = fixture.fake.model(|m| create(m, "app", 1, &OURS));
    let id = started.clone();
    fixture.fake.on("ListContainers").nth(2).then(move |m| m.start(&id).unwrap());
    assert_eq!(fixture.sweep().await, 0);
    let instances = fixture.fake.instances("app");
    assert!(
        instances.iter().any(|instance| instance.id == started && instance.is_running()),
        "{instances:#?}"
    );
}

/// A process that works on a pod holds its journal: what it creates there is not swept.
#[tokio::test]
async fn a_pod_that_is_worked_on_is_not_swept() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| create(m, "app", 2, &FENCE));
    let held = fixture.node.journal.hold(&fixture.pod).unwrap();
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (0, 1));
    drop(held);
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (1, 0));
}

/// The previous release created such fences. A kubelet that collects one deletes the
/// files of its own working directory.
#[tokio::test]
async fn a_fence_without_a_log_path_goes_whatever_the_journal_says() {
    let mut fixture = Fixture::open().await;
    fixture.die_fenced().await;
    fixture.fake.model(|m| {
        let fence = m.fences("app")[0].id.clone();
        m.container_mut(&fence).unwrap().config.log_path.clear();
    });
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (1, 0));
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
    std::fs::write(fixture.node.journal.path(&fixture.pod.uid), "{").unwrap();
    fixture.fake.model(|m| {
        let fence = create(m, "app", 5, &FENCE);
        m.container_mut(&fence).unwrap().config.log_path.clear();
    });
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (1, 0));
}
