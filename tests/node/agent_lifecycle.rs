//! The agent as a process: its HTTP endpoints, its lock on the node, its start and its shutdown.

use std::{fs, io::Write, os::unix::fs::symlink};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::support::wait::eventually;

#[test]
fn health_follows_the_runtime_and_work_goes_on_when_it_is_back() {
    let fixture = Fixture::new();
    fixture.run("web");
    let agent = fixture.agent(&[]);
    assert_eq!(agent.try_get("/healthz"), Some((200, "ok\n".to_owned())));
    let ready = || (agent.try_get("/readyz")? == (200, "ok\n".to_owned())).then_some(());
    eventually("it to be ready", ready);
    assert_eq!(agent.try_get("/other").unwrap().0, 404);
    fixture.lab.kill_containerd();
    // The first answer may still concern the broken connection.
    eventually("a refused connection", || {
        let (code, why) = agent.try_get("/readyz").unwrap();
        assert!(code == 503 && why.contains("cannot be reached"), "{code} {why}");
        why.contains("cannot be reached: connection refused").then_some(())
    });
    assert_eq!(agent.try_get("/healthz").unwrap().0, 200);
    // A request meanwhile waits, and its status says for what.
    fixture.restart("web", "patient");
    let waits = fixture.ended("web", "patient", "Pending");
    assert!(waits["message"].as_str().unwrap().contains("cannot be reached"), "{waits:#}");
    fixture.lab.start_containerd();
    fixture.ended("web", "patient", "Succeeded");
    assert_eq!(fixture.running("web").attempt, 1);
    eventually("it to be ready again", ready);
}

#[test]
fn an_agent_that_is_there_before_its_runtime_begins_when_that_comes() {
    let fixture = Fixture::new();
    fixture.run("web");
    let socket = fixture.lab.dir.join("containerd.sock");
    fixture.lab.kill_containerd();
    fs::remove_file(&socket).unwrap();
    // The folder of the socket is missing too.
    let late = fixture.folder.path().join("late");
    let endpoint = late.join("containerd.sock");
    fixture.restart("web", "early");
    let agent = fixture.spawn(&["--runtime-endpoint", endpoint.to_str().unwrap()], &[]);
    eventually("it to wait", || {
        agent.log().contains("the folder of the runtime's socket does not exist yet").then_some(())
    });
    let made = fixture.folder.path().join("made");
    fs::create_dir(&made).unwrap();
    symlink(&socket, made.join("containerd.sock")).unwrap();
    fs::rename(made, &late).unwrap();
    let (code, why) = eventually("it to listen", || agent.try_get("/readyz"));
    assert_eq!(code, 503);
    assert!(why.contains("check that the runtime runs"), "{why}");
    fixture.lab.start_containerd();
    fixture.ended("web", "early", "Succeeded");
    assert_eq!(fixture.running("web").attempt, 1);
}

#[test]
fn an_agent_has_its_node_for_itself() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let mut agent = fixture.agent(&[]);
    let elsewhere = fixture.folder.path().join("elsewhere");
    for args in [vec![], vec!["--state-dir", elsewhere.to_str().unwrap()]] {
        let mut second = fixture.spawn(&args, &[]);
        assert_eq!(second.end().code(), Some(7));
        let reported = second.log();
        assert!(reported.contains("another inplace agent or command is running on this node"), "{reported}");
    }
    for verb in [
        &["restart", "--pod", "web", "-c", "app"][..],
        &["rm", "--pod", "web"],
        &["swap", "--pod", "web", "app=a:v1"],
    ] {
        let refused = fixture.node(&[verb, &["-o", "json"]].concat());
        let reported = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(7), "{reported}");
        assert!(
            reported.contains("write the request into the pod's annotation, or stop the agent"),
            "{reported}"
        );
        let object: Value = serde_json::from_slice(&refused.stdout).unwrap();
        assert_eq!((object["phase"].as_str(), object["reason"].as_str()), (Some("Failed"), Some("Busy")));
    }
    assert_eq!(fixture.instances("web"), before);
    // Read-only commands are permitted.
    assert!(fixture.node(&["ps"]).status.success());
    assert!(fixture.node(&["plan", "--pod", "web", "app"]).status.success());
    // The node is unlocked after the agent has exited, even after SIGKILL.
    agent.signal(Signal::SIGKILL);
    agent.end();
    let restarted = fixture.node(&["restart", "--pod", "web", "-c", "app"]);
    assert!(restarted.status.success(), "{restarted:?}");
}

#[test]
fn an_idle_agent_ends_at_once_whoever_is_connected() {
    let fixture = Fixture::new();
    let mut agent = fixture.agent(&[]);
    // One connection that never sends a request, and one that never completes it.
    let silent = agent.connect().unwrap();
    let mut slow = agent.connect().unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nHo").unwrap();
    // The agent exits while both are open.
    agent.stop();
    drop((silent, slow));
    // The same while the runtime is unreachable.
    fixture.lab.kill_containerd();
    let mut agent = fixture.spawn(&[], &[]);
    eventually("it to listen", || agent.try_get("/healthz"));
    agent.stop();
}

#[test]
fn what_is_under_way_at_sigterm_is_finished_once_by_the_next_agent() {
    let fixture = Fixture::new();
    let gate = fixture.run_gated("web");
    fixture.run("idle");
    let mut agent = fixture.agent(&[]);
    fixture.restart("web", "cut");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    agent.signal(Signal::SIGTERM);
    eventually("it to hear", || agent.log().contains("continue to a safe point").then_some(()));
    // Nothing new begins.
    fixture.restart("idle", "late");
    // A handler that has begun is not interrupted.
    assert!(!agent.has_ended());
    fs::write(gate.join("go"), "").unwrap();
    assert_eq!(agent.end().code(), Some(0));
    // At the point of the shutdown one container runs, either the old or the new one.
    fixture.running_amid("web");
    assert!(fixture.status("idle").is_none());
    let _agent = fixture.agent(&[]);
    let status = fixture.ended("web", "cut", "Succeeded");
    assert_eq!(status["containers"][0]["to"]["attempt"], 1);
    assert_eq!(fixture.running("web").attempt, 1);
    // Exactly once, including the handler.
    assert_eq!(fs::read_to_string(gate.join("began")).unwrap(), "x");
    fixture.ended("idle", "late", "Succeeded");
}

#[test]
fn everything_is_counted() {
    let fixture = Fixture::new();
    fixture.run("web");
    let agent = fixture.agent(&[]);
    for id in ["a", "b"] {
        fixture.restart("web", id);
        fixture.ended("web", id, "Succeeded");
    }
    // On a busy machine an image that crashes exits seconds after the runtime has reported its start.
    let swap = |id: &str, image: &str| {
        let containers = json!([{"name": "app", "image": fixture.lab.image(image)}]);
        let min_ready = if image == "app:crash" { 20 } else { 0 };
        json!({"id": id, "minReadySeconds": min_ready, "containers": containers}).to_string()
    };
    fixture.ask("web", &swap("c", "app:v2"));
    fixture.ended("web", "c", "Succeeded");
    fixture.ask("web", &swap("d", "app:crash"));
    fixture.ended("web", "d", "RolledBack");
    fixture.ask("web", &swap("e", "app:none"));
    fixture.ended("web", "e", "Failed");
    fixture.ask("web", "restart nobody");
    fixture.ended("web", "text-", "Refused");
    agent.await_metric(&["inplace_open_operations"], 0.0);
    let operations = |action: &str, outcome: &str, reason: &str, engine: &str| {
        let label = |key: &str, value: &str| format!("{key}=\"{value}\"");
        agent.metric(&[
            "inplace_operations_total{",
            &label("action", action),
            &label("outcome", outcome),
            &label("reason", reason),
            &label("engine", engine),
        ])
    };
    assert_eq!(
        [
            operations("Restart", "Succeeded", "", "Recreate"),
            operations("Swap", "Succeeded", "", "Recreate"),
            operations("Swap", "RolledBack", "Exited", "Recreate"),
            operations("Swap", "Failed", "PullFailed", "Recreate"),
            operations("None", "Refused", "UnknownContainer", "None"),
        ]
        .map(|count| count.to_string()),
        ["2", "1", "1", "1", "1"]
    );
    agent.assert_metric(&["inplace_downtime_seconds_count", "Restart"], 2.0);
    agent.assert_metric(&["inplace_downtime_seconds_count", "Swap"], 2.0);
    assert!(agent.metric(&["inplace_downtime_seconds_sum", "Restart"]) > 0.0);
    // Two restarts, two swaps, one rollback; and the test creation of each.
    let took = |step: &str| {
        agent.metric(&["inplace_step_duration_seconds_count", &format!("step=\"{step}\""), "result=\"Ok\""])
    };
    let steps = ["Fence", "Stop", "Create", "Start"].map(|step| took(step).to_string());
    assert_eq!(steps, ["5", "4", "5", "5"]);
    // The image of a swap that is slow to begin is looked for again.
    assert!(took("Pull") >= 2.0, "{}", took("Pull"));
    for (call, count) in [("CreateContainer", 10.0), ("StartContainer", 5.0), ("StopContainer", 4.0)] {
        agent.assert_metric(
            &["inplace_cri_request_duration_seconds_count", &format!("call=\"{call}\""), "result=\"Ok\""],
            count,
        );
    }
    for (gauge, value) in [
        ("open_pulls", 0.0),
        ("waiting_requests", 0.0),
        ("unreadable_files", 0.0),
        ("fences_swept_total", 0.0),
    ] {
        let name = format!("inplace_{gauge} ");
        assert!(agent.metrics().contains(&name), "{name}");
        agent.assert_metric(&[&name], value);
    }
    let text = agent.metrics();
    assert!(text.ends_with("# EOF\n") && !text.contains("web"), "{text}");
}
