//! An operation in which the program panics each time it reaches the same point.

use std::sync::Arc;

use inplace::api::status::{Phase, Status};
use inplace::node::Error;
use inplace::node::drive::{Observer, OperationEvent};
use inplace::operation::effect::Verb;

use super::{Fixture, nobody, pod_ref, request, shared_pod};
use crate::support::wait::until;

/// Panics when an effect of this kind was executed.
fn panics_after(wanted: Verb) -> Observer {
    Arc::new(move |operation_event| {
        if let OperationEvent::Effect { verb, .. } = operation_event {
            assert!(verb != wanted, "planted");
        }
    })
}

impl Fixture {
    /// A process that begins or resumes the work on the pod; `None` when it ended by a panic.
    async fn process(&mut self, begin: bool, observer: Observer) -> Option<Result<Option<Status>, Error>> {
        let (node, pod, control) = (self.node.clone(), self.pod.clone(), self.control());
        let work = tokio::spawn(async move {
            if begin {
                node.carry_out(&pod, request("restart app"), control, &observer).await.map(Some)
            } else {
                node.resume(&pod, control, &observer).await
            }
        });
        let ended = self.patiently(work).await;
        if let Err(error) = &ended {
            assert!(error.is_panic(), "{error}");
        }
        self.next_process();
        ended.ok()
    }
}

#[tokio::test]
async fn an_operation_that_ended_the_process_twice_is_set_aside() {
    let mut fixture = Fixture::of(shared_pod()).await;
    assert!(fixture.process(true, panics_after(Verb::Fence)).await.is_none());
    assert_eq!(fixture.fake.fences().len(), 1);
    // The fence exists already.
    assert!(fixture.process(false, panics_after(Verb::Stop)).await.is_none());
    fixture.fake.forget();
    let ended =
        fixture.process(false, panics_after(Verb::Create)).await.expect("not a third time").unwrap().unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "SetAside"), "{ended:#?}");
    // The fence is gone and nothing else was done: the kubelet starts the container again.
    assert!(fixture.fake.fences().is_empty());
    assert_eq!(fixture.fake.story().len(), 1, "{:?}", fixture.fake.story());
    assert!(!fixture.is_open());
    assert!(fixture.node.resume(&fixture.pod, fixture.control(), &nobody()).await.unwrap().is_none());
}

#[tokio::test]
async fn one_panic_is_forgiven_and_forgotten_with_the_operation() {
    let mut fixture = Fixture::of(shared_pod()).await;
    assert!(fixture.process(true, panics_after(Verb::Fence)).await.is_none());
    let ended = fixture.process(false, nobody()).await.unwrap().unwrap().unwrap();
    assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
    // The next operation has two panics of its own.
    let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
    let work = tokio::spawn(async move {
        node.carry_out(&pod, request("restart app #2"), control, &panics_after(Verb::Fence)).await
    });
    assert!(work.await.unwrap_err().is_panic());
    fixture.next_process();
    let ended = fixture.resume().await.unwrap().unwrap();
    assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
    let folder = fixture.state.path().join("journal");
    let left: Vec<_> = std::fs::read_dir(folder).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("panic")), "{left:?}");
}

/// `kill -9`, an upgrade, a node out of memory: not a fault of the operation.
#[tokio::test]
async fn processes_that_are_killed_do_not_count() {
    let mut fixture = Fixture::of(shared_pod()).await;
    fixture.die_fenced().await;
    for _ in 0..5 {
        let called = fixture.fake.calls("StopContainer").len();
        fixture.fake.on("StopContainer").fault(super::super::runtime::Fault::Hang);
        let (node, pod, control) = (fixture.node.clone(), fixture.pod.clone(), fixture.control());
        let work = tokio::spawn(async move { node.resume(&pod, control, &nobody()).await });
        fixture.patiently(until(|| fixture.fake.calls("StopContainer").len() > called)).await;
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        fixture.next_process();
    }
    let ended = fixture.resume().await.unwrap().unwrap();
    assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
}

/// Another pod's operation runs in the same process and is not the cause.
#[tokio::test]
async fn only_the_operation_that_panics_is_blamed() {
    let mut fixture = Fixture::of(shared_pod()).await;
    let other = pod_ref(&fixture.fake.put(shared_pod().again()));
    let bystander = |fixture: &Fixture| {
        let (node, pod, control) = (fixture.node.clone(), other.clone(), fixture.control());
        // It stays in its pull.
        tokio::spawn(
            async move { node.carry_out(&pod, request("swap app=img:v2"), control, &nobody()).await },
        )
    };
    fixture.fake.on("PullImage").times(2).fault(super::super::runtime::Fault::Hang);
    for (begin, pulls) in [(true, 1), (false, 2)] {
        let bystander = bystander(&fixture);
        let fake = &fixture.fake;
        fake.until("it pulls", |_| fake.calls("PullImage").len() == pulls).await;
        assert!(
            fixture
                .process(begin, panics_after(if begin { Verb::Fence } else { Verb::Stop }))
                .await
                .is_none()
        );
        bystander.abort();
        assert!(bystander.await.unwrap_err().is_cancelled());
    }
    let ended = bystander(&fixture).await.unwrap().unwrap();
    assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
}
