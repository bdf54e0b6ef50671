//! What the data says about the objects of the API server, and how it follows their changes.

use reqwest::Client;
use serde_json::{Value, json};

use super::objects::{self, UID, WEB, answer, status, task, web};
use super::{Dashboard, cells};
use crate::api_server::{ApiServer, Fault, pods};

const ROLLOUT: &str = "rollout/shop/web-restart-x7k2p";

async fn start() -> ApiServer {
    let api = ApiServer::start().await;
    objects::put(&api);
    api
}

#[tokio::test]
async fn the_overview_has_rollouts_in_progress_first_and_only_workloads_of_this_project() {
    let api = start().await;
    api.put(objects::pod("DaemonSet/logs", "logs-1", "node-1"));
    let dashboard = Dashboard::start(&api, &[]);
    // All objects are listed when the URL is printed; the watch of the pods may be opened later.
    let data = dashboard.until(&api, "overview", |data| data["current"] == true).await;
    assert_eq!((&data["namespace"], &data["problems"]), (&json!("shop"), &json!([])));
    let rollouts = data["view"]["rollouts"].as_array().unwrap();
    let named: Vec<_> = rollouts
        .iter()
        .map(|rollout| (rollout["name"].as_str().unwrap(), rollout["phase"].as_str().unwrap()))
        .collect();
    assert_eq!(named, [("web-restart-x7k2p", "Running"), ("web-swap-v7", "Succeeded")]);
    assert_eq!(rollouts[0]["change"], "restart app");
    assert_eq!(rollouts[1]["change"], "app=registry.example/shop/web:v7");
    let workloads = data["view"]["workloads"].as_array().unwrap();
    let named: Vec<_> = workloads
        .iter()
        .map(|workload| (workload["name"].as_str().unwrap(), &workload["pods"], &workload["failed"]))
        .collect();
    assert_eq!(
        named,
        [("deployment/web", &json!(WEB), &json!(1)), ("gamestatefulset/arena", &json!(12), &json!(0))]
    );
    assert_eq!(workloads[1]["update"]["state"], "Going");
    assert_eq!(workloads[1]["update"]["images"], "app=registry.example/shop/arena:2.4");
}

#[tokio::test]
async fn the_pods_of_a_rollout_are_cells_by_zone_and_node() {
    let api = start().await;
    let dashboard = Dashboard::start(&api, &[]);
    let data = dashboard.data(ROLLOUT).await;
    let zones: Vec<_> = data["view"]["zones"]
        .as_array()
        .unwrap()
        .iter()
        .map(|zone| {
            let nodes = zone["nodes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|node| (node["name"].as_str().unwrap(), node["ready"].as_bool().unwrap()));
            (zone["name"].as_str().unwrap(), nodes.collect::<Vec<_>>())
        })
        .collect();
    assert_eq!(
        zones,
        [
            ("eu-1a", vec![("node-0", true), ("node-1", true)]),
            ("eu-1b", vec![("node-2", true), ("node-3", false)]),
            ("eu-1c", vec![("node-4", true)]),
        ]
    );
    let count = |state: &str| cells(&data).iter().filter(|cell| cell["state"] == state).count();
    let counts = ["Succeeded", "Failed", "Running", "Pending", "Waiting"].map(count);
    assert_eq!(counts, [23, 1, 3, 1, WEB - 28]);
    let failed = *cells(&data).iter().find(|cell| cell["state"] == "Failed").unwrap();
    assert_eq!((&failed["downtimeMs"], &failed["ready"]), (&json!(88), &json!(false)));
    let arena = dashboard.data("workload/shop/gamestatefulset/arena").await;
    let names: Vec<_> = cells(&arena).iter().map(|cell| cell["name"].as_str().unwrap()).collect();
    assert_eq!(names[..3], ["arena-0", "arena-5", "arena-10"], "numbers are compared as numbers");
    let outdated = cells(&arena).iter().filter(|cell| cell["outdated"] == true).count();
    assert_eq!(outdated, 7);
}

#[tokio::test]
async fn a_workload_has_its_rollouts_and_its_revisions() {
    let api = start().await;
    let dashboard = Dashboard::start(&api, &[]);
    let web = dashboard.data("workload/shop/deployment/web").await;
    let rollouts = web["view"]["rollouts"].as_array().unwrap();
    assert_eq!(
        rollouts.iter().map(|rollout| &rollout["name"]).collect::<Vec<_>>(),
        ["web-restart-x7k2p", "web-swap-v7"]
    );
    let arena = dashboard.data("workload/shop/gamestatefulset/arena").await;
    let revisions = arena["view"]["revisions"].as_array().unwrap();
    let found: Vec<_> = revisions
        .iter()
        .map(|revision| (&revision["number"], &revision["cause"], &revision["current"]))
        .collect();
    assert_eq!(
        found,
        [(&json!(2), &json!("release 2"), &json!(true)), (&json!(1), &json!("release 1"), &json!(false))]
    );
}

#[tokio::test]
async fn the_steps_of_an_operation_are_recorded_as_they_come() {
    let api = start().await;
    let dashboard = Dashboard::start(&api, &[]);
    let name = web(39);
    let path = format!("pod/shop/{name}");
    for (phase, step, down) in [
        ("Running", "Pull", None),
        ("Running", "Swap", None),
        ("Running", "Verify", Some(74)),
        ("Succeeded", "Ready", Some(74)),
    ] {
        let now = status(UID, phase, step, 2_100, down);
        api.edit("shop", &name, |pod| task(pod, &now));
        dashboard.until(&api, &path, |data| data["view"]["operations"][0]["step"] == step).await;
    }
    let data = dashboard.data(&path).await;
    let operation = &data["view"]["operations"][0];
    let steps: Vec<_> =
        operation["steps"].as_array().unwrap().iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(steps, ["Pull", "Swap", "Verify"]);
    let spans: Vec<_> = operation["containers"][0]["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| span["name"].as_str().unwrap())
        .collect();
    assert_eq!(spans, ["before", "down", "starting", "after"]);
    // The next operation does not remove the earlier one.
    api.edit("shop", &name, |pod| answer(pod, &status("next", "Running", "Swap", 10, None)));
    let data = dashboard.until(&api, &path, |data| data["view"]["operations"][0]["id"] == "next").await;
    assert_eq!(data["view"]["operations"][1]["id"], UID);
    // The rollout still knows how the pod ended.
    let data = dashboard.data(ROLLOUT).await;
    let cell = cells(&data).into_iter().find(|cell| cell["name"] == name.as_str()).unwrap().clone();
    assert_eq!(cell["state"], "Succeeded", "{cell}");
}

#[tokio::test]
async fn a_stream_has_each_change() {
    let api = start().await;
    let dashboard = Dashboard::start(&api, &[]);
    let stream = Client::new().get(format!("{}api/{ROLLOUT}", dashboard.url));
    let mut stream = stream.header("accept", "text/event-stream").send().await.unwrap();
    let mut text = String::new();
    let mut read = async |wanted: &str| {
        let found = async {
            while !text.contains(wanted) {
                text.push_str(&String::from_utf8_lossy(&stream.chunk().await.unwrap().unwrap()));
            }
        };
        api.patiently(wanted, found).await;
        text.clear();
    };
    read("\n\n").await;
    api.edit("shop", &web(30), |pod| {
        let mut failed = status(UID, "Failed", "Verify", 2_100, None);
        failed["message"] = json!("<b>first</b>");
        task(pod, &failed);
    });
    read("<b>first</b>").await;
}

#[tokio::test]
async fn environment_values_and_commands_are_in_no_answer() {
    let api = start().await;
    let dashboard = Dashboard::start(&api, &[]);
    for path in [
        "overview",
        ROLLOUT,
        "workload/shop/gamestatefulset/arena",
        "workload/shop/deployment/web",
        "pod/shop/arena-0",
    ] {
        let data: Value = dashboard.data(path).await;
        assert!(!data["view"].is_null() && !data.to_string().contains("hunter2"), "{path}");
    }
}

#[tokio::test]
async fn what_the_user_may_not_list_is_left_out_and_said() {
    let api = start().await;
    for call in ["LIST nodes", "LIST events"] {
        api.on(call).fault(Fault::Answer(403, "is forbidden"));
    }
    let dashboard = Dashboard::start(&api, &[]);
    let data = dashboard.data(ROLLOUT).await;
    assert_eq!(
        data["problems"],
        json!([
            "you may not list events: events are not shown",
            "you may not list nodes: pods are grouped by node, without zones"
        ])
    );
    assert_eq!(data["view"]["zones"][0]["name"], Value::Null);
    assert_eq!(data["view"]["zones"][0]["nodes"].as_array().unwrap().len(), 5);
    assert_eq!(api.count("LIST nodes") + api.count("WATCH nodes"), 1);
}

#[tokio::test]
async fn an_api_server_that_is_away_leaves_the_last_state() {
    let api = start().await;
    let dashboard = Dashboard::start(&api, &[]);
    api.go_away().await;
    let data = dashboard.until(&api, ROLLOUT, |data| data["current"] == false).await;
    assert_eq!(cells(&data).len(), WEB);
    api.come_back().await;
    dashboard.until(&api, ROLLOUT, |data| data["current"] == true).await;
}

#[tokio::test]
async fn namespaces_are_those_that_the_flags_say() {
    let api = start().await;
    let mut other = pods::pod("other", "lone", "node-1");
    answer(&mut other, &status("r", "Succeeded", "Ready", 9_000, Some(70)));
    other["metadata"]["ownerReferences"] = json!([]);
    api.put(other);
    let one = Dashboard::start(&api, &["-n", "other"]);
    let data = one.data("overview").await;
    assert_eq!(data["namespace"], "other");
    let all = Dashboard::start(&api, &["-A"]);
    let data = all.data("pod/other/lone").await;
    assert_eq!((&data["namespace"], &data["view"]["workload"]), (&Value::Null, &json!("pod/lone")));
}
