//! The order of requests: a request that has touched nothing is replaced by a newer one, a request that has touched
//! a container is completed first, and no pod waits for another pod's pull.

use serde_json::json;

use crate::{
    blackhole::Blackhole,
    fixture::Fixture,
    support::{hold::Holds, wait::eventually},
};

#[test]
fn deleting_the_annotation_cancels_what_has_touched_nothing() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let registry = Blackhole::new();
    let agent = fixture.agent(&[]);
    fixture.ask("web", &registry.swap("slow", 600));
    registry.await_open(1);
    assert_eq!(fixture.status("web").unwrap()["step"], "Pull");
    fixture.withdraw("web");
    let status = fixture.ended("web", "slow", "Cancelled");
    assert_eq!(status["reason"], "RequestDeleted");
    assert_eq!(status["message"], "the request was withdrawn before anything was touched");
    // The runtime does not continue a pull that is no longer needed.
    registry.await_open(0);
    assert_eq!(fixture.instances("web"), before);
    // An operation is counted after its status is written.
    agent.await_metric(&["inplace_operations_total", "Cancelled", "Swap", "Recreate", "RequestDeleted"], 1.0);
    // A cancelled ID has ended too.
    fixture.ask("web", &registry.swap("slow", 600));
    fixture.read_again(&agent);
    assert_eq!(fixture.status("web").unwrap(), status);
    // The removal of the manifest cancels a request too.
    fixture.ask("web", &registry.swap("slow-2", 600));
    registry.await_open(1);
    std::fs::remove_file(fixture.pods.join("web.yaml")).unwrap();
    fixture.ended("web", "slow-2", "Cancelled");
    assert_eq!(fixture.instances("web"), before);
}

/// The journal is written before each effect, which takes as long as the disk does.
#[test]
fn a_request_that_is_withdrawn_while_the_journal_is_written_touches_nothing() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let holds = Holds::below(fixture.folder.path());
    let agent = fixture.spawn(&[], &[("INPLACE_FAULT_HOLD", holds.folder())]);
    holds.set("uid-web", "after journal Stop");
    fixture.restart("web", "late");
    eventually("the stop to be in the journal", || holds.held("uid-web"));
    fixture.withdraw("web");
    // The withdrawal ends the wait for the write.
    assert_eq!(fixture.ended("web", "late", "Cancelled")["reason"], "RequestDeleted");
    holds.release();
    fixture.read_again(&agent);
    assert_eq!(fixture.instances("web"), before);
}

/// The next agent must not take the stop for one that was begun.
#[test]
fn a_shutdown_while_the_journal_is_written_takes_the_record_of_the_stop_back() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let holds = Holds::below(fixture.folder.path());
    let mut agent = fixture.spawn(&[], &[("INPLACE_FAULT_HOLD", holds.folder())]);
    holds.set("uid-web", "after journal Stop");
    fixture.restart("web", "late");
    eventually("the stop to be in the journal", || holds.held("uid-web"));
    agent.stop();
    holds.release();
    fixture.withdraw("web");
    let _agent = fixture.agent(&[]);
    assert_eq!(fixture.ended("web", "late", "Cancelled")["reason"], "RequestDeleted");
    assert_eq!(fixture.instances("web"), before);
}

#[test]
fn a_request_withdrawn_while_no_agent_runs_is_cancelled_by_the_next_one() {
    let fixture = Fixture::new();
    fixture.run("web");
    fixture.run("cli");
    let before = fixture.instances("web");
    let registry = Blackhole::new();
    let mut agent = fixture.agent(&[]);
    fixture.ask("web", &registry.swap("slow", 600));
    registry.await_open(1);
    // The agent exits although the pull would take minutes more.
    agent.stop();
    registry.await_open(0);
    assert_eq!(fixture.status("web").unwrap()["phase"], "Running");
    fixture.withdraw("web");
    // A request by a command is in no annotation.
    let image = format!("app={}", registry.image());
    let state = fixture.state.to_str().unwrap();
    let swap = ["node", "--state-dir", state, "swap", "--pod", "cli", &image];
    let mut command = fixture.lab.inplace_command(&swap).spawn().unwrap();
    registry.await_open(1);
    command.kill().unwrap();
    command.wait().unwrap();
    registry.await_open(0);
    let _agent = fixture.agent(&[]);
    assert_eq!(fixture.ended("web", "slow", "Cancelled")["reason"], "RequestDeleted");
    assert_eq!(fixture.instances("web"), before);
    // The connection that is open may still be that of the pull which was cancelled.
    fixture.ended("cli", "cli-", "Running");
    registry.await_open(1);
    assert_eq!(fixture.status("cli").unwrap()["phase"], "Running");
}

#[test]
fn a_new_id_takes_the_place_of_one_that_has_touched_nothing() {
    let fixture = Fixture::new();
    fixture.run("web");
    let registry = Blackhole::new();
    let agent = fixture.agent(&[]);
    fixture.ask("web", &registry.swap("slow", 600));
    registry.await_open(1);
    fixture.restart("web", "urgent");
    let status = fixture.ended("web", "urgent", "Succeeded");
    assert_eq!(status["containers"][0]["to"]["attempt"], 1);
    assert_eq!(fixture.running("web").attempt, 1);
    agent.assert_metric(&["inplace_operations_total", "Cancelled", "RequestReplaced"], 1.0);
}

#[test]
fn what_has_touched_the_container_is_finished_before_the_next_id_begins() {
    let fixture = Fixture::new();
    let gate = fixture.run_gated("web");
    let agent = fixture.agent(&[]);
    fixture.restart("web", "first");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    fixture.restart("web", "second");
    fixture.read_again_beside(&agent, 1.0);
    // The first operation continues despite the new request: it is the only one, and the container is unchanged.
    assert_eq!(fixture.status("web").unwrap()["id"], "first");
    assert_eq!(fixture.running_amid("web").attempt, 0);
    std::fs::write(gate.join("go"), "").unwrap();
    let second = fixture.ended("web", "second", "Succeeded");
    assert_eq!(
        (&second["containers"][0]["from"]["attempt"], &second["containers"][0]["to"]["attempt"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(fixture.running("web").attempt, 2);
    agent.await_metric(&["inplace_operations_total", "Succeeded", "Restart"], 2.0);
    // A request that is deleted in the middle is completed as well.
    std::fs::remove_file(gate.join("began")).unwrap();
    std::fs::remove_file(gate.join("go")).unwrap();
    fixture.restart("web", "third");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    fixture.withdraw("web");
    fixture.read_again_beside(&agent, 1.0);
    std::fs::write(gate.join("go"), "").unwrap();
    assert_eq!(fixture.ended("web", "third", "Succeeded")["containers"][0]["to"]["attempt"], 3);
}

#[test]
fn a_slow_pull_of_one_pod_delays_no_other() {
    let fixture = Fixture::new();
    fixture.run("slow");
    fixture.run("quick");
    let registry = Blackhole::new();
    // An operation that waits for its pull does not count, and an image on the node waits for no registry.
    let agent = fixture.agent(&["--max-operations", "1", "--max-pulls", "1"]);
    fixture.ask("slow", &registry.swap("slow", 600));
    registry.await_open(1);
    agent.assert_metric(&["inplace_open_pulls"], 1.0);
    for id in ["a", "b"] {
        fixture.restart("quick", id);
        fixture.ended("quick", id, "Succeeded");
    }
    fixture.ask("quick", &format!("swap app={}", fixture.lab.image("app:v2")));
    fixture.ended("quick", "text-", "Succeeded");
    assert_eq!(fixture.status("slow").unwrap()["phase"], "Running");
    assert_eq!(registry.open(), 1);
    // An operation that has reported its end still counts until its permit is free.
    agent.await_metric(&["inplace_open_operations"], 1.0);
}

#[test]
fn pulls_beyond_the_limit_wait_and_everything_ends_by_its_deadline() {
    let fixture = Fixture::new();
    for pod in ["one", "two", "three"] {
        fixture.run(pod);
    }
    let before = (fixture.instances("one"), fixture.instances("two"), fixture.instances("three"));
    let registry = Blackhole::new();
    let agent = fixture.agent(&["--max-pulls", "1"]);
    fixture.ask("one", &registry.swap("pulls", 45));
    registry.await_open(1);
    for (pod, id, deadline) in [("two", "second", 600), ("three", "waits", 45)] {
        fixture.ask(pod, &registry.swap(id, deadline));
        let waits = || agent.log().matches("waiting for a permit to pull").count();
        let cycle = if pod == "two" { 1 } else { 2 };
        eventually("it to wait for a permit", || (waits() == cycle).then_some(()));
    }
    assert_eq!(registry.open(), 1);
    agent.assert_metric(&["inplace_open_pulls"], 1.0);
    agent.assert_metric(&["inplace_open_operations"], 3.0);
    // The pull ends at its deadline, and so does the wait for one.
    for (pod, id) in [("one", "pulls"), ("three", "waits")] {
        let status = fixture.ended(pod, id, "Failed");
        let message = status["message"].as_str().unwrap();
        assert!(message.ends_with("The running containers were not touched"), "{status:#}");
    }
    // Now the other pull begins.
    registry.await_open(1);
    agent.assert_metric(&["inplace_open_pulls"], 1.0);
    assert_eq!(fixture.status("two").unwrap()["phase"], "Running");
    assert_eq!((fixture.instances("one"), fixture.instances("two"), fixture.instances("three")), before);
}

#[test]
fn operations_beyond_the_limit_wait_for_a_permit() {
    let fixture = Fixture::new();
    let gate = fixture.run_gated("one");
    fixture.run("two");
    fixture.run("three");
    let agent = fixture.agent(&["--max-operations", "1"]);
    // The operation has touched its container.
    fixture.restart("one", "slow");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    fixture.restart("two", "later");
    fixture.ask("three", r#"{"id":"impatient","deadlineSeconds":8,"containers":[{"name":"app"}]}"#);
    let waits = fixture.ended("two", "later", "Pending");
    assert_eq!(waits["message"], "waiting for another operation on this node to end");
    agent.await_metric(&["inplace_waiting_requests"], 2.0);
    // The wait is bounded as well.
    let status = fixture.ended("three", "impatient", "Failed");
    assert_eq!(status["reason"], "DeadlineExceeded");
    assert!(
        status["message"].as_str().unwrap().starts_with("the request could not start before its deadline"),
        "{status:#}"
    );
    assert_eq!((fixture.running("two").attempt, fixture.running("three").attempt), (0, 0));
    std::fs::write(gate.join("go"), "").unwrap();
    fixture.ended("one", "slow", "Succeeded");
    fixture.ended("two", "later", "Succeeded");
    agent.await_metric(&["inplace_waiting_requests"], 0.0);
}
