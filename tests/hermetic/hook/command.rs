//! `inplace hook test` and `hook check`, as a user runs them.

use std::io::{Seek, Write};
use std::process::{Command, Output};

use inplace::api::hook_run::{HookPhase, HookRunStatus};

use super::super::api_server::{ApiServer, pods};
use super::server::Server;

const TEMPLATE: &str = r#"apiVersion: tkex.tencent.com/v1alpha1
kind: HookTemplate
metadata:
  name: test
spec:
  args:
    - name: PodIP
    - name: PORT
  metrics:
    - name: webtest
      count: 3
      interval: 200ms
      failureLimit: 2
      successCondition: "asInt(result) > 30"
      provider:
        web:
          url: http://{{ args.PodIP }}:{{ args.PORT }}/age
          jsonPath: "{$.age}"
"#;

/// Runs `inplace hook ARGS` with the template on standard input. A file and not a pipe: a command
/// that refuses its arguments ends without reading, which breaks a pipe that is still written.
fn hook(template: &str, args: &[&str]) -> Output {
    let mut input = tempfile::tempfile().unwrap();
    input.write_all(template.as_bytes()).unwrap();
    input.rewind().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.arg("hook").args(args).args(["-f", "-"]).env_remove("INPLACE_RUNTIME_ENDPOINT");
    command.stdin(input).output().unwrap()
}

fn test(server: &Server, template: &str, more: &[&str]) -> Output {
    let port = format!("PORT={}", server.address.port());
    hook(template, &[&["test", "--arg", "PodIP=127.0.0.1", "--arg", &port], more].concat())
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn reported(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_template_is_run_and_its_verdict_explained() {
    let server = Server::start();
    let output = test(&server, TEMPLATE, &[]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = out(&output);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    for (index, line) in lines[..3].iter().enumerate() {
        assert!(line.starts_with(&format!("webtest #{} Successful \"43\" in ", index + 1)), "{text}");
        assert!(line.ends_with(" ms: successCondition asInt(result) > 30 holds"), "{text}");
    }
    assert_eq!(lines[3], "webtest: Successful (3 successful, 0 failed, 0 inconclusive, 0 errors)");
    assert_eq!(lines[4], "Successful");
    assert_eq!(server.requests().len(), 3);

    let failing = TEMPLATE.replace("> 30", "< 30");
    let output = test(&server, &failing, &["-o", "json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let status: HookRunStatus = serde_json::from_str(&out(&output)).unwrap();
    assert_eq!((status.phase, status.metric_results[0].failed), (Some(HookPhase::Failed), 3));
    assert_eq!(status.metric_results[0].measurements[0].value, "43");

    let output = test(&server, &failing, &["--once"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!(server.requests().len(), 7, "once is once");
    let text = out(&output);
    assert!(text.contains("webtest #1 Failed \"43\" in ") && !text.contains("#2"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("Failed: webtest: "), "{text}");
}

#[test]
fn what_a_node_would_deny_is_denied_here_but_for_the_loopback() {
    let output = hook(TEMPLATE, &["test", "--once", "--arg", "PodIP=169.254.169.254", "--arg", "PORT=80"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(out(&output).contains("--hook-allow 169.254.169.254 allows it"), "{output:?}");
}

#[test]
fn what_cannot_be_run_is_refused_with_the_place() {
    let server = Server::start();
    for (template, args, why) in [
        (TEMPLATE.replace("count:", "counts:"), &[][..], "unknown field: spec.metrics[0].counts"),
        (TEMPLATE.replace("asInt(result) > 30", "asInt(result) >"), &[], "successCondition"),
        (TEMPLATE.replace("HookTemplate", "HookRun"), &[], "\"HookRun\""),
        (TEMPLATE.replace("- name: PORT", "- name: PORT\n    - name: other"), &[], "args.other"),
        (TEMPLATE.to_owned(), &["--arg", "stray=1"], "the hook has no argument stray"),
        (TEMPLATE.replace("http://", "ftp://"), &[], "http://"),
    ] {
        let output = test(&server, &template, args);
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        assert!(reported(&output).contains(why), "{why}: {output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
    }
    assert!(server.requests().is_empty());
    assert_eq!(hook(TEMPLATE, &["test", "--arg", "=1"]).status.code(), Some(2));
}

#[test]
fn a_template_is_checked_without_being_run() {
    let output = hook(TEMPLATE, &["check"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(out(&output).contains("arguments to set for each run: PodIP, PORT"), "{output:?}");
    let output = hook(&TEMPLATE.replace("interval: 200ms", "interval: soon"), &["check"]);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(reported(&output).contains("interval"), "{output:?}");
}

#[tokio::test]
async fn a_pod_of_the_cluster_gives_the_arguments() {
    let server = Server::start();
    let api = ApiServer::start().await;
    api.put(pods::pod("shop", "web-0", "node-1"));
    let template = TEMPLATE
        .replace("    - name: PodIP\n", "")
        .replace("{{ args.PodIP }}", "127.0.0.1")
        .replace("/age", "/age?{{ args.PodName }},{{ args.PodNamespace }},{{ args.PodIP }},{{ args.HostIP }},{{ args.PodContainer[0] }}");
    let kubernetes = "
    - name: annotation
      provider:
        kubernetes: {function: get, fields: [{path: metadata.annotations.cni.example/ip, value: 10.0.0.7/32}]}
";
    let template = template.trim_end().to_owned() + kubernetes;
    let (kubeconfig, port) = (api.kubeconfig(), format!("PORT={}", server.address.port()));
    let kubeconfig = kubeconfig.to_str().unwrap().to_owned();
    let run = move |pod: &'static str| {
        let (template, kubeconfig, port) = (template.clone(), kubeconfig.clone(), port.clone());
        tokio::task::spawn_blocking(move || {
            hook(&template, &["test", "--once", "--arg", &port, "--kubeconfig", &kubeconfig, "--pod", pod])
        })
    };
    let output = run("web-0").await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(server.requests()[0].line, "GET /age?web-0,shop,10.0.0.7,192.0.2.1,app");
    assert!(out(&output).contains("annotation #1 Successful in "), "{output:?}");
    let output = run("nobody").await.unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(reported(&output).contains("reading pod shop/nobody"), "{output:?}");
    assert_eq!(server.requests().len(), 1);
}
