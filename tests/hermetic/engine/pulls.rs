//! Pulls of several pods at once: a registry that hangs delays only the pulls from it.

use inplace::api::status::Phase;

use super::super::runtime::{Fake, Fault, Pod};
use super::{nobody, node, pod_ref, request};

use std::time::Duration;

use inplace::node::drive::ControlHandle;
use inplace::operation::snapshot::Owner;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_registry_that_hangs_delays_no_other_and_nothing_that_is_on_the_node() {
    let fake = Fake::start().await;
    let state = tempfile::tempdir().unwrap();
    // This node may pull two images at once.
    let node = node(&fake, state.path());
    fake.model(|m| {
        m.remote_image("hangs.example/img:v2").size = 1 << 20;
        m.remote_image("works.example/img:v2").size = 1 << 20;
        m.image("hangs.example/img:v3");
    });
    fake.on("PullImage").about("hangs.example/img:v2").always().fault(Fault::Hang);
    let withdraw = watch::Sender::new(None);
    let swap = |name: &str, image: &str| {
        let pod = Pod::new("shop", name).owner(Owner::NodeRun).container("app", "img:v1").grace(1);
        let pod = pod_ref(&fake.put(pod));
        let (node, request) = (node.clone(), request(&format!("swap app={image}")));
        let control = ControlHandle { withdrawal: withdraw.subscribe(), shutdown: CancellationToken::new() };
        tokio::spawn(async move { node.carry_out(&pod, request, control, &nobody()).await.unwrap() })
    };
    let slow: Vec<_> = ["a", "b", "c", "d"].map(|name| swap(name, "hangs.example/img:v2")).into();
    fake.until("two pulls hang", |_| fake.calls("PullImage").len() == 2).await;
    for (name, image) in [("e", "works.example/img:v2"), ("f", "hangs.example/img:v3")] {
        let ended = tokio::time::timeout(Duration::from_secs(60), swap(name, image)).await;
        let ended = ended.unwrap_or_else(|_| panic!("{image}: {:#?}", fake.story())).unwrap();
        assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
    }
    // The limit applies to the registry that hangs.
    let hanging = fake.calls("PullImage").iter().filter(|call| call.about.starts_with("hangs")).count();
    assert_eq!(hanging, 2);
    assert!(slow.iter().all(|swap| !swap.is_finished()));
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}
