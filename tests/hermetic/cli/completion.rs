//! What a shell gets when it asks for the rest of a word.

use serde_json::json;

use super::super::api_server::{ApiServer, pods};
use super::{bare, text};

/// The candidates for the last of `words`.
async fn candidates(api: &ApiServer, words: &[&str]) -> Vec<String> {
    let mut command = bare();
    command.env("INPLACE_COMPLETE", "bash").env("_CLAP_IFS", "\n");
    command.env("_CLAP_COMPLETE_INDEX", (words.len() + 2).to_string());
    command.args(["--", "inplace", "--log=off"]).arg(format!("--kubeconfig={}", api.kubeconfig().display()));
    command.args(words);
    let output = tokio::process::Command::from(command).output().await.unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn pods_and_containers_are_completed() {
    let api = ApiServer::start().await;
    for (name, container) in [("web-0", "app"), ("web-1", "side"), ("db-0", "db")] {
        let mut pod = pods::pod("shop", name, "node-1");
        pod["spec"]["containers"][0]["name"] = json!(container);
        api.put(pod);
    }
    for (words, expected) in [
        (&["restart", "we"][..], &["web-0", "web-1"][..]),
        (&["history", "pod/d"], &["pod/db-0"]),
        (&["restart", "web-1", "-c", ""], &["side"]),
        (&["restart", "-c", "a"], &["app"]),
        (&["status", "-n", "other", "we"], &[]),
        (&["rest"], &["restart"]),
    ] {
        assert_eq!(candidates(&api, words).await, expected, "{words:?}");
    }
}

#[tokio::test]
async fn a_script_is_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let mut command = bare();
        command.args(["completion", shell]);
        let output = tokio::process::Command::from(command).output().await.unwrap();
        let script = text(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        assert!(script.contains("INPLACE_COMPLETE"), "{shell}: {script}");
    }
}
