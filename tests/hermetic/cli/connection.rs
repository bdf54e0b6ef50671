//! The flags for the connection, as the API server receives them.

use tokio::process::Command;

use super::super::api_server::{ApiServer, Fault, pods};
use super::{bare, run, text};

/// The headers of the last call that say who calls.
fn caller(api: &ApiServer) -> Vec<(String, String)> {
    let mut caller = api.store(|store| store.caller.clone());
    caller.sort();
    caller
}

fn headers(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// The URL of the server in its kubeconfig.
fn address(api: &ApiServer) -> String {
    let text = std::fs::read_to_string(api.kubeconfig()).unwrap();
    let from = text.find("http://").unwrap();
    text[from..].split('\'').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_user_to_act_as_and_the_token_reach_the_server() {
    let api = ApiServer::start().await;
    api.put(pods::pod("shop", "web", "node-1"));
    for (flags, expected) in [
        (&[][..], &[("authorization", "Bearer the-token")][..]),
        (
            &["--as", "jane", "--as-group", "dev", "--as-group", "ops", "--as-uid", "7"],
            &[
                ("authorization", "Bearer the-token"),
                ("impersonate-group", "dev"),
                ("impersonate-group", "ops"),
                ("impersonate-uid", "7"),
                ("impersonate-user", "jane"),
            ],
        ),
        (&["--token", "another-token"], &[("authorization", "Bearer another-token")]),
    ] {
        for command in [&["status"][..], &["plan", "web"], &["rollout", "status", "ipr/web"]] {
            let output = run(&api, &[command, flags].concat()).await;
            assert_ne!(output.status.code(), Some(2), "{command:?}: {}", text(&output.stderr));
            assert_eq!(caller(&api), headers(expected), "{command:?} {flags:?}");
        }
    }
}

#[tokio::test]
async fn a_server_and_a_token_need_no_kubeconfig() {
    let api = ApiServer::start().await;
    let mut command = bare();
    command.args(["status", "-n", "shop", "--token", "the-token", "--server"]).arg(address(&api));
    let output = Command::from(command).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(caller(&api), headers(&[("authorization", "Bearer the-token")]));
    assert_eq!(api.calls(), ["LIST pods"]);
}

#[tokio::test]
async fn a_server_replaces_that_of_the_context() {
    let (one, other) = (ApiServer::start().await, ApiServer::start().await);
    let output = run(&one, &["status", "--server", &address(&other)]).await;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!((one.calls().len(), other.calls().len()), (0, 1));
}

#[tokio::test]
async fn a_call_without_an_answer_ends_with_the_request_timeout() {
    let api = ApiServer::start().await;
    api.on("LIST pods").fault(Fault::Hang);
    let output = run(&api, &["status", "--request-timeout", "1s"]).await;
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stderr).contains("did not answer within 1 s"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn a_token_is_in_no_message_and_no_log() {
    let api = ApiServer::start().await;
    for (flags, code) in [
        (&["status", "--token", "hidden-token", "--log", "trace"][..], 0),
        (&["restart", "none", "--token", "hidden-token", "--log", "trace"], 3),
        (&["status", "--token", "hidden token"], 2),
        (&["status", "--token", "hidden-token", "--server", "nowhere"], 2),
        (&["status", "--token", "hidden-token", "--server", "http://hidden-token:1:2"], 2),
    ] {
        let output = run(&api, flags).await;
        let said = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{flags:?}: {said}");
        let said = said.replace("http://hidden-token:1:2", "");
        assert!(!said.contains("hidden-token"), "{flags:?}: {said}");
    }
}

#[tokio::test]
async fn a_connection_that_cannot_be_prepared_is_a_wrong_command_line() {
    let api = ApiServer::start().await;
    for (flags, says) in [
        (&["--user", "none"][..], "it has no user none"),
        (&["--cluster", "none"], "none"),
        (&["--context", "none"], "none"),
        (&["--client-certificate", "/none.pem", "--client-key", "/none.key"], "none"),
        (&["--as-group", "dev"], "--as"),
        (&["--server", "localhost:8080"], "https://"),
    ] {
        let output = run(&api, &[&["status"][..], flags].concat()).await;
        let said = text(&output.stderr);
        assert_eq!((output.status.code(), said.contains(says)), (Some(2), true), "{flags:?}: {said}");
    }
    let mut command = bare();
    let output = Command::from({
        command.arg("status");
        command
    });
    let output = { output }.output().await.unwrap();
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), said.contains("no kubeconfig")), (Some(2), true), "{said}");
    assert_eq!(api.calls(), Vec::<String>::new());
}
