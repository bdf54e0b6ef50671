//! The order of requests: a request that has touched nothing is replaced by a newer one, a request that has touched
//! a container is completed first, and no pod waits for another pod's pull.

use serde_json::json;

use crate::{
    blackhole::Blackhole,
    site::{Site, eventually},
};

#[test]
fn deleting_the_annotation_cancels_what_has_touched_nothing() {
    let site = Site::new();
    site.run("web");
    let before = site.instances("web");
    let registry = Blackhole::new();
    let agent = site.agent(&[]);
    site.wish("web", &registry.swap("slow", 600));
    registry.await_open(1);
    assert_eq!(site.status("web").unwrap()["step"], "Pull");
    site.withdraw("web");
    let status = site.ended("web", "slow", "Cancelled");
    assert_eq!(status["reason"], "RequestDeleted");
    assert_eq!(status["message"], "the request was withdrawn before anything was touched");
    // The runtime does not continue a pull that is no longer needed.
    registry.await_open(0);
    assert_eq!(site.instances("web"), before);
    agent
        .assert_metric(&["inplace_operations_total", "Cancelled", "Swap", "Recreate", "RequestDeleted"], 1.0);
    // A cancelled ID has ended too.
    site.wish("web", &registry.swap("slow", 600));
    site.read_again(&agent);
    assert_eq!(site.status("web").unwrap(), status);
    // The removal of the manifest cancels a request too.
    site.wish("web", &registry.swap("slow-2", 600));
    registry.await_open(1);
    std::fs::remove_file(site.pods.join("web.yaml")).unwrap();
    site.ended("web", "slow-2", "Cancelled");
    assert_eq!(site.instances("web"), before);
}

#[test]
fn a_wish_withdrawn_while_no_agent_runs_is_cancelled_by_the_next_one() {
    let site = Site::new();
    site.run("web");
    site.run("cli");
    let before = site.instances("web");
    let registry = Blackhole::new();
    let mut agent = site.agent(&[]);
    site.wish("web", &registry.swap("slow", 600));
    registry.await_open(1);
    // The agent exits although the pull would take minutes more.
    agent.stop();
    registry.await_open(0);
    assert_eq!(site.status("web").unwrap()["phase"], "Running");
    site.withdraw("web");
    // A request by a command is in no annotation.
    let image = format!("app={}", registry.image());
    let state = site.state.to_str().unwrap();
    let swap = ["node", "--state-dir", state, "swap", "--pod", "cli", &image];
    let mut command = site.lab.inplace_command(&swap).spawn().unwrap();
    registry.await_open(1);
    command.kill().unwrap();
    command.wait().unwrap();
    registry.await_open(0);
    let _agent = site.agent(&[]);
    assert_eq!(site.ended("web", "slow", "Cancelled")["reason"], "RequestDeleted");
    assert_eq!(site.instances("web"), before);
    registry.await_open(1);
    assert_eq!(site.status("cli").unwrap()["phase"], "Running");
}

#[test]
fn a_new_id_takes_the_place_of_one_that_has_touched_nothing() {
    let site = Site::new();
    site.run("web");
    let registry = Blackhole::new();
    let agent = site.agent(&[]);
    site.wish("web", &registry.swap("slow", 600));
    registry.await_open(1);
    site.restart("web", "urgent");
    let status = site.ended("web", "urgent", "Succeeded");
    assert_eq!(status["containers"][0]["to"]["attempt"], 1);
    assert_eq!(site.running("web").attempt, 1);
    agent.assert_metric(&["inplace_operations_total", "Cancelled", "RequestReplaced"], 1.0);
}

#[test]
fn what_has_touched_the_container_is_finished_before_the_next_id_begins() {
    let site = Site::new();
    let gate = site.run_gated("web");
    let agent = site.agent(&[]);
    site.restart("web", "first");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    site.restart("web", "second");
    site.read_again_beside(&agent, 1.0);
    // The first operation continues despite the new request: it is the only one, and the container is unchanged.
    assert_eq!(site.status("web").unwrap()["id"], "first");
    assert_eq!(site.running_amid("web").attempt, 0);
    std::fs::write(gate.join("go"), "").unwrap();
    let second = site.ended("web", "second", "Succeeded");
    assert_eq!(
        (&second["containers"][0]["from"]["attempt"], &second["containers"][0]["to"]["attempt"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(site.running("web").attempt, 2);
    agent.assert_metric(&["inplace_operations_total", "Succeeded", "Restart"], 2.0);
    // A request that is deleted in the middle is completed as well.
    std::fs::remove_file(gate.join("began")).unwrap();
    std::fs::remove_file(gate.join("go")).unwrap();
    site.restart("web", "third");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    site.withdraw("web");
    site.read_again_beside(&agent, 1.0);
    std::fs::write(gate.join("go"), "").unwrap();
    assert_eq!(site.ended("web", "third", "Succeeded")["containers"][0]["to"]["attempt"], 3);
}

#[test]
fn a_slow_pull_of_one_pod_delays_no_other() {
    let site = Site::new();
    site.run("slow");
    site.run("quick");
    let registry = Blackhole::new();
    // An operation that waits for its pull does not count, and an image on the node waits for no registry.
    let agent = site.agent(&["--max-operations", "1", "--max-pulls", "1"]);
    site.wish("slow", &registry.swap("slow", 600));
    registry.await_open(1);
    agent.assert_metric(&["inplace_open_pulls"], 1.0);
    for id in ["a", "b"] {
        site.restart("quick", id);
        site.ended("quick", id, "Succeeded");
    }
    site.wish("quick", &format!("swap app={}", site.lab.image("app:v2")));
    site.ended("quick", "text-", "Succeeded");
    assert_eq!(site.status("slow").unwrap()["phase"], "Running");
    assert_eq!(registry.open(), 1);
    // An operation that has reported its end still counts until its permit is free.
    agent.await_metric(&["inplace_open_operations"], 1.0);
}

#[test]
fn pulls_beyond_the_limit_wait_and_everything_ends_by_its_deadline() {
    let site = Site::new();
    for pod in ["one", "two", "three"] {
        site.run(pod);
    }
    let before = (site.instances("one"), site.instances("two"), site.instances("three"));
    let registry = Blackhole::new();
    let agent = site.agent(&["--max-pulls", "1"]);
    site.wish("one", &registry.swap("pulls", 14));
    registry.await_open(1);
    for (pod, id, deadline) in [("two", "second", 600), ("three", "waits", 14)] {
        site.wish(pod, &registry.swap(id, deadline));
        let waits = || agent.log().matches("waiting for a turn to pull").count();
        let turn = if pod == "two" { 1 } else { 2 };
        eventually("it to wait for its turn", || (waits() == turn).then_some(()));
    }
    assert_eq!(registry.open(), 1);
    agent.assert_metric(&["inplace_open_pulls"], 1.0);
    agent.assert_metric(&["inplace_open_operations"], 3.0);
    // The pull ends at its deadline, and so does the wait for one.
    for (pod, id) in [("one", "pulls"), ("three", "waits")] {
        let status = site.ended(pod, id, "Failed");
        let message = status["message"].as_str().unwrap();
        assert!(message.ends_with("The running containers were not touched"), "{status:#}");
    }
    // Now the other pull begins.
    registry.await_open(1);
    agent.assert_metric(&["inplace_open_pulls"], 1.0);
    assert_eq!(site.status("two").unwrap()["phase"], "Running");
    assert_eq!((site.instances("one"), site.instances("two"), site.instances("three")), before);
}

#[test]
fn operations_beyond_the_limit_wait_for_their_turn() {
    let site = Site::new();
    let gate = site.run_gated("one");
    site.run("two");
    site.run("three");
    let agent = site.agent(&["--max-operations", "1"]);
    // The operation has touched its container.
    site.restart("one", "slow");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    site.restart("two", "later");
    site.wish("three", r#"{"id":"impatient","deadlineSeconds":8,"containers":[{"name":"app"}]}"#);
    let waits = site.ended("two", "later", "Pending");
    assert_eq!(waits["message"], "waits until another operation of this node ends");
    agent.await_metric(&["inplace_waiting_requests"], 2.0);
    // The wait is bounded as well.
    let status = site.ended("three", "impatient", "Failed");
    assert_eq!(status["reason"], "DeadlineExceeded");
    assert!(
        status["message"].as_str().unwrap().starts_with("it could not begin before its deadline"),
        "{status:#}"
    );
    assert_eq!((site.running("two").attempt, site.running("three").attempt), (0, 0));
    std::fs::write(gate.join("go"), "").unwrap();
    site.ended("one", "slow", "Succeeded");
    site.ended("two", "later", "Succeeded");
    agent.await_metric(&["inplace_waiting_requests"], 0.0);
}
