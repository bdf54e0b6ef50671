//! The cache of a node's pods is complete and current, and reports when it is not.

use std::time::Duration;

use inplace::cluster::pods::NodePods;
use serde_json::json;

use super::super::api_server::{ApiServer, Fault, Store, pods};
use super::{Fixture, NODE};

impl Fixture {
    /// Writes a request, as a user does.
    fn spec(&self, name: &str, text: &str) {
        self.api
            .edit("shop", name, |pod| pod["metadata"]["annotations"]["inplace.dev/request"] = json!(text));
    }
}

fn names(fixture: &Fixture) -> Vec<String> {
    let mut names: Vec<_> = fixture.pods.list().iter().map(|pod| pod.reference().name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn it_knows_the_pods_of_its_node_and_no_others() {
    let api = ApiServer::start().await;
    for (name, node) in [("web-0", NODE), ("web-1", "node-2"), ("web-2", NODE)] {
        api.put(pods::pod("shop", name, node));
    }
    let fixture = Fixture::watching(api).await;
    assert!(!fixture.pods.has_synced() && !fixture.pods.is_current() && fixture.pods.list().is_empty());
    fixture.until("it is current", NodePods::is_current).await;
    assert!(fixture.pods.has_synced());
    assert_eq!(names(&fixture), ["web-0", "web-2"]);
    fixture.api.put(pods::pod("shop", "web-3", NODE));
    fixture.api.put(pods::pod("shop", "web-4", "node-2"));
    fixture.caught_up().await;
    assert_eq!(names(&fixture), ["web-0", "web-2", "web-3"]);
    fixture.api.remove("shop", "web-0");
    fixture.spec("web-2", "restart app #2");
    fixture.caught_up().await;
    assert_eq!(names(&fixture), ["web-2", "web-3"]);
    let two = &fixture.pods.list()[0];
    assert_eq!(two.request(), Some("restart app #2"));
}

#[tokio::test]
async fn nothing_of_a_pods_environment_is_cached() {
    let fixture = Fixture::start().await;
    let pod = fixture.pods.get(&fixture.web()).unwrap();
    let shown = format!("{pod:?} {:?}", fixture.pods);
    assert!(
        !shown.contains("hunter2") && !shown.contains("cni.example") && !shown.contains("f:status"),
        "{shown}"
    );
    assert!(shown.contains("restart app"));
}

#[tokio::test]
async fn a_pod_made_again_under_the_same_name_is_another_one() {
    let fixture = Fixture::start().await;
    let old = fixture.web();
    fixture.api.store(|store| {
        store.remove("shop", "web-0");
        store.put(pods::pod("shop", "web-0", NODE));
    });
    let new = fixture.web();
    assert_ne!(old.uid, new.uid);
    fixture.until("the new one is known", |pods| pods.get(&new).is_some()).await;
    assert!(fixture.pods.get(&old).is_none() && fixture.pods.declared(&old).is_none());
    assert_eq!(fixture.pods.list().len(), 1);
}

#[tokio::test]
async fn a_broken_watch_is_reported_and_resumed_where_it_broke_off() {
    let fixture = Fixture::start().await;
    fixture.api.forget();
    fixture.api.on("WATCH pods").fault(Fault::Answer(503, "not now"));
    fixture.api.cut();
    fixture.until("it is not current", |pods| !pods.is_current()).await;
    assert!(fixture.pods.has_synced());
    assert!(
        !fixture.pods.declared(&fixture.web()).unwrap().current,
        "the pod is still known, as something old"
    );
    fixture
        .api
        .edit("shop", "web-0", |pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-20T11:00:00Z"));
    fixture.until("it is current again", NodePods::is_current).await;
    fixture.until("what was missed is known", |pods| pods.declared(&fixture.web()).unwrap().deleting).await;
    assert!(fixture.pods.declared(&fixture.web()).unwrap().current);
    assert_eq!(fixture.api.count("LIST pods"), 0, "no list: {:?}", fixture.api.calls());
}

#[tokio::test]
async fn a_watch_whose_time_is_over_is_opened_again() {
    let fixture = Fixture::start().await;
    fixture.caught_up().await;
    fixture.api.end_watches();
    fixture.api.arrived("WATCH pods", 1).await;
    fixture.caught_up().await;
    assert!(fixture.pods.is_current());
}

#[tokio::test]
async fn a_history_that_is_gone_means_to_list_again() {
    let fixture = Fixture::start().await;
    // While the watch is open, and while it is not.
    for away in [false, true] {
        fixture.caught_up().await;
        if away {
            fixture.api.go_away().await;
        }
        fixture.api.store(|store| {
            for name in ["web-0", "web-1"] {
                if store.pod("shop", name).is_some() {
                    store.remove("shop", name);
                } else {
                    store.put(pods::pod("shop", name, NODE));
                }
            }
            store.compact();
        });
        if away {
            fixture.api.come_back().await;
        }
        fixture.api.arrived("LIST pods", 1).await;
        let expected = if away { "web-0" } else { "web-1" };
        fixture
            .until("the new pods are known", |pods| {
                pods.is_current() && pods.list().iter().map(|pod| pod.reference().name).eq([expected])
            })
            .await;
    }
}

#[tokio::test]
async fn a_bookmark_moves_the_place_to_go_on_from() {
    let fixture = Fixture::start().await;
    fixture.caught_up().await;
    // Pods of another node advance the history without an event for this watch.
    fixture.api.put(pods::pod("shop", "other", "node-2"));
    let version = fixture.api.store(|store| store.version());
    fixture.api.bookmark();
    // A bookmark that was sent before the end of the watch arrives before that end.
    fixture.api.end_watches();
    fixture.api.until("the next watch goes on from there", |store| store.last_watch_from() == version).await;
}

#[tokio::test]
async fn a_server_that_is_away_at_first_is_found_when_it_comes() {
    let api = ApiServer::start().await;
    api.put(pods::pod("shop", "web-0", NODE));
    api.go_away().await;
    let fixture = Fixture::watching(api).await;
    fixture.api.come_back().await;
    fixture.until("it is current", NodePods::is_current).await;
    assert_eq!(names(&fixture), ["web-0"]);
}

#[tokio::test]
async fn a_server_that_was_set_back_in_time_is_believed() {
    let fixture = Fixture::start().await;
    fixture.spec("web-0", "restart app #9");
    fixture.caught_up().await;
    // The server does not have the version to continue from, and says so each time.
    fixture.api.on("WATCH pods").times(3).fault(Fault::Answer(504, "Too large resource version"));
    fixture.api.cut();
    fixture.api.store(Store::set_back);
    fixture.api.arrived("LIST pods", 1).await;
    knows_the_old_state(&fixture).await;
}

#[tokio::test]
async fn a_server_that_was_set_back_and_says_nothing_is_believed() {
    let fixture = Fixture::start().await;
    fixture.spec("web-0", "restart app #9");
    fixture.caught_up().await;
    // The server accepts the version to continue from, which it does not have yet, and sends nothing.
    fixture.api.before("WATCH pods", Store::set_back);
    fixture.api.cut();
    fixture.api.arrived("WATCH pods", 1).await;
    fixture.until("it is current", NodePods::is_current).await;
    silence().await;
    knows_the_old_state(&fixture).await;
}

/// Waits until the cache has the pod as it was before the change that a server that was set back has lost.
async fn knows_the_old_state(fixture: &Fixture) {
    fixture
        .until("the old state is known", |pods| {
            pods.is_current()
                && pods.get(&fixture.web()).is_some_and(|pod| pod.request() == Some("restart app"))
        })
        .await;
}

#[tokio::test]
async fn a_kind_that_is_missing_for_a_moment_is_not_gone() {
    let fixture = Fixture::start().await;
    fixture.caught_up().await;
    // A server that is starting does not have all kinds at once.
    fixture.api.on("LIST pods").fault(Fault::Answer(404, "the server could not find the requested resource"));
    fixture.api.compact();
    fixture.api.arrived("LIST pods", 1).await;
    fixture
        .until("it is current again", |pods| {
            assert_eq!(names(&fixture), ["web-0"]);
            pods.is_current()
        })
        .await;
    assert_eq!(fixture.api.count("LIST pods"), 2);
}

#[tokio::test]
async fn many_changes_are_one_notification_for_every_waiter() {
    let fixture = Fixture::start().await;
    let mut waiters = [fixture.pods.clone(), fixture.pods.clone()];
    for number in 0..50 {
        fixture.spec("web-0", &format!("restart app #{number}"));
    }
    fixture.caught_up().await;
    for waiter in &mut waiters {
        fixture.api.patiently("news", waiter.changed()).await;
        let more = tokio::time::timeout(Duration::from_millis(20), waiter.changed()).await;
        assert!(more.is_err(), "everything came at once");
        assert_eq!(waiter.get(&fixture.web()).unwrap().request(), Some("restart app #49"));
    }
    fixture.spec("web-0", "restart app");
    for waiter in &mut waiters {
        fixture.api.patiently("the next news", waiter.changed()).await;
    }
}

#[tokio::test]
async fn a_silent_watch_is_not_trusted_for_ever() {
    let fixture = Fixture::start().await;
    fixture.caught_up().await;
    silence().await;
    fixture.api.arrived("WATCH pods", 1).await;
    fixture.until("it is current", NodePods::is_current).await;
    // Only the version was asked for.
    assert_eq!(fixture.api.count("LIST pods"), 1, "{:?}", fixture.api.calls());
}

#[tokio::test]
async fn a_silent_watch_is_not_current_while_the_server_is_asked() {
    let fixture = Fixture::start().await;
    fixture.caught_up().await;
    fixture.api.on("LIST pods").fault(Fault::Hang);
    silence().await;
    fixture.api.arrived("LIST pods", 1).await;
    assert!(!fixture.pods.is_current());
}

/// Bookmarks would come every minute; after a longer silence the watch is opened again. The time passes in one step: a paused
/// clock that runs by itself does not wait for the connection to the server, whose time limit would pass as well.
async fn silence() {
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(95)).await;
    tokio::time::resume();
}

#[tokio::test]
async fn once_stopped_nothing_is_current() {
    let Fixture { api, pods, stop } = Fixture::start().await;
    drop(stop);
    let mut updates = pods.clone();
    api.patiently("it is not current", async {
        while updates.is_current() {
            updates.changed().await;
        }
    })
    .await;
    assert!(pods.has_synced() && pods.list().len() == 1);
}
