//! preStop handlers: they really run, before the stop, and none of them can delay a restart indefinitely.

use std::fs;

use inplace::api::status::{Phase, Status};

use crate::{pod::Pod, support::facts::Instance, support::lab::Lab, support::wait::eventually};

/// Longer than any handler takes on a busy machine.
const GRACE: i128 = 30;

/// A pod whose `app` has this handler and this command.
fn pod(name: &str, handler: &str, command: &str) -> Pod<'static> {
    pod_with_grace(GRACE, name, handler, command)
}

/// The same with this many seconds of grace. Its `app` handles SIGTERM when this returns.
fn pod_with_grace(grace: i128, name: &str, handler: &str, command: &str) -> Pod<'static> {
    let spec = format!(
        "
terminationGracePeriodSeconds: {grace}
containers:
- name: app
  image: lab/app:v1
  command: [sh, -c, '{command}']
  ports: [{{containerPort: 9090, name: metrics}}, {{containerPort: 8080, name: http}}]
  env: [{{name: ANSWER, value: '{ANSWER}'}}]
  lifecycle: {{preStop: {handler}}}
- {{name: side, image: lab/app:v1}}
"
    );
    let pod = Pod::run(Lab::shared(), name, &spec);
    pod.await_handler();
    pod
}

/// A shell script that answers one HTTP request and records it.
const ANSWER: &str = "read -r verb path rest; echo $verb $path >>/dev/shm/hits; \
    while read -r line && [ ${#line} -gt 1 ]; do echo $line >>/dev/shm/hits; done; \
    printf \"HTTP/1.0 $CODE\\r\\nContent-Length: 0\\r\\n\\r\\n\"";

/// A shell command that runs the server on the port until it is stopped.
fn server(code: &str) -> String {
    format!("export CODE=\"{code}\"; nc -ll -p 8080 -e sh -c \"$ANSWER\" & exec app")
}

/// Waits until a process in the container listens on port 8080.
fn listens(instance: &Instance) {
    eventually("a listener", || {
        let tables =
            ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/{}/net/{table}", instance.pid)));
        tables.into_iter().flatten().any(|table| table.contains(":1F90 ")).then_some(())
    });
}

/// Milliseconds from the start of the operation to the stop of the old container.
fn until_stopped(status: &Status) -> i128 {
    let stopped = status.containers[0].stopped_at.unwrap();
    stopped.duration_since(status.started_at.unwrap()).as_millis()
}

#[test]
fn a_command_runs_in_the_container_once() {
    let handler = "{exec: {command: [sh, -c, 'cat /etc/version >>/dev/shm/stops']}}";
    let pod = pod("exec", handler, "exec app");
    for cycle in 1..=2 {
        let status = pod.restart(&["app"]);
        assert!(!status.message.contains("preStop"), "{status:?}");
        assert_eq!(pod.facts().settled().lines("stops"), vec!["v1"; cycle]);
    }
}

#[test]
fn a_get_goes_to_the_pods_address_and_the_named_port() {
    let handler = "{httpGet: {path: '/bye?x=1', port: http, httpHeaders: [{name: X-Why, value: restart}]}}";
    let pod = pod("get", handler, &server("200 OK"));
    listens(pod.facts().running("app"));
    let status = pod.restart(&["app"]);
    assert!(!status.message.contains("preStop"), "{status:?}");
    let facts = pod.facts().settled();
    let hits = facts.lines("hits").join("\n").to_lowercase().replace('\r', "");
    assert!(hits.starts_with("get /bye?x=1\n"), "{hits}");
    assert!(hits.contains(&format!("host: {}:8080", facts.ip)), "{hits}");
    assert!(hits.contains("x-why: restart"), "{hits}");
    assert_eq!(hits.matches("get ").count(), 1, "{hits}");
}

#[test]
fn a_get_that_is_answered_with_an_error_is_reported() {
    let pod = pod("get-500", "{httpGet: {path: /bye, port: 8080}}", &server("500 Oh"));
    listens(pod.facts().running("app"));
    let status = pod.restart(&["app"]);
    assert!(status.message.contains("preStop of app failed: GET answered 500"), "{status:?}");
    assert_eq!(pod.facts().settled().lines("hits")[0], "GET /bye");
}

#[test]
fn a_connection_is_opened() {
    // The kernel completes a connection before the server accepts it: the container ends after its server has.
    let listen = "nc -ll -p 8080 -e sh -c \"echo hit >>/dev/shm/hits\" & \
        trap \"until test -s /dev/shm/hits; do sleep 0.05; done; exit 0\" TERM; while :; do sleep 3600 & wait $!; done";
    let pod = pod("tcp", "{tcpSocket: {port: http}}", listen);
    listens(pod.facts().running("app"));
    let status = pod.restart(&["app"]);
    assert!(!status.message.contains("preStop"), "{status:?}");
    assert_eq!(pod.facts().settled().lines("hits"), ["hit"]);
}

#[test]
fn a_sleep_is_slept() {
    let pod = pod("sleep", "{sleep: {seconds: 1}}", "exec app");
    let status = pod.restart(&["app"]);
    assert!((1000..GRACE * 1000).contains(&until_stopped(&status)), "{status:?}");
}

#[test]
fn a_handler_that_fails_is_reported_and_blocks_nothing() {
    for (name, handler, why) in [
        ("fails", "{exec: {command: [sh, -c, 'exit 7']}}", "the command exited with 7"),
        ("missing", "{exec: {command: [/not-there]}}", "not-there"),
        ("silent", "{tcpSocket: {port: 9090}}", "no connection to"),
        ("deaf", "{httpGet: {port: 9090}}", "GET failed"),
    ] {
        let pod = pod(name, handler, "exec app");
        let status = pod.restart(&["app"]);
        assert!(status.message.contains("preStop of app failed: "), "{status:?}");
        assert!(status.message.contains(why), "{status:?}");
        assert!(until_stopped(&status) < GRACE * 1000, "{status:?}");
        assert_eq!(pod.facts().settled().running("app").attempt, 1);
    }
}

#[test]
fn a_handler_ends_with_the_grace_and_two_seconds_are_left_to_stop() {
    // The process needs 1 s after SIGTERM; without remaining grace it would be killed.
    let slow =
        "trap \"sleep 1; echo bye >>/dev/shm/bye; exit 0\" TERM; while :; do sleep 3600 & wait $!; done";
    let pod = pod_with_grace(3, "long", "{exec: {command: [sleep, \"60\"]}}", slow);
    let status = pod.operate("restart", &["-c", "app"]).is(Phase::Succeeded);
    assert!(status.message.contains("preStop of app failed"), "{status:?}");
    let facts = pod.facts().settled();
    assert_eq!(facts.lines("bye"), ["bye"]);
    assert_eq!(facts.of("app").next().unwrap().exit_code, 0);
    assert!((3900..60_000).contains(&until_stopped(&status)), "{status:?}");
}
