//! An agent whose journal fails or hangs: no gate stays closed, nothing runs twice, and no other pod waits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::pod_ref::PodRef;
use inplace::node::journal::Journal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::json;

use super::super::runtime::Fault;
use super::{Fixture, close, gate};
use crate::support::wait::until;

const OPEN: Option<(&str, &str)> = Some(("True", "InPlaceReady"));

impl Fixture {
    fn uid(&self, name: &str) -> String {
        self.api.pod("shop", name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The path of a file of a pod's journal, with the ending `json.new` or `lock`.
    fn file(&self, name: &str, end: &str) -> PathBuf {
        let hidden = if end == "json.new" { "." } else { "" };
        self.state.path().join("journal").join(format!("{hidden}{}.{end}", self.uid(name)))
    }

    /// Makes every further write to a pod's journal fail. A write in progress still succeeds.
    async fn fill(&self, name: &str) {
        let is_full = || match std::fs::create_dir(self.file(name, "json.new")) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{error}");
                false
            }
        };
        self.api.patiently("the disk is full", until(is_full)).await;
    }

    fn is_open(&self, name: &str) -> bool {
        let pod = PodRef { namespace: "shop".into(), name: name.into(), uid: self.uid(name) };
        Journal::open(self.state.path()).unwrap().load(&pod).unwrap().open.is_some()
    }

    pub(super) async fn concluded(&self, name: &str) {
        self.api.patiently("the journal has the end", until(|| !self.is_open(name))).await;
    }
}

#[tokio::test]
async fn a_disk_that_fills_up_while_a_pod_is_drained_leaves_it_in_traffic() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    let agent = fixture.agent().await;
    let request = json!({ "id": "drained", "containers": [{ "name": "app" }], "gracePeriodSeconds": 8 });
    fixture.pod_request("web-0", Some(&request.to_string()));
    fixture.drained("web-0").await;
    // The write that records when the gate was closed is the last one that succeeds.
    let file = fixture.file("web-0", "json");
    let written = || std::fs::read_to_string(&file).unwrap_or_default().contains("\"closed_at\":\"");
    fixture.api.patiently("the gate is in the journal", until(written)).await;
    fixture.fill("web-0").await;
    let status = fixture.reported("web-0", "drained", "Failed").await;
    assert_eq!(status["reason"], "JournalFailed", "{status:#}");
    fixture.api.until("an open gate", |store| gate(&store.pod("shop", "web-0").unwrap()) == OPEN).await;
    assert!(fixture.runtime.fences().is_empty() && fixture.runtime.calls("StopContainer").is_empty());
    std::fs::remove_dir(fixture.file("web-0", "json.new")).unwrap();
    fixture.concluded("web-0").await;
    agent.kill();
    // The next request is served, and the finished one is not run again.
    let _agent = fixture.agent().await;
    fixture.kubelet("web-0");
    fixture.pod_request("web-0", Some("restart app"));
    fixture.reported("web-0", "text-", "Succeeded").await;
    assert_eq!(fixture.attempt("web-0"), 1);
}

/// Long before the deadline, and at once if the request is deleted.
#[tokio::test]
async fn a_disk_that_hangs_while_a_pod_is_drained_leaves_it_in_traffic() {
    for (is_deleted, grace, phase) in [(true, 300, "Cancelled"), (false, 1, "Failed")] {
        let fixture = Arc::new(Fixture::found().await);
        fixture.pod("web-0");
        // Declared before the pipe, so that the agent ends after it even if the test fails.
        let _agent = fixture.agent().await;
        let pipe = Pipe(fixture.file("web-0", "json.new"));
        let path = pipe.0.clone();
        // From the moment at which the gate is closed.
        let hang = move |_: &mut super::Store| mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        fixture.api.on("PATCH pod/status").first(hang);
        let request = json!({ "id": "drained", "containers": [{ "name": "app" }],
            "gracePeriodSeconds": grace });
        fixture.pod_request("web-0", Some(&request.to_string()));
        fixture.drained("web-0").await;
        if is_deleted {
            fixture.pod_request("web-0", None);
        }
        let status = fixture.reported("web-0", "drained", phase).await;
        assert!(is_deleted || status["reason"] == "JournalFailed", "{status:#}");
        fixture.api.until("an open gate", |store| gate(&store.pod("shop", "web-0").unwrap()) == OPEN).await;
        assert!(fixture.runtime.fences().is_empty() && fixture.runtime.calls("StopContainer").is_empty());
        drop(pipe);
        fixture.concluded("web-0").await;
    }
}

#[tokio::test]
async fn an_image_that_was_rolled_back_on_a_full_disk_is_not_rolled_out_again() {
    let fixture = Fixture::with_crio().await;
    fixture.runtime.model(|model| model.image("img:v2").dies_after = Some((Duration::from_millis(20), 3)));
    let agent = fixture.agent().await;
    // From the moment when the journal records that the spec is about to be changed.
    let (full, journal) = (fixture.file("web-0", "json.new"), fixture.file("web-0", "json"));
    fixture.api.on("PATCH pod").times(20).first(move |_| {
        if std::fs::read_to_string(&journal).unwrap_or_default().contains("\"unanswered\":1") {
            drop(std::fs::create_dir(&full));
        }
    });
    fixture.pod_request("web-0", Some("swap app=img:v2"));
    fixture.reported("web-0", "text-", "RolledBack").await;
    let (swaps, file) = (fixture.runtime.instances("web-0/app").len(), fixture.file("web-0", "json.new"));
    assert!(file.is_dir() && fixture.is_open("web-0"));
    agent.kill();
    std::fs::remove_dir(file).unwrap();
    let _agent = fixture.agent().await;
    fixture.concluded("web-0").await;
    assert_eq!(fixture.runtime.instances("web-0/app").len(), swaps, "{:#?}", fixture.runtime.history());
}

#[tokio::test]
async fn a_journal_that_cannot_be_locked_now_is_tried_again() {
    let fixture = Arc::new(Fixture::found().await);
    fixture.pod("web-0");
    fixture.kubelet("web-0");
    let lock = fixture.file("web-0", "lock");
    let agent = fixture.agent().await;
    std::fs::create_dir_all(&lock).unwrap();
    fixture.pod_request("web-0", Some("restart app"));
    let status = fixture.reported("web-0", "text-", "Pending").await;
    assert!(status["message"].as_str().unwrap().contains("cannot be locked"), "{status:#}");
    std::fs::remove_dir(&lock).unwrap();
    fixture.reported("web-0", "text-", "Succeeded").await;
    // The same for an operation that an earlier process left open.
    fixture.runtime.on("StopContainer").fault(Fault::Hang);
    fixture.pod_request("web-0", Some("restart app #2"));
    fixture.runtime.arrived("StopContainer", "app#1").await;
    agent.kill();
    std::fs::remove_file(&lock).unwrap();
    std::fs::create_dir(&lock).unwrap();
    let _agent = fixture.agent().await;
    fixture.pod("web-1");
    fixture.kubelet("web-1");
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    std::fs::remove_dir(&lock).unwrap();
    fixture
        .runtime
        .until("the new instance", |model| model.running("web-0/app").iter().any(|c| c.attempt() == 2))
        .await;
}

/// A file that hangs: opening it for reading or writing blocks until this value is dropped. It must be dropped
/// before the agent ends, because the agent waits for its threads.
struct Pipe(PathBuf);

impl Pipe {
    fn at(path: PathBuf) -> Self {
        drop(std::fs::remove_file(&path));
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        Self(path)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The handle stays open until the file is removed, so that no open in between blocks again.
        let _open = std::fs::OpenOptions::new().read(true).write(true).open(&self.0);
        drop(std::fs::remove_file(&self.0));
    }
}

#[tokio::test]
async fn a_lock_that_hangs_on_the_disk_holds_up_its_pod_alone() {
    let fixture = Arc::new(Fixture::found().await);
    for name in ["web-0", "web-1"] {
        fixture.pod(name);
        fixture.kubelet(name);
    }
    let _agent = fixture.agent().await;
    let pipe = Pipe::at(fixture.file("web-0", "lock"));
    fixture.pod_request("web-0", Some("restart app"));
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    assert_eq!(fixture.attempt("web-0"), 0);
    drop(pipe);
    fixture.reported("web-0", "text-", "Succeeded").await;
}

/// The files hang in the initial listing, in the sweep, and when their own requests start: more often than the
/// limit of concurrent disk calls.
#[tokio::test]
async fn files_that_hang_when_the_agent_starts_hold_up_their_pods_alone() {
    let fixture = Arc::new(Fixture::found().await);
    for name in ["web-0", "web-1", "web-2"] {
        fixture.pod(name);
        fixture.kubelet(name);
    }
    let hung = ["web-0", "web-2"];
    let files = hung.map(|name| fixture.file(name, "json"));
    std::fs::create_dir_all(files[0].parent().unwrap()).unwrap();
    // Declared before the pipes, so that the agent ends after them even if the test fails.
    let _agent;
    let pipes = files.map(Pipe::at);
    for name in hung {
        fixture.pod_request(name, Some("restart app"));
    }
    _agent = fixture.agent().await;
    for name in hung {
        let status = fixture.reported(name, "text-", "Pending").await;
        assert!(status["message"].as_str().unwrap().contains("hangs"), "{status:#}");
    }
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    assert_eq!(hung.map(|name| fixture.attempt(name)), [0, 0]);
    drop(pipes);
    for name in hung {
        fixture.reported(name, "text-", "Succeeded").await;
    }
}

/// The file hangs when the agent checks a gate that an operation has left closed.
#[tokio::test]
async fn a_file_that_hangs_when_a_gate_is_read_blocks_its_pod_alone() {
    let fixture = Arc::new(Fixture::found().await);
    let _agent = fixture.agent().await;
    fixture.pod("web-1");
    fixture.kubelet("web-1");
    fixture.pod_with("web-0", |pod| close(pod, "False", annotation::GATE_DRAIN));
    let pipe = Pipe::at(fixture.file("web-0", "json"));
    // The drain lasts longer than the pause before the agent checks the other pod's gate.
    let drain = json!({ "id": "d", "containers": [{ "name": "app" }], "gracePeriodSeconds": 4 });
    fixture.pod_request("web-1", Some(&drain.to_string()));
    fixture.reported("web-1", "d", "Succeeded").await;
    drop(pipe);
}

/// The removal of one pod's fence hangs while another pod has a request.
#[tokio::test]
async fn a_sweep_that_hangs_holds_up_no_request() {
    let fixture = Arc::new(Fixture::found().await);
    for name in ["web-0", "web-1"] {
        fixture.pod(name);
        fixture.kubelet(name);
    }
    fixture.runtime.model(|m| super::super::engine::forgotten_fence(m, "web-0/app", 7));
    fixture.runtime.on("RemoveContainer").about("fence app#7").always().fault(Fault::Hang);
    let agent = fixture.agent().await;
    fixture.runtime.arrived("RemoveContainer", "fence app#7").await;
    fixture.pod_request("web-1", Some("restart app"));
    fixture.reported("web-1", "text-", "Succeeded").await;
    assert_eq!(fixture.runtime.fences().len(), 1);
    // The end of the process is not delayed either.
    let began = tokio::time::Instant::now();
    agent.stop();
    // The limit of the removal is 10 s.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
}
