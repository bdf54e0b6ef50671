//! What the commands print about objects, which pods they select, and what a dry run writes.

use std::process::Output;

use serde_json::{Value, json};

use super::super::api_server::{ApiServer, Fault, pods};
use super::{run, text};

/// A status as an agent writes it.
pub(super) fn status(id: &str, phase: &str) -> String {
    json!({"id": id, "phase": phase, "step": "Ready", "reason": "", "message": "so it ended",
        "startedAt": "2026-11-20T10:00:00.000Z", "finishedAt": "2026-11-20T10:00:01.000Z", "containers": []})
    .to_string()
}

/// Pods `web-0` and `web-1` on `node-1`, and `db-0` on `node-2`. Only `web-0` has a status; the others have no request.
pub(super) async fn shop() -> ApiServer {
    let api = ApiServer::start().await;
    for (name, node, app) in
        [("web-0", "node-1", "web"), ("web-1", "node-1", "web"), ("db-0", "node-2", "db")]
    {
        let mut pod = pods::pod("shop", name, node);
        pod["metadata"]["labels"]["app"] = json!(app);
        pod["metadata"]["annotations"] = if name == "web-0" {
            json!({"inplace.dev/status": status("r-1", "Succeeded")})
        } else {
            json!({})
        };
        api.put(pod);
    }
    let mut elsewhere = pods::pod("other", "web-9", "node-1");
    elsewhere["metadata"]["annotations"] = json!({});
    api.put(elsewhere);
    api.put(rollout());
    api
}

fn rollout() -> Value {
    json!({"apiVersion": "inplace.dev/v1alpha1", "kind": "InPlaceRollout",
        "metadata": {"name": "web-restart-1", "namespace": "shop", "generation": 1},
        "spec": {"target": {"workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
            "containers": [{"name": "app"}]}})
}

fn out(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

pub(super) fn request(api: &ApiServer, name: &str) -> Option<Value> {
    let pod = api.pod("shop", name);
    let request = pod["metadata"]["annotations"]["inplace.dev/request"].as_str()?.to_owned();
    Some(serde_json::from_str(&request).unwrap())
}

#[tokio::test]
async fn objects_are_printed_in_the_forms_of_kubectl() {
    let api = shop().await;
    let paused = ["rollout", "pause", "ipr/web-restart-1", "--dry-run=client"];
    for (args, expected) in [
        (&["status", "-o", "name"][..], "pod/web-0\n"),
        (&["status", "-o", "jsonpath={.items[*].status.phase}"], "Succeeded"),
        (&["status", "-o", r#"jsonpath={range .items[*]}{.name}={.status.id}{"\n"}{end}"#], "web-0=r-1\n"),
        (
            &["status", "--all", "-o", "custom-columns=POD:.name,PHASE:.status.phase"],
            "POD    PHASE\ndb-0   <none>\nweb-0  Succeeded\nweb-1  <none>\n",
        ),
        (
            &[&paused[..], &["-o", "jsonpath={.metadata.name} {.spec.containers[0].name}"]].concat(),
            "web-restart-1 app",
        ),
        (&[&paused[..], &["-o", "name"]].concat(), "inplacerollout.inplace.dev/web-restart-1\n"),
    ] {
        assert_eq!(out(&run(&api, args).await), expected, "{args:?}");
    }
    let output = run(&api, &["status", "-o", "jsonpath={if .x}"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`{if .x}` is not supported"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn output_has_colour_only_if_it_is_asked_for() {
    let api = shop().await;
    for (flags, is_colored) in
        [(&[][..], false), (&["--color", "never"], false), (&["--color", "always"], true)]
    {
        let printed = out(&run(&api, &[&["status"][..], flags].concat()).await);
        assert_eq!(printed.contains("\u{1b}[32mSucceeded\u{1b}[0m"), is_colored, "{printed:?}");
        assert_eq!(printed.contains('\u{1b}'), is_colored, "{printed:?}");
    }
}

/// A user who may write a pod writes the annotation; an administrator reads it.
#[tokio::test]
async fn a_message_cannot_control_the_terminal_or_forge_a_row() {
    let api = shop().await;
    let message = "ok\nshop/db-0  r-2  Succeeded\u{1b}]52;c;bHM=\u{7}\u{1b}[2J\u{9b}2J\u{202e}";
    let shown = r"ok\nshop/db-0  r-2  Succeeded\u{1b}]52;c;bHM=\u{7}\u{1b}[2J\u{9b}2J\u{202e}";
    api.edit("shop", "web-0", |pod| {
        let mut written: Value = serde_json::from_str(&status("r-1", "Succeeded")).unwrap();
        written["message"] = json!(message);
        pod["metadata"]["annotations"]["inplace.dev/status"] = json!(written.to_string());
    });
    for color in ["never", "always"] {
        let printed = out(&run(&api, &["status", "--color", color]).await);
        let own = ["\u{1b}[1m", "\u{1b}[32m", "\u{1b}[0m"];
        let plain = own.iter().fold(printed, |text, code| text.replace(code, ""));
        let lines: Vec<_> = plain.lines().collect();
        assert_eq!(lines.len(), 2, "{plain:?}");
        assert!(lines[1].ends_with(shown), "{plain:?}");
        assert!(!plain.contains(|c: char| c.is_control() && c != '\n'), "{plain:?}");
    }
    // What programs read is the text itself.
    let printed = out(&run(&api, &["status", "-o", "jsonpath={.items[*].status.message}"]).await);
    assert_eq!(printed, message);
}

#[tokio::test]
async fn pods_are_selected_by_node_and_namespace() {
    let api = shop().await;
    for (flags, expected) in [
        (&["--all"][..], "db-0 web-0 web-1"),
        (&["--all", "--node", "node-1"], "web-0 web-1"),
        (&["--all", "--field-selector", "spec.nodeName=node-2"], "db-0"),
        (&["--all", "--field-selector", "metadata.name=web-1", "--node", "node-1"], "web-1"),
        (&["--node", "node-1"], "web-0"),
        (&["--all", "-l", "app=db"], "db-0"),
    ] {
        let args = [&["status", "-o", "jsonpath={.items[*].name}"][..], flags].concat();
        assert_eq!(out(&run(&api, &args).await), expected, "{flags:?}");
    }
}

#[tokio::test]
async fn selected_pods_get_one_request_each_and_others_none() {
    let api = shop().await;
    api.edit("shop", "web-1", |pod| pod["status"]["phase"] = json!("Succeeded"));
    let output = run(&api, &["restart", "--node", "node-1", "-c", "app", "-o", "name"]).await;
    assert_eq!(out(&output), "pod/web-0\n");
    let said = text(&output.stderr);
    assert!(said.contains("2 pods of namespace shop are selected"), "{said}");
    assert!(said.contains("pod/web-1: skipped: pod/web-1 has ended (Succeeded)"), "{said}");
    assert!(request(&api, "web-0").is_some() && request(&api, "db-0").is_none());
    let elsewhere = api.pod("other", "web-9");
    assert!(elsewhere["metadata"]["annotations"]["inplace.dev/request"].is_null());
    // The same pods with `-l`, without a rollout.
    let output =
        run(&api, &["restart", "-l", "app=db", "--field-selector", "spec.nodeName=node-2", "-c", "app"])
            .await;
    out(&output);
    assert!(request(&api, "db-0").is_some());
    let withdrawn = out(&run(&api, &["cancel", "--all", "-o", "jsonpath={.items[*].name}"]).await);
    assert_eq!(withdrawn, "db-0 web-0");
    assert!(request(&api, "web-0").is_none() && request(&api, "db-0").is_none());
    let none = run(&api, &["cancel", "--all"]).await;
    assert!(
        text(&none.stderr).contains("no such pod of namespace shop has a request"),
        "{}",
        text(&none.stderr)
    );
}

#[tokio::test]
async fn a_selection_is_never_combined_with_names_or_flags_of_rollouts() {
    let api = shop().await;
    for (args, code) in [
        (&["restart", "web-0", "--all"][..], 2),
        (&["restart", "deploy/web", "--node", "node-1"], 2),
        (&["restart", "--all", "--max-unavailable", "1"], 2),
        (&["restart", "--node", "node-7", "-c", "app"], 3),
        (&["restart", "--all", "--wait", "--dry-run"], 2),
    ] {
        let output = run(&api, args).await;
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", text(&output.stderr));
    }
    assert!(api.writes().is_empty(), "{:?}", api.writes());
}

#[tokio::test]
async fn a_dry_run_on_the_server_is_sent_and_stores_nothing() {
    let api = shop().await;
    api.edit("shop", "db-0", |pod| {
        pod["metadata"]["annotations"]["inplace.dev/request"] = json!("restart app");
    });
    for (args, sent) in [
        (&["restart", "web-1", "-c", "app"][..], "WOULD PATCH pod shop/web-1"),
        (&["swap", "web-1", "app=registry.example/app:v2"], "WOULD PATCH pod shop/web-1"),
        (&["cancel", "db-0"], "WOULD PATCH pod shop/db-0"),
        (&["rollout", "pause", "ipr/web-restart-1"], "WOULD PATCH inplacerollout shop/web-restart-1"),
        (&["cancel", "ipr/web-restart-1"], "WOULD DELETE inplacerollout shop/web-restart-1"),
        (&["restart", "-l", "app=web", "-c", "app"], "WOULD POST inplacerollout"),
    ] {
        for (flag, expected) in [("--dry-run=server", &[sent][..]), ("--dry-run=client", &[])] {
            api.forget();
            let output = run(&api, &[args, &[flag]].concat()).await;
            assert_eq!(output.status.code(), Some(0), "{args:?} {flag}: {}", text(&output.stderr));
            let writes: Vec<_> =
                api.calls().into_iter().filter(|call| !call.starts_with(['L', 'G'])).collect();
            assert_eq!(writes, expected, "{args:?} {flag}");
            let said = text(&output.stdout) + &text(&output.stderr);
            let is_said = ["(dry run)", "(server dry run)", "nothing was touched"]
                .iter()
                .any(|word| said.contains(word));
            assert!(is_said, "{args:?} {flag}: {said}");
        }
    }
    assert_eq!(request(&api, "web-1"), None);
    assert!(api.get("inplacerollouts", "shop", "web-restart-1").is_some());
}

#[tokio::test]
async fn a_dry_run_reports_what_the_server_refuses() {
    let api = shop().await;
    api.on("WOULD PATCH pod").fault(Fault::Answer(403, "a webhook denied it"));
    let output = run(&api, &["restart", "web-1", "-c", "app", "--dry-run=server"]).await;
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("a webhook denied it"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn versions_are_compared() {
    let api = ApiServer::start().await;
    let own = env!("CARGO_PKG_VERSION");
    for (name, component, image) in [
        ("agent-a", "agent", format!("registry.example/inplace:v{own}")),
        ("agent-b", "agent", "registry.example/inplace:9.9.9".to_owned()),
        ("controller-a", "controller", "inplace:dev".to_owned()),
    ] {
        let mut pod = pods::pod("inplace-system", name, "node-1");
        pod["metadata"]["labels"] =
            json!({"app.kubernetes.io/name": "inplace", "app.kubernetes.io/component": component});
        pod["spec"]["containers"][0]["name"] = json!(component);
        pod["spec"]["containers"][0]["image"] = json!(image);
        api.put(pod);
    }
    let output = run(&api, &["version"]).await;
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{printed}");
    assert!(printed.starts_with(&format!("client: {own}\n")), "{printed}");
    for (version, skew) in [(own, "supported"), ("9.9.9", "not supported"), ("-", "unknown")] {
        let row = printed.lines().find(|line| line.split_whitespace().nth(2) == Some(version));
        assert!(row.is_some_and(|row| row.contains(skew)), "{version}: {printed}");
    }
    let alone = run(&api, &["version", "--client", "-o", "json"]).await;
    assert_eq!(out(&alone), format!("{{\"client\":\"{own}\"}}\n"));
}

#[tokio::test]
async fn top_sums_the_operations_of_pods() {
    let api = shop().await;
    let recent = inplace::process::clock::now().to_string();
    api.edit("shop", "db-0", |pod| {
        let status = json!({"id": "r", "phase": "Failed", "reason": "NotReady", "message": "", "startedAt": recent,
            "finishedAt": recent, "containers": []});
        pod["metadata"]["annotations"]["inplace.dev/status"] = json!(status.to_string());
    });
    let printed = out(&run(&api, &["top", "nodes", "-o", "custom-columns=N:.name,F:.failed"]).await);
    assert_eq!(printed, "N       F\nnode-2  1\n");
    let printed = out(&run(&api, &["top", "--since", "999999h"]).await);
    assert!(printed.contains("deployment/web") && printed.contains("db-0: NotReady"), "{printed}");
}
