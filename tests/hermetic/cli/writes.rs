//! What a command has written when its answer is lost, when Ctrl-C is pressed, and when an operation is in progress.

use std::process::{Output, Stdio};
use std::sync::{Mutex, mpsc};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::super::api_server::{ApiServer, Fault};
use super::objects::{request, shop, status};
use super::{bare, run, text};
use crate::support::wait::eventually;

fn patches(api: &ApiServer) -> usize {
    api.count("PATCH pod")
}

/// True while the process has not received the SIGINT that was sent to it.
fn is_interrupt_pending(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).unwrap();
    u64::from_str_radix(pending.trim(), 16).unwrap() & 0b10 != 0
}

#[tokio::test]
async fn a_request_whose_answer_is_lost_is_known_to_be_written_or_can_be_repeated() {
    let api = shop().await;
    let restart = ["restart", "web-1", "-c", "app", "-o", "json"];
    api.on("PATCH pod").fault(Fault::CutAfterEffect);
    let output = run(&api, &restart).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let written = request(&api, "web-1").unwrap();
    let data: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(data[0]["request"]["id"], written["id"]);

    // It was not written, which the command cannot know.
    let api = shop().await;
    api.on("PATCH pod").fault(Fault::Cut);
    let output = run(&api, &["restart", "web-1", "-c", "app", "--id", "mine"]).await;
    assert_eq!(output.status.code(), Some(6), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("may have been written") && said.contains("add --id mine"), "{said}");
    assert_eq!(request(&api, "web-1"), None);
    let again = run(&api, &["restart", "web-1", "-c", "app", "--id", "mine"]).await;
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert_eq!(request(&api, "web-1").unwrap()["id"], "mine");
}

#[tokio::test]
async fn no_further_request_is_written_after_ctrl_c() {
    interrupted_at("PATCH pod", 1).await;
    // Before the second request is written, its node is read.
    interrupted_at("GET node", 2).await;
}

/// Ctrl-C is pressed during the `n`th call, when one request of three is written.
async fn interrupted_at(call: &'static str, n: usize) {
    let api = shop().await;
    let (started, pid) = mpsc::channel::<i32>();
    let pid = Mutex::new(pid);
    api.on(call).nth(n).first(move |_| {
        let pid = pid.lock().unwrap().recv().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
        // The command reads an answer first that arrives before it has received the signal, as on a busy machine.
        eventually("the signal is received", || (!is_interrupt_pending(pid)).then_some(()));
    });
    let mut command = bare();
    command.args(["restart", "--all", "-c", "app", "--wait", "--kubeconfig"]).arg(api.kubeconfig());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    started.send(child.id().try_into().unwrap()).unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = api.patiently("the end of the command", ended).await.unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), patches(&api)), (Some(5), 1), "{said}");
    assert!(said.contains("interrupted: no request was written to pod/web-0 pod/web-1"), "{said}");
    assert!(said.contains("`inplace cancel pod/db-0 --kubeconfig "), "{said}");
    assert!(request(&api, "db-0").is_some() && request(&api, "web-1").is_none());
}

#[tokio::test]
async fn what_has_begun_and_is_replaced_before_its_end_is_seen_is_not_called_undone() {
    for (phase, code, says) in [
        ("Running", 1, "it began, and was replaced by request next before its end was seen"),
        ("Pending", 5, "not done: request next replaced it"),
    ] {
        let output = replaced_while(phase).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

/// `restart --wait`, whose request is replaced in this phase; the new one ends at once.
async fn replaced_while(phase: &str) -> Output {
    let api = shop().await;
    let replaced = async {
        api.arrived("WATCH pods", 1).await;
        let note = |name: &str, text: String| {
            let key = format!("inplace.dev/{name}");
            api.edit("shop", "web-1", |pod| pod["metadata"]["annotations"][key] = json!(text));
        };
        note("status", status("mine", phase));
        note("request", r#"{"id":"next","containers":[{"name":"app"}]}"#.to_owned());
        note("status", status("next", "Succeeded"));
    };
    let restart = ["restart", "web-1", "-c", "app", "--id", "mine", "--wait"];
    tokio::join!(run(&api, &restart), replaced).0
}

#[tokio::test]
async fn a_dry_run_names_the_request_that_would_be_replaced() {
    let api = shop().await;
    api.edit("shop", "web-1", |pod| {
        pod["metadata"]["annotations"] = json!({"inplace.dev/request": r#"{"id":"theirs","containers":[{"name":"app"}]}"#,
            "inplace.dev/status": status("theirs", "Pending")});
    });
    for (args, says) in [
        (&["restart", "web-1", "-c", "app", "--dry-run"][..], "theirs is in progress"),
        (&["restart", "web-0", "-c", "app", "--id", "r-1", "--dry-run"], "r-1 has already ended on this pod"),
    ] {
        let output = run(&api, args).await;
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains(says), "{args:?}: {said}");
    }
    assert_eq!(patches(&api), 0);
}

#[tokio::test]
async fn what_has_touched_containers_is_not_withdrawn() {
    let api = shop().await;
    let mut touched: Value = serde_json::from_str(&status("on", "Running")).unwrap();
    touched["step"] = json!("Swap");
    api.edit("shop", "web-1", |pod| {
        pod["metadata"]["annotations"] = json!({"inplace.dev/request": r#"{"id":"on","containers":[{"name":"app"}]}"#,
            "inplace.dev/status": touched.to_string()});
    });
    let output = run(&api, &["cancel", "web-1", "-o", "json"]).await;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("\"withdrawn\":false"), "{}", text(&output.stdout));
    let all = run(&api, &["cancel", "--all"]).await;
    assert!(text(&all.stderr).contains("has a request to withdraw"), "{}", text(&all.stderr));
    assert_eq!(patches(&api), 0);
}

#[tokio::test]
async fn a_blank_selector_selects_nothing() {
    let api = shop().await;
    for args in [&["cancel", "-l", ""][..], &["status", "-l", " "], &["top", "-l", ""]] {
        let output = run(&api, args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", text(&output.stderr));
    }
    assert!(api.calls().is_empty(), "{:?}", api.calls());
}

/// The permission for `watch` is not needed to learn how one's own request ended.
#[tokio::test]
async fn who_may_not_watch_pods_learns_the_end_of_a_request() {
    let api = shop().await;
    api.on("WATCH pods").times(1000).fault(Fault::Answer(403, "pods is forbidden"));
    let mut command = bare();
    command.args(["restart", "web-1", "-c", "app", "--id", "mine", "--wait=60s", "--kubeconfig"]);
    let child = command.arg(api.kubeconfig()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    api.arrived("WATCH pods", 1).await;
    api.edit("shop", "web-1", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/status"] = json!(status("mine", "Succeeded"));
    });
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let output = api.patiently("the end of the command", ended).await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));

    // A list that is refused ends a watch of all pods, as it ends the same command without -w.
    api.on("LIST pods").times(1000).fault(Fault::Answer(403, "pods is forbidden"));
    let output = run(&api, &["status", "-w"]).await;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}
