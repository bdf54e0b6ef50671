//! Unit tests: what is written and read, and which files are not used.

use serde_json::json;

use super::*;
use crate::api::status::Phase;

fn pod(uid: &str) -> PodRef {
    PodRef { namespace: "default".into(), name: "web".into(), uid: uid.into() }
}

fn status(id: &str) -> Status {
    Status {
        id: id.into(),
        phase: Phase::Succeeded,
        step: None,
        reason: String::new(),
        message: String::new(),
        started_at: None,
        finished_at: None,
        group: None,
        containers: Vec::new(),
    }
}

#[test]
fn an_entry_comes_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let mut entry = journal.load(&pod("a")).unwrap();
    assert_eq!(entry, Entry::new(pod("a")));
    let mode = std::fs::metadata(folder.path().join("journal")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    entry.conclude(status("one"));
    journal.write(&entry).unwrap();
    assert_eq!(journal.load(&pod("a")).unwrap(), entry);
    assert!(entry.has_finished("one") && !entry.has_finished("two"));
}

/// The status of a request has only its own containers.
#[test]
fn what_operations_have_ended_is_known_after_requests_for_other_containers() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let of = |id: &str, name: &str, stopped: bool| {
        let stopped_at = if stopped { json!("2026-11-20T10:00:00Z") } else { json!(null) };
        let report = json!({"name": name, "action": "Restart", "engine": "Stop", "stoppedAt": stopped_at,
            "from": {"image": "", "imageID": "", "containerID": format!("{name}-{id}"), "attempt": 0}});
        Status { containers: vec![serde_json::from_value(report).unwrap()], ..status(id) }
    };
    let mut entry = Entry::new(pod("a"));
    for ended in [of("1", "app", true), of("2", "side", true), of("3", "app", false)] {
        entry.conclude(ended);
        journal.write(&entry).unwrap();
        entry = journal.load(&pod("a")).unwrap();
    }
    let ended = |entry: &Entry, name: &str| entry.ended(name).map(|ended| ended.id);
    assert_eq!(
        (ended(&entry, "app").as_deref(), ended(&entry, "side").as_deref()),
        (Some("app-1"), Some("side-2"))
    );
    let late =
        Status { finished_at: Some("2026-11-20T10:20:00Z".parse().unwrap()), ..of("4", "side", false) };
    entry.conclude(late);
    assert_eq!((ended(&entry, "app"), ended(&entry, "side")), (None, None), "too long ago to matter");
}

#[test]
fn finished_ids_are_bounded_and_the_newest_stay() {
    let mut entry = Entry::new(pod("a"));
    (0..200).for_each(|n| entry.conclude(status(&n.to_string())));
    assert_eq!(entry.finished.len(), MAX_FINISHED);
    assert!(entry.has_finished("199") && !entry.has_finished("0"));
}

#[tokio::test]
async fn a_bad_file_is_an_error_for_its_pod_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    journal.write(&Entry::new(pod("good"))).unwrap();
    for (uid, text, expect) in [
        ("torn", &br#"{"version":1,"pod":{"names"#[..], "damaged"),
        ("empty", b"", "damaged"),
        ("future", br#"{"version":7}"#, "version 7"),
        ("other", br#"{"hello":1}"#, "no version"),
        ("list", br#"{"version":1,"pod":["hunter2"],"finished":[]}"#, "pod: a value has the wrong type"),
        ("ids", br#"{"version":1,"pod":{"namespace":"a","name":"b","uid":"c"}}"#, "finished"),
        (
            "open",
            br#"{"version":1,"pod":{"namespace":"a","name":"b","uid":"c"},"finished":[],"open":{}}"#,
            "open: missing field",
        ),
    ] {
        std::fs::write(journal.path(uid), text).unwrap();
        let error = journal.load(&pod(uid)).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    }
    let all = journal.all().await.unwrap();
    assert_eq!(all.iter().filter(|entry| entry.is_ok()).count(), 1);
    assert_eq!(all.len(), 8);
    assert!(journal.load(&pod("good")).is_ok());
}

#[test]
fn what_another_release_has_written_otherwise_is_left_out_and_what_it_has_added_stays() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let text = r#"{"version":1,"pod":{"namespace":"default","name":"web","uid":"a","zone":"b"},"finished":["one"],
        "intent":{"Levitate":{"container":"app"}},"last":{"id":7},"owed_gate":"Ajar","added":{"x":[1]}}"#;
    std::fs::write(journal.path("a"), text).unwrap();
    let mut entry = journal.load(&pod("a")).unwrap();
    assert_eq!((&entry.open, &entry.intent, &entry.last, entry.owed_gate), (&None, &None, &None, None));
    assert!(entry.has_finished("one") && entry.foreign.is_none());
    entry.conclude(status("two"));
    journal.write(&entry).unwrap();
    let written: Value = serde_json::from_slice(&std::fs::read(journal.path("a")).unwrap()).unwrap();
    assert_eq!((&written["added"]["x"][0], &written["version"]), (&1.into(), &1.into()));
    assert_eq!(journal.load(&pod("a")).unwrap(), entry);
}

#[test]
fn an_operation_that_is_not_understood_keeps_its_id() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let text = r#"{"version":1,"pod":{"namespace":"default","name":"web","uid":"a"},"finished":[],
        "open":{"request":{"id":"one","secret":"hunter2","containers":[]},"targets":[{"touched":false}]}}"#;
    for (text, touched) in [
        (text.to_owned(), false),
        (text.replace("false", "true"), true),
        (text.replace("targets", "aims"), true),
    ] {
        std::fs::write(journal.path("a"), text).unwrap();
        let entry = journal.load(&pod("a")).unwrap();
        let foreign = Foreign { id: "one".into(), why: "unknown field `secret`".into(), touched };
        assert_eq!((entry.open, entry.foreign), (None, Some(foreign)));
    }
}

#[test]
fn one_process_works_on_a_pod() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let held = journal.hold(&pod("a")).unwrap();
    assert!(matches!(journal.hold(&pod("a")), Err(JournalError::Busy(_))));
    journal.hold(&pod("b")).unwrap();
    drop(held);
    journal.hold(&pod("a")).unwrap();
}

/// A process may remove the file between the opening and the locking of another one.
#[test]
fn a_lock_file_that_was_removed_is_no_lock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lock");
    let file = std::fs::File::create(&path).unwrap();
    assert!(is_at(&file, &path));
    std::fs::remove_file(&path).unwrap();
    assert!(!is_at(&file, &path));
    let _next = std::fs::File::create(&path).unwrap();
    assert!(!is_at(&file, &path));
}

#[test]
fn a_lock_file_that_exists_is_locked_on_a_read_only_disk() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lock");
    let refused = || lock_file(&path, Err(io::ErrorKind::ReadOnlyFilesystem.into()));
    assert_eq!(refused().unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    drop(lock_file(&path, std::fs::File::create(&path)).unwrap());
    let _held = Flock::lock(refused().unwrap(), FlockArg::LockExclusiveNonblock).unwrap();
    assert!(Flock::lock(refused().unwrap(), FlockArg::LockExclusiveNonblock).is_err());
    let other = lock_file(&path, Err(io::ErrorKind::PermissionDenied.into()));
    assert_eq!(other.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
}

/// On a read-only disk that would fail.
#[test]
fn the_permissions_of_a_folder_are_set_once() {
    let state = tempfile::tempdir().unwrap();
    let (folder, probe) = (state.path().join("journal"), state.path().join("probe"));
    Journal::open(state.path()).unwrap();
    let changed = |path: &Path| {
        let of = std::fs::metadata(path).unwrap();
        (of.ctime(), of.ctime_nsec())
    };
    let before = changed(&folder);
    // The clock of the file system advances in steps.
    std::fs::write(&probe, "").unwrap();
    while changed(&probe) <= before {
        std::fs::write(&probe, "x").unwrap();
    }
    Journal::open(state.path()).unwrap();
    assert_eq!(changed(&folder), before);
    std::fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
    Journal::open(state.path()).unwrap();
    assert_eq!(std::fs::metadata(&folder).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn a_uid_cannot_lead_out_of_the_folder() {
    let journal = Journal::open(tempfile::tempdir().unwrap().path()).unwrap();
    assert_eq!(journal.path("../../etc/x").parent(), journal.path("a").parent());
}

#[test]
fn the_journal_of_another_pod_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let vault = PodRef { namespace: "bank".into(), name: "vault".into(), uid: "u1".into() };
    journal.write(&Entry::new(vault.clone())).unwrap();
    for (namespace, name) in [("shop", "vault"), ("bank", "evil")] {
        let evil = PodRef { namespace: namespace.into(), name: name.into(), uid: "u1".into() };
        assert!(matches!(journal.load(&evil), Err(JournalError::OtherPod { .. })));
    }
    assert_eq!(journal.load(&vault).unwrap().pod, vault);
}

#[tokio::test]
async fn a_copy_of_a_file_under_another_name_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let mut good = Entry::new(pod("good"));
    journal.write(&good).unwrap();
    std::fs::copy(journal.path("good"), journal.path("copy")).unwrap();
    good.conclude(status("one"));
    journal.write(&good).unwrap();
    // This name would lead to the file of the pod `good_1`.
    std::fs::copy(journal.path("good"), folder.path().join("journal/good 1.json")).unwrap();
    journal.write(&Entry::new(pod("good_1"))).unwrap();
    let (read, unread): (Vec<_>, Vec<_>) = journal.all().await.unwrap().into_iter().partition(Result::is_ok);
    let mut read: Vec<_> = read.into_iter().map(Result::unwrap).collect();
    read.sort_by(|one, other| one.pod.uid.cmp(&other.pod.uid));
    assert_eq!(read, [good, Entry::new(pod("good_1"))]);
    let unread: Vec<_> = unread.into_iter().map(|entry| entry.unwrap_err().to_string()).collect();
    assert!(unread.len() == 1 && unread[0].contains("copy.json"), "{unread:?}");
    assert!(unread[0].contains("whose file has another name"), "{unread:?}");
}
