//! The agent and its annotations: a request is carried out once and answered as the contract says; a request that
//! cannot be carried out is refused with a reason and changes nothing.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::support::wait::eventually;

#[test]
fn a_line_in_the_annotation_is_carried_out_once_and_answered_in_full() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.running("web");
    let agent = fixture.agent(&[]);
    // Unquoted YAML, as people write it.
    let manifest = |request: &str| {
        fixture.write("web.yaml", &format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  annotations:\n    inplace.dev/request: {request}\nspec:\n  restartPolicy: Always\n"));
    };
    manifest("restart app");
    let status = fixture.ended("web", "text-", "Succeeded");
    let after = fixture.running("web");
    let container = &status["containers"][0];
    assert_eq!(after.attempt, before.attempt + 1);
    assert_eq!((status["reason"].as_str(), status["step"].as_str()), (Some(""), Some("Verify")));
    assert_eq!(container["name"], "app");
    assert_eq!(
        (container["action"].as_str(), container["engine"].as_str()),
        (Some("Restart"), Some("Recreate"))
    );
    assert_eq!(container["from"]["containerID"], before.id.as_str());
    assert_eq!(container["to"]["containerID"], after.id.as_str());
    assert_eq!(
        (container["from"]["attempt"].as_u64(), container["to"]["attempt"].as_u64()),
        (Some(0), Some(1))
    );
    assert_eq!(container["to"]["image"], fixture.lab.image("app:v1").as_str());
    assert_eq!(container["from"]["imageID"], container["to"]["imageID"]);
    let at = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let (stopped, started) = (at(&container["stoppedAt"]), at(&container["startedAt"]));
    let down = container["downtimeMs"].as_i64().unwrap();
    // Both times are truncated to milliseconds, so the difference may be one more.
    assert!((started.as_millisecond() - stopped.as_millisecond() - down).abs() <= 1, "{status:#}");
    assert!(at(&status["startedAt"]) <= stopped && started <= at(&container["readyAt"]));
    assert!(at(&container["readyAt"]) <= at(&status["finishedAt"]));
    assert_eq!(status["finishedAt"].as_str().unwrap().len(), "2026-11-20T10:00:00.000Z".len());
    let message = format!("app restarted in place: down {down} ms, attempt 0 -> 1");
    assert_eq!(status["message"], message.as_str());

    // The same request, written again: in YAML an unquoted # begins a comment. A later request proves that it was
    // read.
    manifest("restart app #2");
    fixture.read_again(&agent);
    assert_eq!(fixture.running("web"), after);
    // Quoted, it is another text.
    manifest("'restart app #2'");
    eventually("the second restart", || (fixture.status("web")?["id"] != status["id"]).then_some(()));
    assert_eq!(fixture.ended("web", "text-", "Succeeded")["containers"][0]["to"]["attempt"], 2);
    // The first request again: its ID has ended, whatever followed.
    manifest("restart app");
    let refused = fixture.ended("web", status["id"].as_str().unwrap(), "Refused");
    assert_eq!(refused["reason"], "AlreadyEnded");
    assert!(refused["message"].as_str().unwrap().contains("another id"), "{refused:#}");
    assert_eq!(fixture.running("web").attempt, 2);
}

#[test]
fn an_id_that_has_ended_does_not_run_again_whatever_is_restarted_or_deleted() {
    let fixture = Fixture::new();
    fixture.run("web");
    let mut agent = fixture.agent(&[]);
    fixture.restart("web", "once");
    let status = fixture.ended("web", "once", "Succeeded");
    let after = fixture.running("web");
    agent.stop();
    // The answer exists, so nothing is done.
    let mut agent = fixture.agent(&[]);
    fixture.read_again(&agent);
    assert_eq!((fixture.running("web"), fixture.status("web").unwrap()), (after.clone(), status.clone()));
    agent.stop();
    // Without the answer, the journal holds the result.
    fs::remove_file(fixture.answer("web")).unwrap();
    let agent = fixture.agent(&[]);
    assert_eq!(fixture.ended("web", "once", "Succeeded"), status);
    assert_eq!(fixture.running("web"), after);
    agent.assert_metric(&["inplace_operations_total", "Succeeded"], 0.0);
    // The same while the agent runs.
    fs::remove_file(fixture.answer("web")).unwrap();
    fixture.read_again(&agent);
    assert_eq!((fixture.running("web"), fixture.ended("web", "once", "Succeeded")), (after, status));
}

#[test]
fn a_swap_is_done_and_a_bad_one_is_rolled_back() {
    let fixture = Fixture::new();
    fixture.run("web");
    let _agent = fixture.agent(&[]);
    fixture.ask("web", &format!("swap app={}", fixture.lab.image("app:v2")));
    let status = fixture.ended("web", "text-", "Succeeded");
    let container = &status["containers"][0];
    assert_eq!(container["action"], "Swap");
    assert_eq!(container["to"]["image"], fixture.lab.image("app:v2").as_str());
    assert_ne!(container["from"]["imageID"], container["to"]["imageID"]);
    let crash = json!([{"name": "app", "image": fixture.lab.image("app:crash")}]);
    // On a busy machine the image exits seconds after the runtime has reported its start.
    let request = json!({"id": "bad", "minReadySeconds": 20, "containers": crash});
    fixture.ask("web", &request.to_string());
    let status = fixture.ended("web", "bad", "RolledBack");
    assert_eq!((status["reason"].as_str(), status["step"].as_str()), (Some("Exited"), Some("Rollback")));
    let to = &status["containers"][0]["to"];
    assert_eq!(to["image"], fixture.lab.image("app:v2").as_str());
    assert_eq!(
        (to["attempt"].as_u64(), to["containerID"].as_str()),
        (Some(3), Some(&*fixture.running("web").id))
    );
    assert!(status["message"].as_str().unwrap().contains("exited with code 3"), "{status:#}");
}

#[test]
fn what_cannot_be_done_is_refused_with_its_reason_and_touches_nothing() {
    let fixture = Fixture::new();
    fixture.run("web");
    fixture.run("other");
    let before = fixture.instances("web");
    let agent = fixture.agent(&[]);
    for (request, reason, reported) in [
        ("restart nobody", "UnknownContainer", "it has app"),
        ("reboot app", "InvalidRequest", "write `restart NAME"),
        (
            r#"{"containers":[{"name":"app"}],"graceSeconds":3}"#,
            "InvalidRequest",
            "unknown field `graceSeconds`",
        ),
        (
            r#"{"containers":[{"name":"app"}],"deadlineSeconds":0}"#,
            "InvalidRequest",
            "deadlineSeconds: 1 to 86400",
        ),
        (
            r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":5}"#,
            "NoReadinessGate",
            "remove gracePeriodSeconds",
        ),
        (
            r#"{"containers":[{"name":"app"}],"preHook":{"templateName":"x"}}"#,
            "HookTemplateMissing",
            "create it in namespace default",
        ),
        (r#"{"containers":[{"name":"app"}],"engine":"Respec"}"#, "EngineUnavailable", "needs an API server"),
        (r#"{"containers":[{"name":"app"}],"deadlineSeconds":3}"#, "DeadlineTooShort", "too short"),
        ("swap app=UPPER:v1", "InvalidRequest", "containers[0].image"),
    ] {
        fixture.ask("web", request);
        let status = eventually(request, || {
            fixture.status("web").filter(|status| {
                status["reason"] == reason && status["message"].as_str().unwrap().contains(reported)
            })
        });
        assert_eq!(status["phase"], "Refused", "{status:#}");
        assert!(status["message"].as_str().unwrap().ends_with("Nothing was touched"), "{status:#}");
        assert!(status["startedAt"].is_null() && status["finishedAt"].is_string(), "{status:#}");
    }
    assert_eq!(fixture.instances("web"), before);
    agent.assert_metric(&["inplace_operations_total", "InvalidRequest"], 4.0);
    // Another pod is not affected.
    fixture.ask("other", "restart app");
    fixture.ended("other", "text-", "Succeeded");
    // A pod that does not exist.
    fixture.ask("ghost", "restart app");
    let status = fixture.ended("ghost", "text-", "Refused");
    assert_eq!(
        (status["reason"].as_str(), status["message"].as_str()),
        (Some("PodNotFound"), Some("there is no pod default/ghost on this node. Nothing was touched"))
    );
}

#[test]
fn a_bad_file_is_answered_under_its_own_name_and_hurts_no_other() {
    let fixture = Fixture::new();
    fixture.run("web");
    let agent = fixture.agent(&[]);
    let answer = |file: &str| fixture.state.join(format!("status/{file}.json"));
    let reported = |path: &Path| serde_json::from_slice::<Value>(&fs::read(path).ok()?).ok();
    fixture.write("bad.yaml", "kind: Pod\nmetadata: {name: web\nspec: s3cret-in-a-file\n");
    fixture.write("nameless.yml", "kind: Pod\nmetadata: {}\n");
    fixture.restart("web", "beside");
    fixture.ended("web", "beside", "Succeeded");
    let bad = eventually("an answer to the bad file", || reported(&answer("bad.yaml")));
    assert_eq!((bad["phase"].as_str(), bad["reason"].as_str()), (Some("Refused"), Some("InvalidManifest")));
    let message = bad["message"].as_str().unwrap();
    assert!(
        message.starts_with("bad.yaml: not valid YAML: line ") && !message.contains("s3cret"),
        "{message}"
    );
    let nameless = eventually("an answer to the other one", || reported(&answer("nameless.yml")));
    assert!(nameless["message"].as_str().unwrap().contains("has no metadata.name"), "{nameless:#}");
    agent.assert_metric(&["inplace_unreadable_files"], 2.0);
    // Another error in the same file still counts as one file.
    fixture.write("bad.yaml", "kind: [\n");
    eventually("the other mistake", || (reported(&answer("bad.yaml"))? != bad).then_some(()));
    agent.assert_metric(&["inplace_unreadable_files"], 2.0);
    fs::remove_file(fixture.pods.join("bad.yaml")).unwrap();
    fs::remove_file(fixture.pods.join("nameless.yml")).unwrap();
    eventually("the answers to go", || {
        (!answer("bad.yaml").exists() && !answer("nameless.yml").exists()).then_some(())
    });
    agent.await_metric(&["inplace_unreadable_files"], 0.0);
    // Two files for one pod: the first by name counts, the second is reported.
    fixture.write(
        "zweb.yaml",
        "kind: Pod\nmetadata: {name: web, annotations: {inplace.dev/request: restart nobody}}\n",
    );
    let twice = eventually("an answer to the second file", || reported(&answer("zweb.yaml")));
    assert!(
        twice["message"].as_str().unwrap().contains("pod default/web is also in another file"),
        "{twice:#}"
    );
    assert_eq!(fixture.status("web").unwrap()["id"], "beside");
}

/// Names of pods become file names: a name that leads to another folder is refused, and nothing is written there.
#[test]
fn a_manifest_whose_namespace_is_a_path_writes_nothing_elsewhere() {
    let fixture = Fixture::new();
    let _agent = fixture.agent(&[]);
    let elsewhere = fixture.folder.path().join("elsewhere");
    for (file, namespace) in [("up.yaml", "../escaped"), ("root.yaml", elsewhere.to_str().unwrap())] {
        fixture.write(
            file,
            &format!(
                "kind: Pod\nmetadata: {{name: web, namespace: '{namespace}', annotations: {{inplace.dev/request: \
                 restart app}}}}\n"
            ),
        );
        let answer = fixture.state.join(format!("status/{file}.json"));
        let reported = eventually("an answer to the file", || {
            serde_json::from_slice::<Value>(&fs::read(&answer).ok()?).ok()
        });
        assert!(
            reported["message"].as_str().unwrap().contains("metadata.namespace that is not a valid name"),
            "{reported:#}"
        );
    }
    assert!(!fixture.state.join("escaped_web.json").exists());
    assert!(!fixture.folder.path().join("elsewhere_web.json").exists());
}
