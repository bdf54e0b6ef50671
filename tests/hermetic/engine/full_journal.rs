//! A journal that refuses writes, as on a full disk: the end of an operation is written as soon as writes succeed
//! again, and nothing is done twice.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inplace::api::status::{Phase, Status};
use inplace::node::drive::{Observer, OperationEvent};
use inplace::node::{Error, Node};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Fixture, request};

/// A directory in place of the file that a pod's journal is written to.
pub(super) struct Full(PathBuf);

impl Full {
    pub(super) fn of(fixture: &Fixture) -> Self {
        Self(fixture.node.journal.path("").with_file_name(format!(".{}.json.new", fixture.pod.uid)))
    }

    /// From the next `call` on, nothing can be written.
    pub(super) fn after(&self, fixture: &Fixture, call: &'static str) {
        let path = self.0.clone();
        fixture.fake.after(call, move |_| std::fs::create_dir(&path).unwrap());
    }

    pub(super) fn free(&self) {
        std::fs::remove_dir(&self.0).unwrap();
    }
}

/// A request that is executed concurrently with the test.
struct Work {
    ended: JoinHandle<Result<Status, Error>>,
    status: watch::Receiver<Option<Status>>,
}

impl Work {
    fn begin(fixture: &Fixture, text: &str) -> Self {
        let (report, status) = watch::channel(None);
        let observer: Observer = Arc::new(move |operation_event| {
            if let OperationEvent::Status(status) = operation_event {
                report.send_replace(Some(status.clone()).filter(|status| status.phase.is_terminal()));
            }
        });
        let (node, pod, control, request) =
            (fixture.node.clone(), fixture.pod.clone(), fixture.control(), request(text));
        let ended = tokio::spawn(async move { node.carry_out(&pod, request, control, &observer).await });
        Self { ended, status }
    }

    /// The terminal status, which does not wait for the journal.
    async fn reported(&mut self, fixture: &Fixture) -> Status {
        fixture.patiently(self.status.wait_for(Option::is_some)).await.unwrap().clone().unwrap()
    }
}

/// A shop in which `img:v3` exits at once.
async fn fixture() -> Fixture {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.image("img:v3").dies_after = Some((Duration::from_millis(50), 3)));
    fixture
}

#[tokio::test]
async fn the_end_is_written_when_the_disk_is_free_again_and_nothing_runs_again() {
    for (text, phase, starts) in
        [("restart app", Phase::Succeeded, 1), ("swap app=img:v3", Phase::RolledBack, 2)]
    {
        let mut fixture = fixture().await;
        let full = Full::of(&fixture);
        full.after(&fixture, "StopContainer");
        let mut work = Work::begin(&fixture, text);
        let reported = work.reported(&fixture).await;
        assert_eq!((reported.phase, fixture.starts()), (phase, starts), "{reported:#?}");
        assert!(fixture.fake.fences().is_empty());
        // The pod stays locked until the journal has the end: no other process finds the operation open.
        assert!(!work.ended.is_finished() && fixture.node.journal.hold(&fixture.pod).is_err(), "{text}");
        full.free();
        let ended = fixture.patiently(work.ended).await.unwrap().unwrap();
        assert_eq!(ended, reported);
        fixture.next_process();
        assert!(fixture.resume().await.unwrap().is_none());
        fixture.sane(text);
        assert_eq!(fixture.starts(), starts);
    }
}

/// A process that is asked to end while the disk is full does not wait for it.
#[tokio::test]
async fn a_process_that_is_to_end_does_not_wait_for_a_full_disk() {
    let fixture = fixture().await;
    let full = Full::of(&fixture);
    full.after(&fixture, "StopContainer");
    let mut work = Work::begin(&fixture, "restart app");
    work.reported(&fixture).await;
    fixture.shutdown.cancel();
    assert_eq!(fixture.patiently(work.ended).await.unwrap().unwrap().phase, Phase::Succeeded);
}

/// If another process has published the end of an operation that the journal still holds open, that end counts.
#[tokio::test]
async fn an_open_operation_whose_end_is_published_is_not_carried_on() {
    for published in [true, false] {
        let mut fixture = fixture().await;
        let full = Full::of(&fixture);
        full.after(&fixture, "StopContainer");
        let mut work = Work::begin(&fixture, "swap app=img:v3");
        let reported = work.reported(&fixture).await;
        work.ended.abort();
        drop(work.ended.await);
        full.free();
        fixture.next_process();
        assert!(fixture.is_open());
        let other = Status { id: "another".to_owned(), ..reported.clone() };
        let answered = Some(if published { reported.clone() } else { other });
        fixture.node = Node { answered, ..fixture.node.clone() };
        let resumed = fixture.resume().await.unwrap().unwrap();
        assert_eq!((resumed.phase, fixture.starts() > 2), (Phase::RolledBack, !published), "{resumed:#?}");
        fixture.sane("resumed");
        assert!(fixture.node.journal.load(&fixture.pod).unwrap().has_finished(&reported.id));
    }
}
