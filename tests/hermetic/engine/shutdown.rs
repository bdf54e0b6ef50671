//! The process is asked to end: it pauses where no container is down, and the next process continues.

use std::sync::Arc;
use std::time::Duration;

use inplace::api::status::Phase;
use inplace::node::Error;

use super::super::runtime::{Call, Exec, Fault};
use super::{Fixture, nobody, pod, request};

/// The request to end arrives immediately before and immediately after each change that a swap makes.
#[tokio::test]
async fn it_pauses_with_nobody_down_or_it_finishes() {
    let clean = fixture().await;
    clean.swap().await.unwrap();
    let changes: Vec<_> = clean.fake.all_calls().into_iter().filter(Call::mutates).collect();
    assert!(changes.len() >= 6, "{changes:?}");
    let mut paused = 0;
    for call in changes {
        for after in [false, true] {
            let what = format!("{call}, after: {after}");
            let mut fixture = fixture().await;
            let shutdown = fixture.shutdown.clone();
            let on = fixture.fake.on(call.name).about(&call.about);
            let report = move |_: &mut super::super::runtime::Model| shutdown.cancel();
            if after {
                on.then(report);
            } else {
                on.first(report);
            }
            let ended = tokio::time::timeout(Duration::from_secs(60), fixture.swap()).await.expect(&what);
            assert_eq!(fixture.fake.running("app").len(), 1, "{what}: {:#?}", fixture.fake.history());
            let ended = match ended {
                Ok(status) => status,
                Err(Error::Interrupted) => {
                    paused += 1;
                    assert!(fixture.is_open(), "{what}");
                    let story = fixture.fake.story();
                    let reported = story.iter().position(|done| *done == call.to_string()).unwrap();
                    let begun = &story[reported + 1..];
                    let forbidden = ["Pull", "CreateContainer fence", "Exec"];
                    assert!(
                        !begun.iter().any(|call| forbidden.iter().any(|start| call.starts_with(start))),
                        "{what}: begun after the shutdown began: {begun:?}"
                    );
                    fixture.next_process();
                    fixture.resume().await.unwrap().unwrap()
                }
                Err(error) => panic!("{what}: {error}"),
            };
            assert_eq!(ended.phase, Phase::Succeeded, "{what}: {ended:#?}");
            fixture.reached(&ended, "img:v2");
            assert_eq!(fixture.starts(), 1, "{what}");
            assert!(fixture.fake.times("ran bye in app#0") <= 1, "{what}");
        }
    }
    assert!(paused >= 6, "{paused}");
}

async fn fixture() -> Fixture {
    let fixture = Fixture::of(pod().pre_stop(r#"{"exec":{"command":["bye"]}}"#)).await;
    fixture.fake.exec(|_, _| Exec::ok("bye"));
    fixture
}

#[tokio::test]
async fn a_pull_that_takes_long_does_not_hold_the_process() {
    let mut fixture = Fixture::open().await;
    fixture.fake.on("PullImage").fault(Fault::Hang);
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let process =
        tokio::spawn(
            async move { node.carry_out(&pod, request("swap app=img:v2"), control, &nobody()).await },
        );
    fixture.fake.arrived("PullImage", "img:v2").await;
    fixture.shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(60), process).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    fixture.untouched();
    fixture.next_process();
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v2");
}

#[tokio::test]
async fn while_the_runtime_is_away_it_ends_at_once() {
    let mut fixture = Fixture::open().await;
    let fake = Arc::new(tokio::sync::Notify::new());
    let gone = Arc::clone(&fake);
    fixture.fake.on("CreateContainer").about("fence app#2").then(move |_| gone.notify_one());
    fixture.fake.on("CreateContainer").fault(Fault::RestartAfterEffect(Duration::from_secs(3600)));
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let process =
        tokio::spawn(async move { node.carry_out(&pod, request("restart app"), control, &nobody()).await });
    fake.notified().await;
    fixture.shutdown.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(60), process).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::Interrupted)), "{ended:?}");
    fixture.fake.come_back().await;
    fixture.next_process();
    fixture.succeeded(fixture.resume().await.map(Option::unwrap), "img:v1");
}

/// In an operation that must not pause: a container that it has replaced is down.
#[tokio::test]
async fn a_process_that_is_to_end_goes_on_where_it_resolves_an_image() {
    let fixture = Fixture::of(pod().container("side", "img:v1")).await;
    // Long enough that the image is checked again before the second container is touched.
    fixture.fake.on("StartContainer").fault(Fault::SlowReply(Duration::from_millis(2500)));
    let (shutdown, image) =
        (fixture.shutdown.clone(), fixture.fake.model(|m| m.remote_image("img:v2").id.clone()));
    fixture.fake.on("ImageStatus").about(&image).always().first(move |m| {
        // On a slow machine the image is checked again before the first container is touched as well.
        if m.running("app").iter().any(|app| app.attempt() == 1) && !shutdown.is_cancelled() {
            m.die("app", 1);
            shutdown.cancel();
        }
    });
    let ended = fixture.ask(request("swap app=img:v2,side=img:v2")).await;
    assert!(fixture.shutdown.is_cancelled(), "{:#?}", fixture.fake.story());
    assert!(matches!(&ended, Err(Error::Interrupted) | Ok(_)), "{ended:?}");
    for name in ["app", "side"] {
        assert_eq!(fixture.fake.running(name).len(), 1, "{name}: {:#?}", fixture.fake.history());
    }
}
