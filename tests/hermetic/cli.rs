//! The commands for pods without a reachable cluster: their messages and exit codes.

use std::fs;
use std::process::{Command, Output};

use tempfile::TempDir;
use tokio::net::TcpSocket;

use super::api_server::ApiServer;

mod completion;
mod connection;
mod objects;
mod writes;

/// Runs the program against the fake API server, without this machine's kubeconfig.
async fn run(api: &ApiServer, args: &[&str]) -> Output {
    let mut command = bare();
    command.args(args).arg("--kubeconfig").arg(api.kubeconfig());
    tokio::process::Command::from(command).output().await.unwrap()
}

/// The program without any kubeconfig.
fn bare() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").env_remove("KUBERNETES_SERVICE_HOST");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs the program with a kubeconfig that names this server.
fn inplace(server: &str, args: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"{server}\"}}}}]\nusers: [{{name: test, user: {{}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test, namespace: demo}}}}]\n"
    );
    fs::write(&kubeconfig, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.args(args).arg("--kubeconfig").arg(&kubeconfig).output().unwrap()
}

#[test]
fn an_api_server_that_is_away_has_its_own_exit_code() {
    // It has a port, so that no other test gets that, and does not listen.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    for args in [
        &["restart", "web", "-c", "app", "--wait"][..],
        &["swap", "web", "app=repo/app:v2"],
        &["plan", "web"],
        &["status"],
        &["status", "web", "-w"],
        &["history", "web"],
        &["cancel", "web"],
        &["restart", "deploy/web", "-c", "app", "--wait"],
        &["swap", "sts/web", "app=repo/app:v2"],
        &["restart", "-l", "app=web"],
        &["cancel", "ipr/web"],
        &["rollout", "status", "ipr/web"],
        &["rollout", "pause", "ipr/web"],
        &["rollout", "status", "gamedeployment/web"],
        &["rollout", "history", "gamestatefulset/web"],
        &["rollout", "undo", "gamedeployment/web"],
        &["rollout", "pause", "gamedeployment", "web"],
    ] {
        let output = inplace(&server, args);
        let reported = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(6), "{args:?}: {reported}");
        assert!(reported.contains("connection refused: no process listens there"), "{args:?}: {reported}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_context_that_is_not_there_is_said_before_anything_is_asked() {
    let output = inplace("http://127.0.0.1:1", &["status", "--context", "elsewhere"]);
    let reported = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{reported}");
    assert!(
        reported.contains("the kubeconfig cannot be used") && reported.contains("elsewhere"),
        "{reported}"
    );
}
