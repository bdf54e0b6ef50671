//! `inplace rollout` on a real API server. No controller runs: the test writes the revisions and the status that
//! a controller would.

use std::process::Command;

use inplace::api::pod_template::PodTemplate;
use inplace::workload::revision;
use serde_json::{Value, json};

use crate::api_server::ApiServer;

/// The published examples of both kinds.
const EXAMPLES: [(&str, &str); 2] = [
    ("gamedeployment/test-gamedeployment", include_str!("examples/gamedeployment-inplace-update.yaml")),
    ("gamestatefulset/test-gamestatefulset", include_str!("examples/gamestatefulset-inplace-update.yaml")),
];

struct Fixture {
    server: ApiServer,
}

impl Fixture {
    /// The program's exit code and output.
    fn rollout(&self, args: &[&str]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
        let output = command.arg("rollout").args(args).arg("--kubeconfig").arg(self.server.kubeconfig());
        let output = output.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    fn done(&self, args: &[&str]) -> String {
        let (code, text) = self.rollout(args);
        assert_eq!(code, Some(0), "{args:?}: {text}");
        text
    }

    fn kubectl(&self, args: &[&str], input: &str) -> String {
        let output = self.server.kubectl(args, input);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn get(&self, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", name, "-o", "json"], "")).unwrap()
    }

    /// Creates the revision that a controller creates for the current template.
    fn record(&self, name: &str, number: i64) {
        let object = self.get(name);
        let own = object["metadata"]["name"].as_str().unwrap();
        let revision = json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number,
            "metadata": {
                "name": format!("{own}-{number}"), "labels": object["spec"]["selector"]["matchLabels"],
                "annotations": {"kubernetes.io/change-cause": format!("change {number}")},
                "ownerReferences": [{"apiVersion": object["apiVersion"], "kind": object["kind"], "name": own,
                    "uid": object["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}],
            },
            "data": revision::data(&PodTemplate(object["spec"]["template"].clone())),
        });
        self.kubectl(&["create", "-f", "-"], &revision.to_string());
    }

    /// Writes a status as a controller does.
    async fn report(&self, name: &str, reason: &str) {
        let object = self.get(name);
        let path = object["metadata"]["name"].as_str().unwrap();
        let plural = if name.starts_with("gamed") { "gamedeployments" } else { "gamestatefulsets" };
        let status = json!({"status": {"observedGeneration": object["metadata"]["generation"], "conditions":
            [{"type": "Progressing", "status": "True", "reason": reason, "message": reason}]}});
        let path = format!("/apis/tkex.tencent.com/v1alpha1/namespaces/default/{plural}/{path}/status");
        let request = axum::http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(serde_json::to_vec(&status).unwrap()).unwrap();
        self.server.admin().await.request_text(request).await.unwrap();
    }
}

#[tokio::test]
async fn an_update_is_followed_held_and_taken_back() {
    let fixture = Fixture { server: ApiServer::start().await };
    fixture.server.know_our_kinds().await;
    for (name, example) in EXAMPLES {
        fixture.kubectl(&["apply", "-f", "-"], example);
        let first = fixture.get(name)["spec"]["template"].clone();
        fixture.record(name, 1);
        let image =
            r#"[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"python:3.7"}]"#;
        fixture.kubectl(&["patch", name, "--type=json", "-p", image], "");
        fixture.record(name, 2);

        let reported = fixture.done(&["history", name]);
        let words: Vec<Vec<_>> = reported.lines().map(|line| line.split_whitespace().collect()).collect();
        let own = name.split_once('/').unwrap().1;
        assert_eq!(words[1], ["REVISION", "NAME", "IMAGES", "CHANGE-CAUSE"], "{reported}");
        assert_eq!(words[2], ["1", &format!("{own}-1"), "python=python:3.5", "change", "1"], "{reported}");
        assert_eq!(words[3], ["2", &format!("{own}-2"), "python=python:3.7", "change", "2"], "{reported}");
        assert_eq!(words[4], ["now:", "revision", "2"], "{reported}");
        let reported = fixture.done(&["history", name, "--revision=1"]);
        assert!(
            reported.contains("with revision #1") && reported.contains("image: python:3.5"),
            "{reported}"
        );

        // No status has been written yet.
        let (code, reported) = fixture.rollout(&["status", name, "--timeout=1s"]);
        assert_eq!(code, Some(8), "{reported}");
        assert!(reported.contains("has not observed the latest change yet"), "{reported}");
        fixture.report(name, "Complete").await;
        assert!(fixture.done(&["status", name, "-w"]).contains("successfully rolled out"));

        let reported = fixture.done(&["undo", name]);
        assert!(
            reported.contains("rolled back to revision 1")
                && reported.contains("python:3.7 -> python=python:3.5"),
            "{reported}"
        );
        assert_eq!(fixture.get(name)["spec"]["template"], first, "as it was, to the letter");
        assert!(fixture.done(&["undo", name, "--to-revision=1"]).contains("skipped"));
        fixture.done(&["undo", name, "--to-revision=2"]);
        let (code, reported) = fixture.rollout(&["undo", name, "--to-revision=9"]);
        assert_eq!(code, Some(3), "{reported}");
        assert!(
            reported.contains("there is no revision 9; the revisions are 1, 2; nothing was changed"),
            "{reported}"
        );

        fixture.done(&["pause", name]);
        assert_eq!(fixture.get(name)["spec"]["updateStrategy"]["paused"], true);
        fixture.done(&["resume", name]);
        assert_eq!(fixture.get(name)["spec"]["updateStrategy"]["paused"], false);
    }
    let (code, reported) = fixture.rollout(&["status", "gamedeployment/nobody"]);
    assert_eq!(code, Some(3), "{reported}");
    assert!(reported.contains("gamedeployment.tkex.tencent.com/nobody"), "{reported}");
}
