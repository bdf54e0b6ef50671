//! Another program acts on the pod at the worst moment.

use std::time::Duration;

use inplace::api::request::Request;
use inplace::api::status::Phase;
use inplace::cri::proto::v1::ContainerState;
use inplace::operation::snapshot::Owner;

use super::super::runtime::{Container, Fault, Model, Pod};
use super::{Fixture, pod, request, shared_pod, short};

/// A pod that a kubelet manages.
fn kubelets() -> Pod {
    pod().owner(Owner::Kubelet)
}

#[tokio::test]
async fn a_container_that_is_gone_between_list_and_status_is_no_error() {
    let fixture = Fixture::of(kubelets()).await.aged();
    fixture.collect_after("ListContainers");
    fixture.succeeded(fixture.restart().await, "img:v1");
}

/// The configuration was read before the stop, and is the only copy then.
#[tokio::test]
async fn the_old_instance_may_be_removed_right_after_its_end() {
    for text in ["restart app", "swap app=img:v2"] {
        let fixture = Fixture::open().await;
        fixture.collect_after("StopContainer");
        let image = if text.starts_with("swap") { "img:v2" } else { "img:v1" };
        fixture.succeeded(fixture.ask(request(text)).await, image);
    }
}

/// A restarting kubelet observes the dead container and creates the next attempt itself,
/// at the same moment as the agent.
#[tokio::test]
async fn the_next_attempt_of_a_kubelet_is_taken_for_the_replacement() {
    for started in [true, false] {
        let fixture = Fixture::of(kubelets()).await;
        fixture.fake.on("CreateContainer").about("app#1").first(move |m| {
            let made = if started { m.kubelet_restarts("app") } else { m.kubelet_creates("app", None) };
            made.unwrap();
        });
        if !started {
            // The kubelet starts it a little later.
            fixture.fake.on("ListContainers").nth(8).first(|m| {
                let made = m.instances("app").last().unwrap().id.clone();
                drop(m.start(&made));
            });
        }
        let ended = fixture.restart().await;
        assert_eq!(
            fixture.fake.only("app").label(inplace::api::annotation::OPERATION),
            None,
            "the kubelet's"
        );
        fixture.succeeded(ended, "img:v1");
        assert_eq!(fixture.fake.times("created app#1"), 1);
    }
}

#[tokio::test]
async fn what_a_kubelet_created_and_never_starts_is_started() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.on("CreateContainer").about("app#1").first(|m| drop(m.kubelet_creates("app", None)));
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert_eq!(fixture.fake.times("created app#1"), 1);
}

/// The kubelet may act before the agent's creation has begun.
#[tokio::test]
async fn a_kubelet_that_is_faster_is_not_disturbed() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.after("StopContainer", |m| drop(m.kubelet_restarts("app").unwrap()));
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert_eq!(fixture.fake.story().iter().filter(|call| call.contains("app#1")).count(), 0);
}

/// A creation that holds the name and never completes is waited for, but not forever.
#[tokio::test]
async fn a_fence_that_cannot_be_had_ends_it_untouched() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.model(|m| {
        let pod = m.sandboxes[0].config.clone();
        m.hold_name(&pod, "app", 2);
    });
    let ended = fixture.restart().await.unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "CannotCreate"), "{ended:#?}");
    assert!(ended.message.contains("reserved") && ended.message.contains("not touched"), "{}", ended.message);
    fixture.sane("no fence");
    fixture.untouched();
}

#[tokio::test]
async fn a_fence_name_that_becomes_free_is_taken() {
    let fixture = Fixture::of(kubelets()).await;
    let made = fixture.fake.model(|m| {
        let instance = m.running("app")[0].clone();
        let mut config = instance.config;
        config.metadata.as_mut().unwrap().attempt = 2;
        config.metadata.as_mut().unwrap().name = "app".to_owned();
        config.labels.insert(inplace::api::annotation::CONTAINER_NAME.to_owned(), "other".to_owned());
        m.create(&instance.sandbox_id, config, instance.pod_config).unwrap()
    });
    fixture.fake.on("CreateContainer").nth(3).first(move |m| m.vanish(&made));
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert!(fixture.fake.calls("CreateContainer").len() >= 4);
}

#[tokio::test]
async fn a_container_that_dies_by_itself_just_before_the_stop_is_replaced_all_the_same() {
    for text in ["restart app", "swap app=img:v2"] {
        let fixture = Fixture::open().await;
        fixture.fake.before("StopContainer", |m| m.die("app", 9));
        let image = if text.starts_with("swap") { "img:v2" } else { "img:v1" };
        fixture.succeeded(fixture.ask(request(text)).await, image);
        assert_eq!(fixture.fake.times("exited app#0 9"), 1);
        assert_eq!(fixture.fake.times("signalled app#0"), 0);
    }
}

/// A kubelet that observes the old container as dead and the agent's as created requests the next attempt, whose name
/// the fence reserves.
#[tokio::test]
async fn the_attempt_after_ours_is_refused_by_the_fence() {
    for call in ["CreateContainer", "StartContainer"] {
        let fixture = Fixture::of(kubelets()).await;
        let (report, reported) = std::sync::mpsc::channel();
        let overtakes = move |m: &mut Model| {
            drop(report.send(m.kubelet_restarts("app").map_err(|no| no.message().to_owned())));
        };
        match call {
            "CreateContainer" => fixture.fake.on(call).about("app#1").then(overtakes),
            _ => fixture.fake.on(call).about("app#1").first(overtakes),
        }
        fixture.succeeded(fixture.restart().await, "img:v1");
        let refused = reported.try_iter().collect::<Result<Vec<_>, _>>().unwrap_err();
        assert!(refused.contains("is reserved for"), "{refused}");
        assert_eq!(fixture.fake.times("started app#2"), 0);
    }
}

/// The fence stays for a moment after the start, for a kubelet whose observation was made before it.
#[tokio::test]
async fn the_fence_outlives_the_start() {
    let fixture = Fixture::of(kubelets()).await;
    let (report, reported) = std::sync::mpsc::channel();
    fixture.fake.on("RemoveContainer").first(move |m| {
        let instance = m.running("app")[0].clone();
        let held = inplace::process::clock::now().as_nanosecond() - i128::from(instance.started_at);
        report.send(Duration::from_nanos(u64::try_from(held).unwrap())).unwrap();
    });
    fixture.succeeded(fixture.restart().await, "img:v1");
    assert!(reported.recv().unwrap() >= Duration::from_millis(250));
}

#[tokio::test]
async fn a_sandbox_that_stops_in_the_middle_ends_it() {
    for (call, about) in
        [("CreateContainer", "fence app#2"), ("CreateContainer", "app#1"), ("StartContainer", "app#1")]
    {
        let fixture = Fixture::of(kubelets()).await;
        let sandbox = fixture.fake.model(|m| m.sandboxes[0].id.clone());
        fixture.fake.on(call).about(about).first(move |m| m.stop_sandbox(&sandbox));
        let ended = fixture.restart().await.unwrap();
        assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "SandboxGone"), "{ended:#?}");
        fixture.sane(about);
        assert_eq!(fixture.starts(), 0);
    }
}

#[tokio::test]
async fn a_pod_that_is_deleted_in_the_middle_ends_it() {
    for (call, about) in [
        ("CreateContainer", "fence app#2"),
        ("StopContainer", "app#0"),
        ("CreateContainer", "app#1"),
        ("StartContainer", "app#1"),
        ("RemoveContainer", "fence app#2"),
    ] {
        for after in [false, true] {
            let fixture = Fixture::of(kubelets()).await;
            let sandbox = fixture.fake.model(|m| m.sandboxes[0].id.clone());
            let delete = move |m: &mut Model| {
                m.stop_sandbox(&sandbox);
                m.remove_sandbox(&sandbox).unwrap();
            };
            let on = fixture.fake.on(call).about(about);
            if after {
                on.then(delete);
            } else {
                on.first(delete);
            }
            let ended = fixture.restart().await.unwrap();
            assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "SandboxGone"), "{ended:#?}");
            fixture.sane(about);
            assert!(fixture.fake.model(|m| m.containers.is_empty()));
        }
    }
}

/// The pod was created again under the same name: it is another pod.
#[tokio::test]
async fn another_sandbox_of_the_same_pod_is_not_touched() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.after("StopContainer", |m| {
        let old = m.sandboxes[0].clone();
        m.stop_sandbox(&old.id);
        let mut config = old.config;
        config.metadata.as_mut().unwrap().attempt = 1;
        m.run_sandbox(config, "").unwrap();
    });
    let ended = fixture.restart().await.unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "SandboxGone"), "{ended:#?}");
    assert_eq!(fixture.starts(), 0);
}

fn double(m: &mut Model) {
    let instance = m.running("app")[0].clone();
    let mut config = instance.config;
    config.metadata.as_mut().unwrap().attempt = 7;
    let id = m.create(&instance.sandbox_id, config, instance.pod_config).unwrap();
    m.start(&id).unwrap();
}

#[tokio::test]
async fn of_two_that_run_none_is_touched() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.model(double);
    let refused = fixture.restart().await.unwrap_err();
    assert_eq!(refused.reason(), "Duplicate");
    assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());
}

#[tokio::test]
async fn a_second_one_that_appears_ends_it_and_none_is_touched_any_more() {
    for (text, phase) in [("restart app", Phase::Failed), ("swap app=img:v2", Phase::Failed)] {
        let fixture = Fixture::open().await;
        fixture.fake.on("StartContainer").then(double);
        let ended = fixture.ask(request(text)).await.unwrap();
        assert_eq!((ended.phase, ended.reason.as_str()), (phase, "Duplicate"), "{ended:#?}");
        assert_eq!(fixture.fake.running("app").len(), 2);
        let story = fixture.fake.story();
        let at = story.iter().position(|call| call.starts_with("StartContainer")).unwrap();
        assert_eq!(story[at + 1..], ["RemoveContainer fence app#2"], "nothing but the fence goes");
        assert!(!fixture.is_open());
    }
}

#[tokio::test]
async fn a_container_that_its_kubelet_restarts_before_the_touch_is_replaced_too() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.on("CreateContainer").about("fence app#2").first(|m| {
        m.die("app", 0);
        m.kubelet_restarts("app").unwrap();
    });
    let ended = fixture.restart().await.unwrap();
    assert_eq!(ended.phase, Phase::Succeeded, "{ended:#?}");
    fixture.sane("changed");
    assert_eq!((ended.containers[0].from.attempt, fixture.fake.only("app").attempt()), (1, 2));
    let stops: Vec<_> = fixture.fake.story().into_iter().filter(|call| call.starts_with("Stop")).collect();
    assert_eq!(stops.iter().filter(|call| call.contains("app#1")).count(), 1, "{stops:?}");
    assert!(!stops.iter().any(|call| call.contains("app#0")), "{stops:?}");
}

/// containerd reports itself busy for about a second with a start that was cut off.
#[tokio::test]
async fn a_start_that_was_cut_off_is_cleaned_up_when_the_runtime_lets_it() {
    use super::super::runtime::Fault;
    use tonic::Code::Unknown;
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.image("img:v2").refuses_start = Some("exec: no such file".to_owned()));
    let busy =
        r#"failed to set removing state for container "x": container is in starting state, can't be removed"#;
    fixture.fake.on("RemoveContainer").times(4).fault(Fault::Fail(Unknown, busy));
    fixture.fake.on("StopContainer").times(2).fault(Fault::Fail(Unknown, "ttrpc: closed"));
    let ended = fixture.swap().await.unwrap();
    assert_eq!(ended.phase, Phase::RolledBack, "{ended:#?}");
    fixture.reached(&ended, "img:v1");
}

#[tokio::test]
async fn an_unknown_state_is_waited_out() {
    let fixture = Fixture::open().await;
    let set = |m: &mut Model, state| {
        let id = m.instances("app")[1].id.clone();
        m.container_mut(&id).unwrap().state = state;
    };
    fixture.fake.on("StartContainer").then(move |m| set(m, ContainerState::ContainerUnknown));
    // It is known at the third observation.
    let mut observed = 0;
    fixture.fake.on("ListContainers").always().first(move |m| {
        let is_unknown = |app: &&Container| app.state == ContainerState::ContainerUnknown;
        if m.instances("app").iter().any(is_unknown) {
            observed += 1;
            if observed == 3 {
                set(m, ContainerState::ContainerRunning);
            }
        }
    });
    fixture.succeeded(fixture.ask(short("restart app", 60)).await, "img:v1");
}

/// After a restart of the runtime this state may last until the container is stopped, and no other program stops it.
#[tokio::test]
async fn a_state_that_stays_unknown_keeps_no_container_down() {
    let fixture = Fixture::open().await;
    fixture.fake.on("StartContainer").then(|m| {
        let id = m.instances("app").last().unwrap().id.clone();
        m.container_mut(&id).unwrap().state = ContainerState::ContainerUnknown;
    });
    let ended = fixture.restart().await.unwrap();
    assert!(
        ended.phase == Phase::Succeeded && ended.containers[0].downtime_ms.unwrap() < 20_000,
        "{ended:#?}"
    );
    fixture.reached(&ended, "img:v1");
}

/// An in-place resize (KEP-1287) while the old container stops: the kubelet afterwards
/// trusts its own record of the limits.
#[tokio::test]
async fn limits_that_change_while_the_container_stops_are_those_of_the_replacement() {
    let fixture = Fixture::of(kubelets()).await;
    fixture.fake.on("StopContainer").first(|m| {
        let id = m.running("app")[0].id.clone();
        m.container_mut(&id).unwrap().resources.get_or_insert_default().memory_limit_in_bytes = 300 << 20;
    });
    fixture.succeeded(fixture.restart().await, "img:v1");
    let limits = fixture.fake.only("app").config.linux.unwrap().resources.unwrap();
    assert_eq!(limits.memory_limit_in_bytes, 300 << 20);
}

/// A kubelet resizes the newest instance and remembers the limits by the container's name: it would not notice that the
/// instance after a rollback has those of before.
#[tokio::test]
async fn limits_that_change_while_the_new_image_is_observed_are_those_of_the_container_after_the_rollback() {
    for pod in [pod(), shared_pod()] {
        let fixture = Fixture::of(pod).await;
        fixture.fake.model(|m| m.image("img:v2").dies_after = Some((Duration::from_millis(70), 3)));
        fixture.fake.on("StartContainer").about("app#1").then(|m| {
            let id = m.instances("app").last().unwrap().id.clone();
            let limits = m.container_mut(&id).unwrap().resources.get_or_insert_default();
            (limits.memory_limit_in_bytes, limits.cpu_quota) = (300 << 20, 70_000);
        });
        let ended = fixture.swap().await.unwrap();
        assert_eq!(ended.phase, Phase::RolledBack, "{ended:#?}");
        fixture.reached(&ended, "img:v1");
        let instance = fixture.fake.only("app");
        assert_ne!(instance.label(inplace::api::annotation::OPERATION), None, "the agent's");
        let limits = instance.config.linux.unwrap().resources.unwrap();
        assert_eq!((limits.memory_limit_in_bytes, limits.cpu_quota), (300 << 20, 70_000));
    }
}

/// The answer that shows the new instance as running arrives when it should have stayed up long enough.
#[tokio::test]
async fn an_instance_that_exits_while_its_status_is_on_the_way_has_not_stayed_up() {
    let fixture = Fixture::open().await;
    // Half a second after the start: the fence is gone, and its removal causes no further observation.
    let observed = || fixture.fake.on("ContainerStatus").about("app#1").nth(12);
    observed().fault(Fault::SlowReply(Duration::from_millis(7200)));
    observed().then(|m| m.die("app", 3));
    let asked = Request { min_ready_seconds: 7, ..request("swap app=img:v2") };
    let ended = fixture.ask(asked).await.unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::RolledBack, "Exited"), "{ended:#?}");
    assert!(ended.message.contains("exited with code 3"), "{}", ended.message);
}
