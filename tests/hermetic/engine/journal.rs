//! Journal files of other releases, and unreadable files: this release continues what it understands in them, and
//! none of them keeps a fence in place or hinders another pod.

use inplace::api::status::{Phase, Step};
use serde_json::{Value, json};

use super::{Fixture, nobody, pod, pod_ref, request, shared_pod};

impl Fixture {
    fn file(&self) -> std::path::PathBuf {
        self.node.journal.path(&self.pod.uid)
    }

    fn written(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.file()).unwrap()).unwrap()
    }

    /// Changes the file as another release might have written it.
    fn rewrite(&self, change: impl FnOnce(&mut Value)) {
        let mut value = self.written();
        change(&mut value);
        std::fs::write(self.file(), value.to_string()).unwrap();
    }
}

#[tokio::test]
async fn what_a_newer_release_adds_is_tolerated_and_kept() {
    let mut fixture = Fixture::open().await;
    fixture.die_fenced().await;
    fixture.rewrite(|entry| {
        entry["added"] = json!({"by": "a newer release"});
        entry["open"]["added"] = json!([1]);
        entry["open"]["targets"][0]["added"] = json!("x");
        entry["open"]["targets"][0]["forward"]["added"] = json!(null);
    });
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
    assert_eq!(fixture.written()["added"], json!({"by": "a newer release"}));
    // The next request preserves it as well.
    fixture.ask(request("restart app #2")).await.unwrap();
    assert_eq!(fixture.written()["added"], json!({"by": "a newer release"}));
}

/// The previous release refuses a file with other keys than these.
#[tokio::test]
async fn an_ordinary_file_can_be_read_by_the_release_before() {
    let fixture = Fixture::open().await;
    fixture.restart().await.unwrap();
    let written = fixture.written();
    let known = ["version", "pod", "open", "intent", "last", "finished", "hashes", "owed_gate"];
    let keys: Vec<_> = written.as_object().unwrap().keys().collect();
    assert!(keys.iter().all(|key| known.contains(&key.as_str())), "{keys:?}");
    assert_eq!(written["version"], 1);
}

/// A file that is unreadable, or readable only by a newer release.
#[tokio::test]
async fn no_file_keeps_a_fence_in_place_or_hinders_another_pod() {
    for (text, reason) in [("{", "damaged"), ("", "damaged"), (r#"{"version":7,"pod":1}"#, "version 7")] {
        let mut fixture = Fixture::of(shared_pod()).await;
        fixture.die_fenced().await;
        std::fs::write(fixture.file(), text).unwrap();
        let neighbour = pod_ref(&fixture.fake.put(pod().again()));
        let observer = nobody();
        fixture
            .node
            .carry_out(&neighbour, request("restart app"), fixture.control(), &observer)
            .await
            .unwrap();
        assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (1, 0), "{text}");
        let refused = fixture.restart().await.unwrap_err();
        assert_eq!(refused.reason(), "JournalUnreadable");
        assert!(refused.to_string().contains(reason), "{refused}");
        assert_eq!(std::fs::read_to_string(fixture.file()).unwrap(), text, "it is left for a person");
    }
}

/// A process works on the pod: its fence is needed, whatever the file contains.
#[tokio::test]
async fn a_fence_that_is_in_use_stays() {
    let mut fixture = Fixture::of(shared_pod()).await;
    fixture.die_fenced().await;
    std::fs::write(fixture.file(), "{").unwrap();
    let held = fixture.node.journal.hold(&fixture.pod).unwrap();
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (0, 1));
    drop(held);
    assert_eq!((fixture.sweep().await, fixture.fake.fences().len()), (1, 0));
}

/// An open operation of another release, which has touched its container or not.
async fn not_understood(touched: bool) -> Fixture {
    let mut fixture = Fixture::of(shared_pod()).await;
    fixture.die_fenced().await;
    fixture.rewrite(|entry| {
        entry["open"]["request"]["direction"] = json!("Sideways");
        entry["open"]["targets"][0]["touched"] = json!(touched);
    });
    fixture
}

/// A newer release began it, with a field that this release would handle wrongly.
#[tokio::test]
async fn an_operation_that_is_not_understood_is_set_aside() {
    let fixture = not_understood(false).await;
    fixture.fake.forget();
    let id = fixture.written()["open"]["request"]["id"].clone();
    let status = fixture.resume().await.unwrap().unwrap();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "SetAside"), "{status:#?}");
    assert_eq!(json!(status.id), id);
    assert!(status.message.contains("direction"), "{}", status.message);
    // Only the fence was removed.
    assert!(fixture.fake.fences().is_empty());
    assert_eq!(fixture.fake.story().len(), 1, "{:?}", fixture.fake.story());
    assert!(!fixture.is_open());
    assert_eq!(fixture.written()["owed_gate"], Value::Null, "nothing was touched");
    // The ID has ended; the pod accepts the next request.
    let again = fixture.restart().await.unwrap();
    assert_eq!((again.id, again.phase), (status.id, Phase::Failed));
    let next = fixture.ask(request("restart app #2")).await.unwrap();
    assert_eq!(next.phase, Phase::Succeeded);
}

/// Its drain is not undone: the container may not serve.
#[tokio::test]
async fn of_a_touched_pod_the_gate_stays_closed_when_its_operation_is_not_understood() {
    let fixture = not_understood(true).await;
    let status = fixture.resume().await.unwrap().unwrap();
    assert_eq!(fixture.written()["owed_gate"], "Failed");
    assert_eq!(status.step, Some(Step::Swap), "a workload repairs what failed midway");
}
