//! A disk that accepts a write of the journal and never finishes it: a container that is down comes up all the same.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use inplace::api::status::{Phase, Status};
use inplace::node::Error;
use inplace::node::drive::{Observer, OperationEvent};
use inplace::operation::outcome::Withdrawal;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tokio::sync::watch;

use super::{Fixture, nobody, request, shared_pod, short};
use crate::support::wait::until;

/// A full FIFO in place of the file that a pod's journal is written to: the write blocks until this is dropped, and
/// then fails.
struct Stuck {
    path: PathBuf,
    /// The only reader.
    fifo: Option<File>,
}

impl Stuck {
    fn path(fixture: &Fixture) -> PathBuf {
        fixture.node.journal.path("").with_file_name(format!(".{}.json.new", fixture.pod.uid))
    }

    fn at(path: PathBuf) -> Self {
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let mut fifo = options.open(&path).unwrap();
        while fifo.write_all(&[0; 4096]).is_ok() {}
        Self { path, fifo: Some(fifo) }
    }

    /// True once a write hangs: it has opened the file as well.
    fn hangs(&self) -> bool {
        let path = self.path.canonicalize().unwrap();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter(|file| std::fs::read_link(file.path()).is_ok_and(|of| of == path)).count() > 1
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        // Before the write fails, so that the next one makes a regular file.
        let _ = std::fs::remove_file(&self.path);
        drop(self.fifo.take());
    }
}

/// An observer, and the terminal status that it has received.
fn terminal() -> (Observer, watch::Receiver<Option<Status>>) {
    let (report, reported) = watch::channel(None);
    let observer: Observer = std::sync::Arc::new(move |operation_event| {
        if let OperationEvent::Status(status) = operation_event {
            report.send_replace(Some(status.clone()).filter(|status| status.phase.is_terminal()));
        }
    });
    (observer, reported)
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
    drop(stuck.lock().unwrap().take().unwrap());
    let ended = fixture.patiently(work).await.unwrap();
    let down = ended.as_ref().ok().and_then(|status| status.containers[0].downtime_ms).unwrap();
    // Without a limit for the write the replacement never runs. The disk may be slow as well.
    assert!(down < 10_000, "{down} ms");
    fixture.succeeded(ended, "img:v1");
}

#[tokio::test]
async fn nothing_is_touched_while_the_journal_cannot_be_written() {
    let fixture = Fixture::of(shared_pod()).await;
    let stuck = Stuck::at(Stuck::path(&fixture));
    let (observer, mut reported) = terminal();
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

/// The deadline is far.
#[tokio::test]
async fn a_signal_ends_the_wait_for_the_journal_while_nothing_is_touched() {
    for is_withdrawn in [true, false] {
        let fixture = Fixture::of(shared_pod()).await;
        let stuck = Stuck::at(Stuck::path(&fixture));
        let (observer, mut reported) = terminal();
        let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
        let request = short("restart app", 3600);
        let work = tokio::spawn(async move { node.carry_out(&pod, request, control, &observer).await });
        fixture.patiently(until(|| stuck.hangs())).await;
        if is_withdrawn {
            fixture.withdraw.send_replace(Some(Withdrawal::Deleted));
            let ended = fixture.patiently(reported.wait_for(Option::is_some)).await.unwrap().clone();
            assert_eq!(ended.map(|status| status.phase), Some(Phase::Cancelled));
            drop(stuck);
            assert_eq!(fixture.patiently(work).await.unwrap().unwrap().phase, Phase::Cancelled);
            assert!(!fixture.is_open());
        } else {
            fixture.shutdown.cancel();
            let ended = fixture.patiently(work).await.unwrap();
            assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
            drop(stuck);
        }
        fixture.untouched();
        assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());
    }
}
