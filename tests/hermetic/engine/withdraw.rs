//! A request that is withdrawn: it ends while nothing was touched, and continues once a container was touched.

use std::time::Duration;

use inplace::api::status::Phase;
use inplace::operation::outcome::Withdrawal;

use super::super::runtime::Fault;
use super::{Fixture, nobody, pod, request, shared_pod};

#[tokio::test]
async fn before_the_first_touch_it_ends_and_nothing_is_left() {
    for (call, about) in [
        ("ListContainers", ""),
        ("PullImage", "img:v2"),
        ("CreateContainer", "fence app#2"),
        ("CreateContainer", "app#1"),
    ] {
        for withdrawal in [Withdrawal::Deleted, Withdrawal::Replaced, Withdrawal::Interrupted] {
            let fixture = Fixture::open().await;
            let withdraw = fixture.withdraw.clone();
            fixture.fake.on(call).about(about).then(move |_| {
                withdraw.send_replace(Some(withdrawal));
            });
            let ended = fixture.swap().await.unwrap();
            assert_eq!(
                (ended.phase, ended.reason.as_str()),
                (Phase::Cancelled, withdrawal.reason()),
                "{call}"
            );
            fixture.sane(call);
            fixture.untouched();
        }
    }
}

#[tokio::test]
async fn from_the_first_touch_on_it_goes_on() {
    for (call, about, alone) in [
        ("StopContainer", "app#0", true),
        ("StartContainer", "app#1", true),
        ("StopContainer", "app#0", false),
        ("CreateContainer", "app#1", false),
        ("StartContainer", "app#1", false),
    ] {
        let fixture = Fixture::of(if alone { pod() } else { shared_pod() }).await;
        let withdraw = fixture.withdraw.clone();
        fixture.fake.on(call).about(about).first(move |_| {
            withdraw.send_replace(Some(Withdrawal::Deleted));
        });
        fixture.succeeded(fixture.swap().await, "img:v2");
    }
}

#[tokio::test]
async fn a_pull_breaks_off() {
    let fixture = Fixture::open().await;
    fixture.fake.on("PullImage").fault(Fault::Hang);
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let process =
        tokio::spawn(
            async move { node.carry_out(&pod, request("swap app=img:v2"), control, &nobody()).await },
        );
    fixture.fake.arrived("PullImage", "img:v2").await;
    fixture.withdraw.send_replace(Some(Withdrawal::Deleted));
    let ended = tokio::time::timeout(Duration::from_secs(60), process).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase, Phase::Cancelled);
    fixture.sane("pull");
    fixture.untouched();
}

/// A withdrawal while the runtime is away is answered when the runtime is back.
#[tokio::test]
async fn while_the_runtime_is_away() {
    let fixture = Fixture::open().await;
    let withdraw = fixture.withdraw.clone();
    fixture.fake.on("CreateContainer").first(move |_| {
        withdraw.send_replace(Some(Withdrawal::Deleted));
    });
    fixture.fake.on("CreateContainer").fault(Fault::RestartAfterEffect(Duration::from_millis(80)));
    let ended = fixture.restart().await.unwrap();
    assert_eq!(ended.phase, Phase::Cancelled);
    fixture.sane("away");
    fixture.untouched();
}
