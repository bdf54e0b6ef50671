//! Requests that are refused before anything is done, and operations that fail without touching a container.

use inplace::api::status::Phase;
use inplace::operation::snapshot::Owner;
use tonic::Code;

use super::super::runtime::Pod;
use super::{Fixture, pod, request, short};

/// Checks that the request is refused for that reason, and that no call changed anything.
async fn refused(fixture: &Fixture, text: &str, reason: &str) {
    fixture.fake.forget();
    let error = fixture.ask(request(text)).await.unwrap_err();
    assert_eq!(error.reason(), reason, "{error}");
    assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());
    assert!(!fixture.is_open());
    fixture.untouched();
}

#[tokio::test]
async fn a_runtime_in_which_a_fence_is_no_fence() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| "cri-o".clone_into(&mut m.runtime_name));
    refused(&fixture, "restart app", "RuntimeUnsupported").await;
    refused(&fixture, "swap app=img:v2", "RuntimeUnsupported").await;
}

#[tokio::test]
async fn a_configuration_with_an_unknown_field() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.unknown_field = Some("from_the_future".to_owned()));
    refused(&fixture, "restart app", "NotCloneable").await;
    let error = fixture.restart().await.unwrap_err().to_string();
    assert!(error.contains("from_the_future"), "{error}");
}

/// Each creation passes the configuration of the sandbox back, so the plan shows that none is possible.
#[tokio::test]
async fn a_sandbox_with_an_unknown_field() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.unknown_sandbox_field = Some("from_the_future".to_owned()));
    refused(&fixture, "restart app", "NotCloneable").await;
    refused(&fixture, "swap app=img:v2", "NotCloneable").await;
    let error = fixture.restart().await.unwrap_err().to_string();
    assert!(error.contains("its sandbox: ") && error.contains("from_the_future"), "{error}");
}

#[tokio::test]
async fn a_container_with_an_image_volume() {
    let volume = inplace::cri::proto::v1::Mount {
        container_path: "/model".to_owned(),
        readonly: true,
        image: Some(inplace::cri::proto::v1::ImageSpec::default()),
        ..Default::default()
    };
    let fixture = Fixture::of(pod().with(|config| config.mounts.push(volume))).await;
    refused(&fixture, "restart app", "NotCloneable").await;
    let error = fixture.restart().await.unwrap_err().to_string();
    assert!(error.contains("an image as a volume"), "{error}");
}

#[tokio::test]
async fn an_image_that_is_no_longer_there() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.image("img:v1").present = false);
    refused(&fixture, "restart app", "ImageMissing").await;
    refused(&fixture, "swap app=img:v2", "ImageMissing").await;
}

#[tokio::test]
async fn what_does_not_fit_the_pod() {
    let fixture = Fixture::open().await;
    refused(&fixture, "restart other", "UnknownContainer").await;
    refused(&fixture, r#"{"containers":[{"name":"app"}],"gracePeriodSeconds":5}"#, "NoReadinessGate").await;
    refused(&fixture, r#"{"containers":[{"name":"app"}],"drain":"Confirmed"}"#, "NoReadinessGate").await;
    refused(&fixture, r#"{"containers":[{"name":"app"}],"engine":"Stop"}"#, "EngineUnavailable").await;
    refused(&fixture, r#"{"containers":[{"name":"app"}],"deadlineSeconds":3}"#, "DeadlineTooShort").await;
    refused(&Fixture::of(pod().owner(Owner::Kubelet)).await, "swap app=img:v2", "KubeletNamesImages").await;
}

#[tokio::test]
async fn what_does_not_run() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.die("app", 1));
    assert_eq!(fixture.restart().await.unwrap_err().reason(), "NotRunning");
    let gone = fixture.node.find("shop", "web-9").await.unwrap_err();
    assert_eq!(gone.reason(), "PodNotFound");
    let sandbox = fixture.fake.model(|m| m.sandboxes[0].id.clone());
    fixture.fake.model(|m| m.stop_sandbox(&sandbox));
    assert_eq!(fixture.restart().await.unwrap_err().reason(), "SandboxNotReady");
    assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());
}

/// A directory that accepts no new file: full or read-only.
#[tokio::test]
async fn a_journal_that_cannot_be_written() {
    let fixture = Fixture::open().await;
    let path = fixture.node.journal.path(&fixture.pod.uid);
    let name = path.file_name().unwrap().to_str().unwrap();
    std::fs::create_dir(path.with_file_name(format!(".{name}.new"))).unwrap();
    let ended = fixture.restart().await.unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "JournalFailed"), "{ended:#?}");
    assert!(ended.message.contains("not touched"), "{}", ended.message);
    assert!(fixture.fake.story().is_empty(), "{:?}", fixture.fake.story());
    fixture.untouched();
}

#[tokio::test]
async fn an_image_that_cannot_be_had() {
    for (code, reported) in [(Code::NotFound, "not found"), (Code::Unknown, "unauthorized")] {
        let fixture = Fixture::open().await;
        fixture.fake.model(|m| m.image("img:v2").pull_fails = Some((code, reported.to_owned())));
        let ended = fixture.ask(short("swap app=img:v2", 30)).await.unwrap();
        assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "PullFailed"), "{ended:#?}");
        assert!(ended.message.contains(reported), "{}", ended.message);
        fixture.sane(reported);
        fixture.untouched();
    }
}

#[tokio::test]
async fn a_replacement_that_the_runtime_would_not_create() {
    let fixture = Fixture::open().await;
    fixture.fake.model(|m| m.image("img:v2").refuses_create = Some("no such user".to_owned()));
    let ended = fixture.swap().await.unwrap();
    assert_eq!((ended.phase, ended.reason.as_str()), (Phase::Failed, "CannotCreate"), "{ended:#?}");
    assert!(ended.message.contains("no such user"), "{}", ended.message);
    fixture.sane("test creation");
    fixture.untouched();
}

#[tokio::test]
async fn one_process_at_a_time_per_pod() {
    let fixture = Fixture::open().await;
    let other = fixture.fake.put(Pod::new("shop", "web-1").owner(Owner::NodeRun).container("db", "img:v1"));
    let held = fixture.node.journal.hold(&fixture.pod).unwrap();
    refused(&fixture, "restart app", "Busy").await;
    let pod = super::pod_ref(&other);
    let done = fixture
        .node
        .carry_out(&pod, request("restart db"), fixture.control(), &super::nobody())
        .await
        .unwrap();
    assert_eq!(done.phase, Phase::Succeeded);
    drop(held);
    assert_eq!(fixture.restart().await.unwrap().phase, Phase::Succeeded);
}

/// The kubelet's directory is not visible under its own path, as for an agent without that mount.
#[tokio::test]
async fn a_plan_says_that_the_termination_message_is_shared() {
    let fixture = Fixture::of(pod().owner(Owner::Kubelet)).await;
    let warned = async || {
        let plan = fixture.node.plan(&fixture.pod, request("restart app")).await.unwrap();
        plan.warnings.iter().any(|warning| {
            warning.starts_with("app: the new container shares the termination message file of the old one")
        })
    };
    assert!(!warned().await, "there is none");
    let folder = fixture.state.path().join(format!("pods/{}/containers/app", fixture.pod.uid));
    let mount = inplace::cri::proto::v1::Mount {
        container_path: "/dev/termination-log".to_owned(),
        host_path: folder.join("0a1b2c3d").to_str().unwrap().to_owned(),
        ..Default::default()
    };
    fixture.fake.model(|m| m.container_mut(&fixture.first).unwrap().config.mounts.push(mount));
    assert!(warned().await);
    std::fs::create_dir_all(folder).unwrap();
    assert!(!warned().await, "it is visible");
}
