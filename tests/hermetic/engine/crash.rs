//! The process dies at every change that it makes: before it, after it, and in a rollback. The next process continues
//! from the journal.

use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use inplace::agent;
use inplace::api::request::Request;
use inplace::api::status::Phase;
use inplace::operation::snapshot::Owner;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::super::runtime::{Call, Exec, Fault, Model, Pod};
use super::{Fixture, HOLDER, nobody, pod, pod_ref, request, shared_pod, short};
use crate::support::wait::eventually;

/// When the process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The effect is in the journal, and the runtime does not execute it.
    Before,
    /// The runtime has executed the effect, and the response is lost.
    After,
}

/// A shop with a preStop handler; `img:v3` exits at once. In a pod with a kubelet, a holder reserves the name.
async fn fixture(alone: bool) -> Fixture {
    let pod = if alone { pod() } else { shared_pod() };
    let fixture = Fixture::of(pod.pre_stop(r#"{"exec":{"command":["bye"]}}"#)).await.held_by(HOLDER);
    fixture.fake.model(|m| m.image("img:v3").dies_after = Some((Duration::from_millis(50), 3)));
    fixture.fake.exec(|_, _| Exec::ok("bye"));
    fixture
}

impl Fixture {
    /// Begins `request` in a process that dies at this call, and returns when the process is dead.
    async fn die_at(&mut self, request: Request, moment: Moment, call: &'static str, about: &str) {
        let done = Arc::new(Semaphore::new(0));
        match moment {
            Moment::Before => self.fake.on(call).about(about).fault(Fault::Hang),
            Moment::After => {
                let done = Arc::clone(&done);
                self.fake.on(call).about(about).then(move |_| done.add_permits(1));
                self.fake.on(call).about(about).fault(Fault::HangAfterEffect);
            }
        }
        let (node, pod, control) = (self.node.clone(), self.pod.clone(), self.control());
        let process = tokio::spawn(async move { node.carry_out(&pod, request, control, &nobody()).await });
        self.fake.arrived(call, about).await;
        if moment == Moment::After {
            drop(tokio::time::timeout(Duration::from_secs(20), done.acquire()).await.expect(about));
        }
        process.abort();
        assert!(process.await.unwrap_err().is_cancelled());
        self.next_process();
    }

    /// How often the preStop handler of the first instance ran.
    fn handled(&self) -> usize {
        self.fake.times(&format!("ran bye in {}", self.original))
    }
}

/// The changes of a run without faults.
async fn changes(text: &str, alone: bool) -> Vec<Call> {
    let fixture = fixture(alone).await;
    fixture.ask(request(text)).await.unwrap();
    fixture.fake.all_calls().into_iter().filter(Call::mutates).collect()
}

#[tokio::test]
async fn at_every_change_the_next_process_brings_it_to_its_end() {
    // If all cells ran at once, each would wait for the others, and a busy machine would exceed their deadlines.
    let slots = Arc::new(Semaphore::new(16));
    let mut cells = JoinSet::new();
    let jobs = [
        ("restart app", Phase::Succeeded, "img:v1"),
        ("swap app=img:v2", Phase::Succeeded, "img:v2"),
        ("swap app=img:v3", Phase::RolledBack, "img:v1"),
    ];
    for ((text, phase, image), alone) in jobs.into_iter().flat_map(|job| [(job, true), (job, false)]) {
        let changes = changes(text, alone).await;
        assert!(changes.len() >= 6, "{changes:?}");
        for call in changes {
            for moment in [Moment::Before, Moment::After] {
                for asked_again in [false, true] {
                    let cell =
                        dies_and_goes_on(text, alone, (phase, image), call.clone(), moment, asked_again);
                    let slots = Arc::clone(&slots);
                    cells.spawn(async move {
                        let _slot = slots.acquire_owned().await.unwrap();
                        cell.await;
                    });
                }
            }
        }
    }
    assert!(cells.len() > 180, "{}", cells.len());
    cells.join_all().await;
}

async fn dies_and_goes_on(
    text: &str,
    alone: bool,
    (phase, image): (Phase, &str),
    call: Call,
    moment: Moment,
    asked_again: bool,
) {
    let what = format!("{text}, alone: {alone}, {moment:?} {call}, asked again: {asked_again}");
    let mut fixture = fixture(alone).await;
    fixture.die_at(request(text), moment, call.name, &call.about).await;
    // A change that affects no running container is repeated when the request is made again.
    assert!(fixture.is_open(), "{what}");
    let ended = if asked_again { fixture.ask(request(text)).await.map(Some) } else { fixture.resume().await };
    let history = fixture.fake.history();
    let ended = ended.unwrap().unwrap_or_else(|| panic!("{what}: nothing to go on with"));
    assert_eq!(ended.phase, phase, "{what}: {ended:#?}\n{history:#?}");
    fixture.reached(&ended, image);
    assert_eq!(fixture.starts(), if phase == Phase::RolledBack { 2 } else { 1 }, "{what}: {history:#?}");
    assert!(fixture.handled() <= 1, "{what}: {history:#?}");
    fixture.fake.forget();
    let again = fixture.ask(request(text)).await.unwrap();
    assert_eq!((again.phase, again.message), (ended.phase, ended.message), "{what}");
    assert!(fixture.fake.story().is_empty(), "{what}: an id is carried out once");
}

#[tokio::test]
async fn dying_again_and_again_ends_the_same() {
    for alone in [true, false] {
        let mut fixture = fixture(alone).await;
        for call in changes("restart app", alone).await {
            fixture.die_at(request("restart app"), Moment::After, call.name, &call.about).await;
        }
        let ended = fixture.restart().await.unwrap();
        assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
        fixture.reached(&ended, "img:v1");
        assert_eq!((fixture.starts(), fixture.handled()), (1, 1));
    }
}

/// The runtime is away when the next process starts, and returns later.
#[tokio::test]
async fn the_runtime_dies_too() {
    let mut fixture = fixture(true).await;
    fixture.die_at(request("restart app"), Moment::After, "StopContainer", "app#0").await;
    fixture.fake.go_away();
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let (report, mut reported) = tokio::sync::mpsc::unbounded_channel();
    let observer: inplace::node::drive::Observer = Arc::new(move |operation_event| {
        if let inplace::node::drive::OperationEvent::Progress(why) = operation_event {
            report.send(why.to_owned()).unwrap();
        }
    });
    let process = tokio::spawn(async move { node.resume(&pod, control, &observer).await });
    assert!(reported.recv().await.unwrap().contains("cannot be reached"));
    fixture.fake.come_back().await;
    fixture.succeeded(process.await.unwrap().map(Option::unwrap), "img:v1");
}

/// The next process finds another state than the previous one left.
#[tokio::test]
async fn meanwhile_a_kubelet_brought_it_up() {
    let mut fixture = Fixture::of(pod().owner(Owner::Kubelet)).await;
    fixture.die_at(request("restart app"), Moment::After, "StopContainer", "app#0").await;
    fixture.fake.model(|m| drop(m.kubelet_restarts("app").unwrap()));
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
}

#[tokio::test]
async fn meanwhile_the_pod_is_gone() {
    let mut fixture = fixture(true).await;
    fixture.die_at(request("restart app"), Moment::After, "StopContainer", "app#0").await;
    fixture.fake.model(|m| {
        let id = m.sandboxes[0].id.clone();
        m.stop_sandbox(&id);
        m.remove_sandbox(&id).unwrap();
    });
    let ended = fixture.resume().await.unwrap().unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "SandboxGone"));
    assert!(fixture.resume().await.unwrap().is_none());
}

/// An unreadable journal stops its own pod only.
#[tokio::test]
async fn a_damaged_journal_affects_its_pod_alone() {
    for damage in ["", "{", r#"{"version":99}"#, "cut"] {
        let mut fixture = fixture(true).await;
        let other =
            fixture.fake.put(Pod::new("shop", "web-1").owner(Owner::NodeRun).container("db", "img:v1"));
        fixture.die_at(request("restart app"), Moment::After, "StopContainer", "app#0").await;
        let path = fixture.node.journal.path(&fixture.pod.uid);
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, if damage == "cut" { &whole[..whole.len() / 2] } else { damage }).unwrap();
        fixture.fake.forget();
        for error in [fixture.resume().await.unwrap_err(), fixture.restart().await.unwrap_err()] {
            assert_eq!(error.reason(), "JournalUnreadable");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
        assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());

        let done = fixture
            .node
            .carry_out(&pod_ref(&other), request("restart db"), fixture.control(), &nobody())
            .await;
        assert_eq!(done.unwrap().phase, Phase::Succeeded);
        assert_eq!(fixture.fake.only("db").attempt(), 1);
        assert_eq!(fixture.fake.fences().len(), 1, "that of the damaged one stays until somebody has looked");

        // A person has repaired the file.
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(fixture.resume().await.unwrap().unwrap().phase, Phase::Succeeded);
        assert!(fixture.fake.fences().is_empty());
    }
}

/// The disk becomes full while a container is down: the container must come up all the same.
#[tokio::test]
async fn a_journal_that_cannot_be_written_any_more_leaves_nobody_down() {
    let fixture = fixture(true).await;
    let fresh = fixture.node.journal.path(&fixture.pod.uid);
    let fresh = fresh.with_file_name(format!(".{}.new", fresh.file_name().unwrap().to_str().unwrap()));
    let full = fresh.clone();
    // The write before the stop may be late, and still be in progress.
    fixture.fake.after("StopContainer", move |_| {
        eventually("the disk is full", || std::fs::create_dir(&full).ok());
    });
    // The process is asked to end, so it does not wait until the end of the operation can be written.
    let shutdown = fixture.shutdown.clone();
    fixture.fake.after("RemoveContainer", move |_| shutdown.cancel());
    let ended = fixture.restart().await.unwrap();
    assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
    assert_eq!((fixture.fake.only("app").attempt(), fixture.fake.fences().len()), (1, 0));

    // The journal that the next process reads is old, but the snapshot shows that everything is done.
    std::fs::remove_dir(&fresh).unwrap();
    let again = fixture.resume().await.unwrap().unwrap();
    assert_eq!((again.phase, fixture.starts()), (Phase::Succeeded, 1));
    fixture.reached(&again, "img:v1");
}

/// A handler that was begun is not begun again, even when its result is unknown.
#[tokio::test]
async fn the_handler_is_begun_once() {
    for moment in [Moment::Before, Moment::After] {
        let mut fixture = fixture(true).await;
        fixture.die_at(request("restart app"), moment, "ExecSync", "app#0").await;
        fixture.fake.on("ExecSync").always().fault(Fault::Fail(Code::Internal, "it was begun again"));
        fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
        assert_eq!(fixture.fake.calls("ExecSync").len(), 1);
    }
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: agent::Args,
}

/// The pod was created again before the operation on the one of the same name had ended.
#[tokio::test]
async fn an_agent_without_a_server_resumes_the_newest_pod_of_a_name_whatever_it_resumes_first() {
    let mut fixture = fixture(true).await;
    let again = fixture.fake.put(pod().again());
    for pod in [fixture.pod.clone(), pod_ref(&again)] {
        fixture.pod = pod;
        fixture.fake.forget();
        fixture.die_at(request("restart app"), Moment::After, "StopContainer", "app#0").await;
    }
    let manifests = tempfile::tempdir().unwrap();
    let line = [
        "agent",
        "--standalone",
        "--listen=127.0.0.1:0",
        "--image-reserve=0",
        &format!("--pods-dir={}", manifests.path().display()),
        &format!("--state-dir={}", fixture.state.path().display()),
        &format!("--runtime-endpoint={}", fixture.fake.endpoint()),
    ];
    let CommandLine { args } = CommandLine::try_parse_from(line).unwrap();
    let newest = fixture.pod.uid.clone();
    let up = move |model: &Model| {
        model.running("web-0/app").iter().any(|instance| {
            let pod = instance.pod_config.metadata.as_ref().map(|metadata| metadata.uid.as_str());
            instance.attempt() == 1 && pod == Some(newest.as_str())
        })
    };
    tokio::select! {
        ended = agent::run_until(args, CancellationToken::new()) => panic!("{ended:?}"),
        () = fixture.fake.until("the newest pod runs", up) => {}
    }
}

/// No kubelet starts it: an outage longer than the deadline must not leave it down.
#[tokio::test]
async fn the_time_in_which_the_runtime_is_away_after_the_stop_does_not_count() {
    let outlast = async |request: Request, outage: u64, image: &str| {
        let fixture = Fixture::open().await;
        // A pull flushes the disk: where others write much, that takes longer than these deadlines.
        fixture.fake.model(|m| m.image("img:v2").present = true);
        fixture.fake.restart_after("StopContainer", Duration::from_secs(outage));
        fixture.succeeded(fixture.ask(request).await, image);
    };
    tokio::join!(
        outlast(short("restart app", 8), 7, "img:v1"),
        outlast(short("restart app", 8), 13, "img:v1"),
        outlast(short("swap app=img:v2", 12), 11, "img:v2"),
        outlast(short("swap app=img:v2", 20), 25, "img:v2"),
    );
}
