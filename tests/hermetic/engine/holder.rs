//! Beside a kubelet, a running holder reserves the name: what is done to create it, and what
//! remains when it cannot be created.

use inplace::node::holder::{Holder, HolderArgs};
use inplace::operation::snapshot::Owner;

use super::super::runtime::{Container, Fault};
use super::{Fixture, HOLDER, pod};

/// A pod that a kubelet manages.
async fn beside_a_kubelet(image: &str) -> Fixture {
    Fixture::of(pod().owner(Owner::Kubelet)).await.held_by(image)
}

impl Fixture {
    /// What was created, started, ended and removed, in that order.
    fn events(&self) -> Vec<String> {
        let history = self.fake.history().into_iter();
        let reported = |event: &String| {
            ["created", "started", "did not start", "exited", "removed"]
                .iter()
                .any(|verb| event.starts_with(verb))
        };
        history.filter(reported).collect()
    }
}

#[tokio::test]
async fn a_clone_shows_that_it_can_be_created_and_a_process_holds_the_name() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.fake.before("StopContainer", |m| {
        let fences: Vec<_> = m.fences("app").into_iter().map(Container::is_running).collect();
        m.history.push(format!("exited none, fences running: {fences:?}"));
    });
    fixture.succeeded(fixture.restart().await, "img:v1");
    let expected = [
        "created fence app#3",
        "removed fence app#3",
        "created fence app#2",
        "started fence app#2",
        "exited none, fences running: [true]",
        "exited app#0 143",
        "created app#1",
        "started app#1",
        "exited fence app#2 137",
        "removed fence app#2",
    ];
    assert_eq!(fixture.events(), expected);
}

#[tokio::test]
async fn what_cannot_be_created_is_found_out_before_anything_is_touched() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.fake.model(|m| m.image("img:v1").refuses_create = Some("no such device".to_owned()));
    let ended = fixture.restart().await.unwrap();
    assert!(ended.message.contains("no such device"), "{ended:?}");
    fixture.untouched();
    assert_eq!(fixture.fake.times("created fence app#2"), 0);
}

#[tokio::test]
async fn where_no_process_can_be_had_a_clone_holds_the_name() {
    for (image, refusal) in [("inplace:gone", None), (HOLDER, Some("exec format error"))] {
        let fixture = beside_a_kubelet(image).await;
        fixture.fake.model(|m| m.image(HOLDER).refuses_start = refusal.map(str::to_owned));
        fixture.fake.before("StopContainer", |m| {
            let fences: Vec<_> = m.fences("app").into_iter().map(|fence| fence.image().to_owned()).collect();
            m.history.push(format!("held by {fences:?}"));
        });
        fixture.succeeded(fixture.restart().await, "img:v1");
        assert!(
            fixture.fake.history().contains(&r#"held by ["img:v1"]"#.to_owned()),
            "{:#?}",
            fixture.fake.history()
        );
    }
}

/// The configuration was read before the stop. A configuration that is read after it would be lost with the container.
#[tokio::test]
async fn an_instance_that_is_collected_right_after_its_end_is_replaced_all_the_same() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.collect_after("StopContainer");
    fixture.succeeded(fixture.restart().await, "img:v1");
}

/// Whether the holder runs is unknown; its name is taken, and the operation continues.
#[tokio::test]
async fn a_start_whose_answer_is_lost_is_good_enough() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.fake.on("StartContainer").about("fence app#2").fault(Fault::FailAfterEffect);
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert_eq!(fixture.fake.times("created fence app#2"), 1);
}

/// The kubelet's collection would mark the older of two containers that do not run, and
/// remove it even if it runs by then.
#[tokio::test]
async fn a_fence_steps_back_for_what_a_kubelet_made_in_the_same_moment() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.fake.after("StopContainer", |m| {
        let fence = m.fences("app")[0].id.clone();
        m.vanish(&fence);
    });
    fixture.fake.on("CreateContainer").about("fence app#2").nth(2).first(|m| {
        m.kubelet_creates("app", None).unwrap();
    });
    fixture.fake.on("RemoveContainer").about("fence app#2").then(|m| {
        let made = m.instances("app").last().unwrap().id.clone();
        m.start(&made).unwrap();
    });
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert_eq!(fixture.fake.times("created fence app#2"), 2);
    assert_eq!(fixture.fake.times("started fence app#2"), 1);
    assert_eq!(fixture.fake.times("created app#1"), 1);
}

/// A kubelet that collects a container without a log path deletes the files of its own working directory.
#[tokio::test]
async fn every_container_has_a_log_of_its_own() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.fake.before("StopContainer", |m| {
        let paths: Vec<_> = m.fences("app").into_iter().map(|fence| fence.config.log_path.clone()).collect();
        m.history.push(format!("fences log to {paths:?}"));
    });
    fixture.succeeded(fixture.restart().await, "img:v1");
    let expected = r#"fences log to ["app/inplace-fence-2.log"]"#;
    assert!(fixture.fake.history().iter().any(|line| line == expected), "{:#?}", fixture.fake.history());
    assert_eq!(fixture.fake.only("app").config.log_path, "app/1.log");
}

/// Whatever the plan says: the pod's container has no log path, so neither a fence nor a replacement can have its own.
#[tokio::test]
async fn what_would_have_no_log_of_its_own_is_not_created() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.fake.model(|m| {
        let id = m.running("app")[0].id.clone();
        m.container_mut(&id).unwrap().config.log_path.clear();
        for sandbox in &mut m.sandboxes {
            sandbox.config.log_directory.clear();
        }
    });
    let ended = fixture.restart().await.unwrap();
    assert!(ended.message.contains("deletes unrelated files"), "{ended:#?}");
    fixture.untouched();
    assert_eq!(fixture.fake.times("created"), 0);
}

/// The kubelet's collection of images removes an image that no container uses.
#[tokio::test]
async fn an_image_that_is_gone_is_looked_for_again() {
    let fixture = beside_a_kubelet(HOLDER).await;
    fixture.restart().await.unwrap();
    assert_eq!(fixture.fake.times("started fence app#2"), 1);
    fixture.fake.model(|m| {
        let old = m.image(HOLDER);
        old.present = false;
        let tags = std::mem::take(&mut old.repo_tags);
        m.image("inplace:rebuilt").repo_tags.extend(tags);
    });
    fixture.ask(super::request("restart app #2")).await.unwrap();
    assert_eq!(fixture.fake.times("started fence app#3"), 1, "{:#?}", fixture.events());
}

/// The runtime does not list the agent's own container as running when a name is reserved for the first time.
#[tokio::test]
async fn an_image_that_is_not_found_at_first_is_looked_for_again() {
    let mut fixture = beside_a_kubelet(HOLDER).await;
    let agent =
        fixture.fake.put(super::Pod::new("system", "agent").owner(Owner::Kubelet).container("agent", HOLDER));
    let wanted = HolderArgs { holder_image: None, pod_uid: Some(agent.uid.clone()) };
    fixture.node.holder = Some(Holder::new(wanted));
    let state = |m: &mut super::super::runtime::Model, state| {
        m.container_mut(agent.id("agent")).unwrap().state = state;
    };
    fixture.fake.model(|m| state(m, super::ContainerState::ContainerUnknown));
    fixture.restart().await.unwrap();
    assert_eq!(fixture.fake.times("started fence app#2"), 0);
    fixture.fake.model(|m| state(m, super::ContainerState::ContainerRunning));
    fixture.ask(super::request("restart app #2")).await.unwrap();
    assert_eq!(fixture.fake.times("started fence app#3"), 1, "{:#?}", fixture.events());
}
