//! A disk that accepts a write of the journal and never finishes it: a container that is down comes up all the same.

use std::fs::{File, OpenOptions};
use std::path::PathBuf;

use inplace::api::status::Phase;
use inplace::node::drive::{Observer, OperationEvent};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::{Fixture, nobody, request, shared_pod, short};

/// A FIFO in place of the file that a pod's journal is written to: opening it for writing blocks until this is dropped.
struct Stuck(PathBuf);

impl Stuck {
    fn path(fixture: &Fixture) -> PathBuf {
        fixture.node.journal.path("").with_file_name(format!(".{}.json.new", fixture.pod.uid))
    }

    fn at(path: PathBuf) -> Self {
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        Self(path)
    }

    /// Unblocks the writer, which then gets the error that this is not a regular file.
    fn release(&self) -> Option<File> {
        OpenOptions::new().read(true).write(true).open(&self.0).ok()
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        drop(self.release());
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn a_container_that_is_down_does_not_wait_for_the_journal() {
    let fixture = Fixture::of(shared_pod()).await;
    let path = Stuck::path(&fixture);
    let stuck = std::sync::Arc::new(std::sync::Mutex::new(None));
    let set = std::sync::Arc::clone(&stuck);
    fixture.fake.after("StopContainer", move |_| *set.lock().unwrap() = Some(Stuck::at(path.clone())));
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let work =
        tokio::spawn(async move { node.carry_out(&pod, request("restart app"), control, &nobody()).await });
    let up =
        |m: &super::super::runtime::Model| m.running("app").iter().any(|instance| instance.attempt() == 1);
    fixture.fake.until("the replacement runs", up).await;
    // It ends, and writes that, as soon as the disk allows.
    let stuck = stuck.lock().unwrap().take().unwrap();
    let released = stuck.release();
    let ended = fixture.patiently(work).await.unwrap();
    drop(released);
    let down = ended.as_ref().ok().and_then(|status| status.containers[0].downtime_ms).unwrap();
    // Without a limit for the write the replacement never runs. The disk may be slow as well.
    assert!(down < 10_000, "{down} ms");
    fixture.succeeded(ended, "img:v1");
}

#[tokio::test]
async fn nothing_is_touched_while_the_journal_cannot_be_written() {
    let fixture = Fixture::of(shared_pod()).await;
    let stuck = Stuck::at(Stuck::path(&fixture));
    let (report, mut reported) = tokio::sync::watch::channel(None);
    let observer: Observer = std::sync::Arc::new(move |operation_event| {
        if let OperationEvent::Status(status) = operation_event {
            report.send_replace(Some(status.clone()).filter(|status| status.phase.is_terminal()));
        }
    });
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let request = short("restart app", 8);
    let work = tokio::spawn(async move { node.carry_out(&pod, request, control, &observer).await });
    let ended = fixture.patiently(reported.wait_for(Option::is_some)).await.unwrap().clone().unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "JournalFailed"), "{ended:#?}");
    assert!(ended.message.contains("touched"), "{}", ended.message);
    fixture.untouched();
    assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());
    // The pod stays locked until the journal has the end: no other process finds the operation open.
    assert!(!work.is_finished() && fixture.node.journal.hold(&fixture.pod).is_err());
    drop(stuck);
    assert_eq!(fixture.patiently(work).await.unwrap().unwrap(), ended);
    assert!(!fixture.is_open());
}
