//! Reads any journal file: it is an entry or an error of its own pod, the entry of the good file beside it is there, and an
//! operation that is read can be decided about and written again.

use std::path::PathBuf;

use inplace::api::pod_ref::PodRef;
use inplace::node::journal::{Entry, Journal};
use inplace::operation::report;
use inplace::operation::snapshot::{Container, Owner, Sandbox, Snapshot, State};
use inplace::operation::state::Operation;
use inplace::process::panics;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use super::decisions::go_on;

/// More decisions in a row than any operation needs.
const MAX_DECISIONS: usize = 64;

/// The journal with a good file, and the entry in it. The folder is removed with it.
struct Fixture {
    _folder: TempDir,
    journal: Journal,
    good: Entry,
    runtime: Runtime,
}

impl Fixture {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let journal = Journal::open(folder.path()).expect("a journal");
        let good = Entry::new(pod("good"));
        journal.write(&good).expect("it can be written");
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { _folder: folder, journal, good, runtime }
    }
}

thread_local! {
    static FIXTURE: Fixture = Fixture::new();
}

fn pod(uid: &str) -> PodRef {
    PodRef { namespace: "shop".to_owned(), name: "web".to_owned(), uid: uid.to_owned() }
}

pub(super) fn run(data: &[u8]) {
    FIXTURE.with(|fixture| read(fixture, data));
}

/// Reads `data` as the file of another pod, beside the good one.
fn read(Fixture { journal, good, runtime, .. }: &Fixture, data: &[u8]) {
    let path = journal.path("other");
    let panicked: PathBuf = path.with_extension("panics");
    std::fs::write(&path, data).and_then(|()| std::fs::write(&panicked, data)).expect("a disk");
    let all = runtime.block_on(journal.all()).expect("the folder can be listed");
    assert_eq!(all.len(), 2, "each file is an entry or an error");
    let mut entries = all.into_iter().flatten();
    let is_good = |entry: &Entry| entry == good;
    let (first, second) = (entries.next(), entries.next());
    assert!([&first, &second].into_iter().flatten().any(is_good), "the good entry is lost");
    let Some(entry) = [first, second].into_iter().flatten().find(|entry| !is_good(entry)) else { return };
    assert_eq!(journal.path(&entry.pod.uid), path, "the entry of a pod whose file has another name");
    let again = journal.load(&entry.pod).expect("it was read before");
    assert_eq!(again, entry);
    let Some(operation) = entry.open.clone() else { return };
    panics::count(&panicked, &operation.request.id);
    // The measurements of hooks have numbers that may differ in their last digit once they are written and read.
    let has_hooks = operation.pre_hook.is_some() || operation.post_hook.is_some();
    decide(operation);
    journal.write(&entry).expect("it can be written");
    let written = journal.load(&entry.pod).expect("it was written here");
    assert!(has_hooks || written.open == entry.open, "what was read is read again as the same");
}

/// Continues the operation as the agent does after its start, in a pod that is gone, and in one whose containers are as the
/// operation knows them, or have ended.
fn decide(mut operation: Operation) {
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    operation.resume(now);
    report::status(&operation);
    operation.owed_gate(None);
    let containers = |state: State| -> Vec<Container> {
        let instance = |target: &inplace::operation::state::Target| Container {
            id: target.from.container_id.clone(),
            name: target.name.clone(),
            fence: false,
            holder: false,
            standby: false,
            attempt: target.from.attempt,
            state,
            image: target.from.image.clone(),
            image_id: target.from.image_id.clone(),
            spec_hash: target.from_hash.clone(),
            operation: None,
            created_at: operation.begun_at,
            started_at: Some(operation.begun_at),
            finished_at: (state == State::Exited).then_some(now),
            exit_code: 1,
            start_error: None,
            grace: std::time::Duration::from_secs(target.grace_seconds),
            has_pre_stop: target.has_pre_stop,
            ports: Vec::new(),
        };
        operation.targets.iter().map(instance).collect()
    };
    let sandbox = Sandbox {
        id: operation.sandbox_id.clone(),
        pod: operation.pod.clone(),
        ready: true,
        owner: if operation.unsupervised { Owner::NodeRun } else { Owner::Kubelet },
    };
    for (sandbox, containers) in [
        (None, Vec::new()),
        (Some(&sandbox), Vec::new()),
        (Some(&sandbox), containers(State::Running)),
        (Some(&sandbox), containers(State::Exited)),
    ] {
        let snapshot = Snapshot::of_runtime(sandbox.cloned(), containers);
        go_on(operation.clone(), &snapshot, now, MAX_DECISIONS);
    }
}
