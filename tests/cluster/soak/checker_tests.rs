//! The checker finds each kind of violation in a history that has it, and none in the same history without it.

use super::*;
use crate::soak::history::Sandbox;

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

fn ended(operation: Op, phase: Phase, started: usize) -> Ended {
    let [old, new] = ["app:v1", "app:v2"].map(str::to_owned);
    Ended {
        operation,
        pod: "web".to_owned(),
        node: 0,
        id: "1".to_owned(),
        phase,
        reason: String::new(),
        message: String::new(),
        asked: 1_000 * SECOND,
        ended: 1_010 * SECOND,
        settled: 1_011 * SECOND,
        started,
        images: if phase == Phase::Succeeded { [old, new.clone(), new] } else { [old.clone(), new, old] },
    }
}

#[test]
fn a_wrong_end_is_found() {
    let fault = [span(Fault::Kill(Part::Agent), 1_001, 1_005)];
    let runtime = [span(Fault::Kill(Part::Containerd), 1_001, 1_005)];
    for (end, faults, is_wrong) in [
        (ended(Op::Restart, Phase::Succeeded, 1), &[][..], false),
        (ended(Op::Restart, Phase::Succeeded, 2), &[], true),
        (ended(Op::Restart, Phase::Succeeded, 0), &[], true),
        (ended(Op::Restart, Phase::Succeeded, 2), &fault, true),
        (ended(Op::Restart, Phase::Succeeded, 2), &runtime, false),
        (ended(Op::Restart, Phase::Failed, 0), &[], true),
        (ended(Op::Restart, Phase::Failed, 0), &fault, false),
        (ended(Op::Restart, Phase::Refused, 0), &fault, true),
        (ended(Op::SwapToCrash, Phase::RolledBack, 3), &[], false),
        (ended(Op::SwapToCrash, Phase::Succeeded, 1), &fault, true),
        (ended(Op::Unknown, Phase::Refused, 0), &[], false),
        (ended(Op::Unknown, Phase::Refused, 1), &fault, true),
        (ended(Op::HookFails, Phase::Succeeded, 1), &[], true),
        (ended(Op::Replaced, Phase::Succeeded, 2), &[], false),
        (ended(Op::Replaced, Phase::Succeeded, 3), &[], true),
    ] {
        assert_eq!(wrong_end(&end, faults).is_some(), is_wrong, "{end:?} {faults:?}");
    }
    // A fault of another node explains nothing, one of the control plane does.
    for (fault, is_wrong) in [(Fault::Kill(Part::Agent), true), (Fault::Kill(Part::Etcd), false)] {
        let elsewhere = [FaultSpan { node: 1, ..span(fault, 1_001, 1_005) }];
        assert_eq!(wrong_end(&ended(Op::Restart, Phase::Failed, 0), &elsewhere).is_some(), is_wrong);
    }
    let mut end = ended(Op::HookFails, Phase::Failed, 1);
    assert!(wrong_end(&end, &[]).is_none());
    end.message = "hook x: failed. The running containers were not touched".to_owned();
    assert!(wrong_end(&end, &[]).is_some());
    let mut end = ended(Op::Swap, Phase::Succeeded, 1);
    end.images[2] = end.images[0].clone();
    assert!(wrong_end(&end, &[]).is_some());
}

#[test]
fn a_restart_without_a_request_is_found_unless_the_runtime_or_a_rollback_explains_it() {
    let may = |phase, fault, at| may_restart(phase, 0, 100 * SECOND, &[span(fault, at, at + 5)]);
    assert!(!may(Phase::Succeeded, Fault::Kill(Part::Kubelet), 110));
    assert!(!may(Phase::Succeeded, Fault::Reboot, 90));
    assert!(may(Phase::Succeeded, Fault::Reboot, 110));
    assert!(may(Phase::RolledBack, Fault::Kill(Part::Kubelet), 110));
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
    let refused = |node, at: i64| may_be_refused(&faults, node, at * SECOND);
    assert!(refused(0, 15) && !refused(0, 25) && !refused(1, 15) && !refused(0, 35));
}

#[test]
fn what_is_left_is_found() {
    let fence = Instance { is_fence: true, ..instance("b", 3, 5, 0) };
    let standby = Instance { is_standby: true, ..instance("c", 0, 5, 0) };
    let created = Instance { is_created: true, is_running: false, ..instance("d", 1, 0, 0) };
    assert_eq!(left(&history(vec![instance("a", 0, 1, 0)])), Vec::<String>::new());
    assert_eq!(left(&history(vec![instance("a", 0, 1, 0), fence, standby, created])).len(), 3);
}
