//! The checker finds each kind of violation in a history that has it, and none in the same history without it.

use std::{fs, os::unix::fs::symlink, path::Path};

use super::*;
use crate::{cluster::broken_bait, soak::history::Sandbox};

fn instance(id: &str, attempt: u32, started_at: i64, finished_at: i64) -> Instance {
    Instance {
        id: id.to_owned(),
        uid: "pod".to_owned(),
        name: "app".to_owned(),
        attempt,
        is_running: finished_at == 0,
        started_at: started_at * SECOND,
        finished_at: finished_at * SECOND,
        ..Instance::default()
    }
}

fn history(instances: Vec<Instance>) -> History {
    let mut history = History::default();
    history.fold(0, 100 * SECOND, instances, Vec::new());
    history
}

fn span(fault: Fault, began: i64, ended: i64) -> FaultSpan {
    FaultSpan { fault, node: 0, began: began * SECOND, ended: Some(ended * SECOND) }
}

#[test]
fn two_at_once_are_found_by_the_times_of_the_runtime() {
    let count = |instances| duplicates(&history(instances)).len();
    assert_eq!(count(vec![instance("a", 0, 1, 5), instance("b", 1, 5, 0)]), 0);
    assert_eq!(count(vec![instance("a", 0, 1, 6), instance("b", 1, 5, 0)]), 1);
    assert_eq!(count(vec![instance("a", 0, 1, 0), instance("b", 1, 5, 6)]), 1);
    // A short one beside a long one, with another one between the two.
    assert_eq!(count(vec![instance("a", 0, 1, 0), instance("b", 1, 5, 6), instance("c", 2, 7, 8)]), 2);
    // Never started.
    assert_eq!(count(vec![instance("a", 0, 1, 0), instance("b", 1, 0, 0)]), 0);
    let fence = Instance { is_fence: true, ..instance("b", 3, 5, 0) };
    assert_eq!(count(vec![instance("a", 0, 1, 0), fence]), 0);
    let standby = Instance { is_standby: true, name: "inplace-standby".to_owned(), ..instance("b", 0, 5, 0) };
    assert_eq!(count(vec![instance("a", 0, 1, 0), standby]), 0);
    let elsewhere = Instance { uid: "other".to_owned(), ..instance("b", 0, 5, 0) };
    assert_eq!(count(vec![instance("a", 0, 1, 0), elsewhere]), 0);
}

#[test]
fn one_that_was_removed_before_its_end_was_seen_ran_until_it_was_last_seen() {
    for (started, found) in [(11, 0), (9, 1)] {
        let mut history = History::default();
        history.fold(0, 10 * SECOND, vec![instance("a", 0, 1, 0)], Vec::new());
        history.fold(0, 12 * SECOND, vec![instance("b", 1, started, 0)], Vec::new());
        assert_eq!(duplicates(&history).len(), found, "{started}");
        assert_eq!(history.present("pod", "app").count(), 1);
    }
}

#[test]
fn another_sandbox_is_found_unless_the_node_was_rebooted() {
    let sandbox = |id: &str, created_at: i64| Sandbox {
        id: id.to_owned(),
        uid: "pod".to_owned(),
        created_at: created_at * SECOND,
        ..Sandbox::default()
    };
    let mut history = History::default();
    history.fold(0, 900 * SECOND, Vec::new(), vec![sandbox("a", 10), sandbox("b", 500)]);
    assert_eq!(replaced_sandboxes(&history, &[]).len(), 1);
    assert_eq!(replaced_sandboxes(&history, &[span(Fault::Reboot, 520, 530)]).len(), 1);
    assert_eq!(replaced_sandboxes(&history, &[span(Fault::Kill(Part::Containerd), 490, 495)]).len(), 1);
    assert_eq!(replaced_sandboxes(&history, &[span(Fault::Reboot, 490, 495)]).len(), 0);
    let mut one = History::default();
    one.fold(0, 900 * SECOND, Vec::new(), vec![sandbox("a", 10)]);
    assert_eq!(replaced_sandboxes(&one, &[]).len(), 0);
}

fn ended(operation: Op, phase: Phase, reason: &str, started: usize) -> Ended {
    let [old, new] = ["app:v1", "app:v2"].map(str::to_owned);
    Ended {
        operation,
        pod: "web".to_owned(),
        node: 0,
        id: "1".to_owned(),
        phase,
        reason: reason.to_owned(),
        message: String::new(),
        deadline: 120 * SECOND,
        asked: 1_000 * SECOND,
        ended: 1_010 * SECOND,
        settled: 1_011 * SECOND,
        started,
        first: None,
        images: if phase == Phase::Succeeded { [old, new.clone(), new] } else { [old.clone(), new, old] },
    }
}

#[test]
fn a_wrong_end_is_found() {
    let agent = [span(Fault::Kill(Part::Agent), 1_001, 1_005)];
    let runtime = [span(Fault::Kill(Part::Containerd), 1_001, 1_005)];
    let disk = [span(Fault::FullDisk, 1_001, 1_005)];
    let none = &[][..];
    for (end, faults, is_wrong) in [
        (ended(Op::Restart, Phase::Succeeded, "", 1), none, false),
        (ended(Op::Restart, Phase::Succeeded, "", 2), none, true),
        (ended(Op::Restart, Phase::Succeeded, "", 0), none, true),
        (ended(Op::Restart, Phase::Succeeded, "", 2), &agent, true),
        (ended(Op::Restart, Phase::Succeeded, "", 0), &agent, true),
        (ended(Op::Restart, Phase::Succeeded, "", 3), &runtime, false),
        (ended(Op::Restart, Phase::Succeeded, "", 4), &runtime, true),
        (ended(Op::Restart, Phase::Failed, "JournalFailed", 0), none, true),
        (ended(Op::Restart, Phase::Failed, "JournalFailed", 0), &agent, true),
        (ended(Op::Restart, Phase::Failed, "JournalFailed", 0), &runtime, true),
        (ended(Op::Restart, Phase::Failed, "JournalFailed", 0), &disk, false),
        (ended(Op::Restart, Phase::Failed, "StartFailed", 0), &disk, true),
        (ended(Op::Restart, Phase::Failed, "StartFailed", 6), &runtime, false),
        (ended(Op::Restart, Phase::Failed, "StartFailed", 7), &runtime, true),
        (ended(Op::Restart, Phase::Refused, "StartFailed", 0), &runtime, true),
        (ended(Op::SwapToCrash, Phase::RolledBack, "Exited", 4), none, false),
        (ended(Op::SwapToCrash, Phase::RolledBack, "Exited", 5), none, true),
        (ended(Op::SwapToCrash, Phase::RolledBack, "NotReady", 3), none, true),
        (ended(Op::SwapToCrash, Phase::Succeeded, "", 1), &runtime, true),
        (ended(Op::Unknown, Phase::Refused, "UnknownContainer", 0), none, false),
        (ended(Op::Unknown, Phase::Refused, "UnknownContainer", 1), &agent, true),
        (ended(Op::HookFails, Phase::Failed, "PreHookFailed", 0), none, false),
        (ended(Op::HookFails, Phase::Succeeded, "", 1), none, true),
    ] {
        assert_eq!(wrong_end(&end, faults).is_some(), is_wrong, "{end:?} {faults:?}");
    }
    // A fault of another node explains nothing, one of the control plane does.
    for (fault, is_wrong) in [(Fault::Kill(Part::Containerd), true), (Fault::Kill(Part::Etcd), false)] {
        let elsewhere = [FaultSpan { node: 1, ..span(fault, 1_001, 1_005) }];
        let end = ended(Op::Restart, Phase::Failed, "GateFailed", 0);
        assert_eq!(wrong_end(&end, &elsewhere).is_some(), is_wrong);
    }
    for text in ["The running containers were not touched", "Nothing was touched"] {
        let mut end = ended(Op::HookFails, Phase::Failed, "PreHookFailed", 1);
        assert!(wrong_end(&end, &[]).is_none());
        end.message = format!("hook x: failed. {text}");
        assert!(wrong_end(&end, &[]).is_some(), "{text}");
        end.started = 0;
        assert!(wrong_end(&end, &[]).is_none(), "{text}");
    }
    let mut end = ended(Op::Swap, Phase::Succeeded, "", 1);
    end.images[2] = end.images[0].clone();
    assert!(wrong_end(&end, &[]).is_some());
}

#[test]
fn a_request_that_was_replaced_has_an_instance_only_if_it_was_carried_out() {
    let disk = [span(Fault::FullDisk, 1_001, 1_005)];
    let is_wrong = |first, started| {
        wrong_end(&Ended { first, ..ended(Op::Replaced, Phase::Succeeded, "", started) }, &[]).is_some()
    };
    for first in [None, Some(Phase::Succeeded), Some(Phase::Failed)] {
        assert!(!is_wrong(first, 1) && !is_wrong(first, 2) && is_wrong(first, 3), "{first:?}");
    }
    for first in [Phase::Cancelled, Phase::Refused] {
        assert!(!is_wrong(Some(first), 1) && is_wrong(Some(first), 2), "{first:?}");
    }
    for (first, started, is_wrong) in [
        (Phase::Succeeded, 1, false),
        (Phase::Succeeded, 2, true),
        (Phase::Cancelled, 0, false),
        (Phase::Cancelled, 1, true),
    ] {
        let message = "the journal cannot be written. Nothing was touched".to_owned();
        let end = ended(Op::Replaced, Phase::Failed, "JournalFailed", started);
        let end = Ended { first: Some(first), message, ..end };
        assert_eq!(wrong_end(&end, &disk).is_some(), is_wrong, "{first:?} {started}");
    }
}

#[test]
fn a_fault_explains_only_what_it_can_cause_while_it_is_felt() {
    let end = |reason: &str| ended(Op::Restart, Phase::Failed, reason, 0);
    let is_explained =
        |reason, fault, from, to| explanation(&end(reason), &[span(fault, from, to)]).is_some();
    let disk = Fault::FullDisk;
    assert!(is_explained("JournalFailed", disk, 990, 996) && !is_explained("JournalFailed", disk, 980, 990));
    assert!(!is_explained("JournalFailed", disk, 1_012, 1_015));
    let containerd = Fault::Kill(Part::Containerd);
    assert!(
        is_explained("StopFailed", containerd, 970, 980)
            && !is_explained("SandboxGone", containerd, 970, 980)
    );
    assert!(is_explained("SandboxGone", Fault::Reboot, 1_001, 1_002));
    assert!(is_explained("DeadlineExceeded", Fault::Clock(-3_600), 1_001, 1_002));
    assert!(!is_explained("NotReady", Fault::Clock(-3_600), 1_001, 1_002));
    assert!(is_explained("NotReady", Fault::Clock(3_600), 1_001, 1_002));
    // Two faults of the agent that lasted for more than half of the deadline, and two shorter ones.
    for (seconds, is_explained) in [(40, true), (8, false)] {
        let frozen = Fault::Freeze(Part::Agent);
        let faults = [span(frozen, 1_001, 1_001 + seconds), span(frozen, 1_050, 1_050 + seconds)];
        let end = Ended { ended: 1_120 * SECOND, ..end("DeadlineExceeded") };
        assert_eq!(explanation(&end, &faults).is_some(), is_explained, "{seconds}");
    }
    let success = ended(Op::HookFails, Phase::Succeeded, "", 1);
    assert!(explanation(&success, &[span(Fault::Reboot, 1_001, 1_002)]).is_none());
    let disk = [span(disk, 1_001, 1_002)];
    assert_eq!(end_of(&end("JournalFailed"), &disk), "Failed/JournalFailed by FullDisk");
    assert_eq!(end_of(&end("Exited"), &disk), "Failed/Exited");
    assert_eq!(end_of(&success, &disk), "Succeeded");
}

#[test]
fn a_rollout_that_starts_not_one_instance_in_a_pod_is_found() {
    let runtime = [span(Fault::Kill(Part::Containerd), 10, 15)];
    let is_wrong = |started, faults| wrong_number(started, 0, 5 * SECOND, 20 * SECOND, faults);
    assert!(is_wrong(0, &[]) && !is_wrong(1, &[]) && is_wrong(2, &[]));
    assert!(!is_wrong(0, &runtime) && !is_wrong(3, &runtime) && is_wrong(4, &runtime));
}

#[test]
fn another_pod_and_a_restart_without_a_request_are_found_unless_the_runtime_or_a_rollback_explains_it() {
    let settled =
        |uid: &str, id: &str| Settled { uid: uid.to_owned(), id: id.to_owned(), image: String::new() };
    let wrong = |phase, now: &Settled, fault, at| {
        let last = Last { settled: settled("pod", "a"), phase, at: 100 * SECOND };
        changed_since("web", 0, &last, now, &[span(fault, at, at + 5)])
    };
    let restarted = settled("pod", "b");
    assert!(wrong(Phase::Succeeded, &settled("pod", "a"), Fault::Kill(Part::Kubelet), 110).is_none());
    assert!(wrong(Phase::Succeeded, &restarted, Fault::Kill(Part::Kubelet), 110).is_some());
    assert!(wrong(Phase::Succeeded, &restarted, Fault::Reboot, 90).is_some());
    assert!(wrong(Phase::Succeeded, &restarted, Fault::Reboot, 110).is_none());
    assert!(wrong(Phase::RolledBack, &restarted, Fault::Kill(Part::Kubelet), 110).is_none());
    assert!(wrong(Phase::RolledBack, &settled("other", "a"), Fault::Reboot, 110).is_some());
}

#[test]
fn a_deletion_that_the_hook_did_not_approve_before_is_found() {
    let call = |looked: i64, marked: Option<i64>, is_deleted| {
        let marked = marked.map(|second| second * SECOND);
        DeleteCall { looked: looked * SECOND, is_deleted, marked }
    };
    let is_wrong = |calls: &[DeleteCall], answers: &[(i64, bool)]| {
        let answers = answers.iter().map(|(at, approves)| (at * SECOND, *approves)).collect();
        unapproved(&GuardedDeletion { pod: "web".to_owned(), calls: calls.to_vec(), answers }).is_some()
    };
    let gone = [call(10, None, true)];
    assert!(!is_wrong(&gone, &[(5, false), (9, true)]));
    assert!(is_wrong(&gone, &[(5, false), (11, true)]) && is_wrong(&gone, &[(5, false)]));
    assert!(is_wrong(&gone, &[]));
    // The answer came long after the pod was marked, or at once in that second.
    let late = [call(30, Some(9), true)];
    assert!(!is_wrong(&late, &[(9, true)]) && is_wrong(&late, &[(11, true)]));
    assert!(is_wrong(&[call(9, Some(9), true)], &[(10, true)]));
    // A call without an answer that was refused, and two that deleted the pod: the second is noticed later.
    let refused = [call(7, None, false), call(12, Some(11), true)];
    let seen = [call(7, Some(6), true)];
    let unseen = [call(7, None, false), call(12, Some(6), true)];
    let answers = [(5, false), (9, true)];
    assert!(!is_wrong(&refused, &answers) && is_wrong(&seen, &answers) && is_wrong(&unseen, &answers));
}

#[test]
fn a_file_of_others_that_was_deleted_or_changed_is_found() {
    let is_broken = |break_it: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        let (bait, target) = (folder.path().join("bait"), folder.path().join("target"));
        for path in [bait.join("empty"), bait.join("full"), target.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        symlink(&target, bait.join("link")).unwrap();
        for path in [bait.join("file"), bait.join("full/file"), target.join("file")] {
            fs::write(path, "bait\n").unwrap();
        }
        break_it(&bait);
        broken_bait(&bait).is_some()
    };
    assert!(!is_broken(&|_| {}));
    assert!(is_broken(&|bait| fs::remove_dir(bait.join("empty")).unwrap()));
    assert!(is_broken(&|bait| fs::remove_file(bait.join("full/file")).unwrap()));
    assert!(is_broken(&|bait| fs::remove_file(bait.join("link/file")).unwrap()));
    assert!(is_broken(&|bait| fs::write(bait.join("file"), "").unwrap()));
}

#[test]
fn a_request_that_ends_twice_is_found() {
    let mut ends = Ends::default();
    assert_eq!(ends.fold("pod", "1", Phase::Running), None);
    assert_eq!(ends.fold("pod", "1", Phase::Succeeded), None);
    assert_eq!(ends.fold("pod", "1", Phase::Succeeded), None);
    assert_eq!(ends.fold("pod", "2", Phase::Running), None);
    assert_eq!(ends.fold("other", "1", Phase::Running), None);
    assert!(ends.fold("pod", "1", Phase::Running).is_some());
    assert!(ends.fold("pod", "1", Phase::Failed).is_some());
}

#[test]
fn a_client_may_be_refused_only_while_its_node_is_down() {
    let faults = [span(Fault::Reboot, 10, 20), span(Fault::Kill(Part::Containerd), 30, 40)];
    let refused = |node, at: i64| may_be_refused(&faults, node, at * SECOND, (at + 1) * SECOND);
    assert!(refused(0, 9) && refused(0, 15) && !refused(0, 8) && !refused(0, 25));
    assert!(!refused(1, 15) && !refused(0, 35));
}

#[test]
fn what_is_left_is_found() {
    let fence = Instance { is_fence: true, ..instance("b", 3, 5, 0) };
    let standby = Instance { is_standby: true, ..instance("c", 0, 5, 0) };
    let created = Instance { is_created: true, is_running: false, ..instance("d", 1, 0, 0) };
    assert_eq!(left(&history(vec![instance("a", 0, 1, 0)])), Vec::<String>::new());
    assert_eq!(left(&history(vec![instance("a", 0, 1, 0), fence, standby, created])).len(), 3);
}
