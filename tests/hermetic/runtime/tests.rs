//! Tests of the fake runtime itself, through the generated client.

use std::time::Duration;

use inplace::api::annotation;
use inplace::cri::proto::strict;
use inplace::cri::proto::v1 as cri;
use inplace::cri::proto::v1::image_service_client::ImageServiceClient;
use inplace::operation::snapshot::Owner;
use serde_json::Value;
use tonic::{Code, Status};

use super::client::{Client, channel, clone, details, list, member, remove, start, stop};
use super::{Exec, Fake, Fault, Outcome, Pod};

/// A short delay that is still observable.
const MOMENT: Duration = Duration::from_millis(30);
/// Longer than any test takes.
const HOUR: Duration = Duration::from_secs(3600);

async fn shop() -> (Fake, Client) {
    let fake = Fake::start().await;
    fake.pod("shop", "web-0", &[("app", "img:v1"), ("side", "side:v1")]);
    let client = Client::new(channel(&fake));
    (fake, client)
}

/// Makes a call whose caller stops waiting when the call has arrived.
async fn abandoned(
    fake: &Fake,
    name: &'static str,
    call: impl Future<Output = Result<(), Status>> + Send + 'static,
) {
    let arrived = fake.calls(name).len() + 1;
    let call = tokio::spawn(call);
    fake.until(name, |_| fake.calls(name).len() == arrived).await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled(), "{name}");
}

#[tokio::test]
async fn a_restart_is_reported_in_full() {
    let (fake, mut client) = shop().await;
    let old = fake.only("app");
    stop(&mut client, &old.id, 30).await.unwrap();
    let new = clone(&mut client, &old.id, 1).await.unwrap();
    start(&mut client, &new).await.unwrap();
    remove(&mut client, &old.id).await.unwrap();

    assert_eq!(
        fake.history(),
        ["signalled app#0", "exited app#0 143", "created app#1", "started app#1", "removed app#0"]
    );
    assert_eq!(
        fake.story(),
        ["StopContainer app#0", "CreateContainer app#1", "StartContainer app#1", "RemoveContainer app#0"]
    );
    assert_eq!((fake.only("web-0/app").id, fake.times("started app#1")), (new.clone(), 1));
    let status = details(&mut client, &new).await.unwrap().status.unwrap();
    assert!(status.created_at < status.started_at && status.finished_at == 0);
    assert_eq!(status.image.unwrap().image, "docker.io/library/img:v1");
    fake.forget();
    assert!(fake.story().is_empty() && fake.history().is_empty());
}

#[tokio::test]
async fn a_name_belongs_to_one_container() {
    let (fake, mut client) = shop().await;
    let id = fake.only("app").id;
    let refused = clone(&mut client, &id, 0).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    assert!(refused.message().starts_with("failed to reserve container name \"app_web-0_shop_"), "{refused}");
    assert!(refused.message().ends_with(&format!("is reserved for {id:?}")), "{refused}");

    let next = clone(&mut client, &id, 1).await.unwrap();
    clone(&mut client, &id, 1).await.unwrap_err();
    remove(&mut client, &next).await.unwrap();
    clone(&mut client, &id, 1).await.unwrap();

    fake.model(|m| "cri-o".clone_into(&mut m.runtime_name));
    let info = details(&mut client, &id).await.unwrap().info;
    assert_eq!(member(&info["info"], "config"), "null");
    let theirs = fake.model(|m| m.kubelet_creates("app", None)).unwrap();
    let again = fake.only("app");
    let again = fake.model(|m| {
        let mut config = again.config;
        config.metadata.as_mut().unwrap().attempt = 2;
        m.create(&again.sandbox_id, config, again.pod_config)
    });
    assert_eq!(again.unwrap(), theirs, "the owner, as if it had just been created");
}

#[tokio::test]
async fn states_go_one_way() {
    let (fake, mut client) = shop().await;
    fake.model(|m| m.image("img:v1").refuses_start = Some("exec: no such file".to_owned()));
    let id = fake.only("app").id;
    assert_eq!(start(&mut client, &id).await.unwrap_err().code(), Code::Unknown);

    let new = clone(&mut client, &id, 1).await.unwrap();
    assert!(start(&mut client, &new).await.unwrap_err().message().contains("no such file"));
    let status = details(&mut client, &new).await.unwrap().status.unwrap();
    assert_eq!(status.state(), cri::ContainerState::ContainerExited);
    assert_eq!((status.exit_code, status.reason.as_str(), status.started_at), (128, "StartError", 0));
    assert!(status.finished_at > status.created_at);

    stop(&mut client, "none", 5).await.unwrap();
    stop(&mut client, &new, 5).await.unwrap();
    remove(&mut client, "none").await.unwrap();
    assert_eq!(details(&mut client, "none").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(start(&mut client, "none").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn what_is_printed_can_be_read_back() {
    let (fake, mut client) = shop().await;
    fake.put(Pod::new("shop", "odd").container("all", "img:v1").with(|config| {
        config.cdi_devices = vec![cri::CdiDevice { name: "vendor.com/gpu=0".to_owned() }];
        config.mounts[0].uid_mappings = vec![cri::IdMapping { host_id: 65_536, container_id: 0, length: 9 }];
        config.mounts[0].propagation = 1;
        config.linux.as_mut().unwrap().resources.as_mut().unwrap().cpu_quota = i64::MAX;
    }));
    let made = fake.only("all");
    let info = details(&mut client, &made.id).await.unwrap().info;
    assert_eq!(strict::<cri::ContainerConfig>(&member(&info["info"], "config")).unwrap(), made.config);
    let spec: Value = serde_json::from_str(&member(&info["info"], "runtimeSpec")).unwrap();
    let env = spec["process"]["env"].as_array().unwrap();
    assert!(env.contains(&"LOOKS_CODED=dGV4dA==".into()) && env.contains(&"HOSTNAME=odd".into()), "{env:?}");
    assert_eq!(spec["linux"]["resources"]["cpu"]["shares"], 102);

    fake.model(|m| m.env_base64 = true);
    let info = details(&mut client, &made.id).await.unwrap().info;
    let config: cri::ContainerConfig = strict(&member(&info["info"], "config")).unwrap();
    assert_eq!(config.envs[0].value, b"Z3LDvMOfZQ==");
    assert_eq!(config.envs[1].value, b"ZEdWNGRBPT0=");
}

#[tokio::test]
async fn faults_do_what_they_say() {
    let (fake, mut client) = shop().await;
    let id = fake.only("app").id;

    fake.on("CreateContainer").about("app#1").fault(Fault::FailAfterEffect);
    assert_eq!(clone(&mut client, &id, 1).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(fake.times("created app#1"), 1);

    fake.on("CreateContainer").nth(2).fault(Fault::Fail(Code::ResourceExhausted, "no"));
    clone(&mut client, &id, 2).await.unwrap();
    assert_eq!(clone(&mut client, &id, 3).await.unwrap_err().code(), Code::ResourceExhausted);
    clone(&mut client, &id, 3).await.unwrap();

    fake.on("CreateContainer").fault(Fault::Twice);
    assert!(clone(&mut client, &id, 4).await.unwrap_err().message().contains("is reserved for"));
    assert_eq!(fake.instances("app").len(), 5);

    fake.on("RemoveContainer").fault(Fault::DropConnection);
    fake.on("RemoveContainer").nth(2).fault(Fault::DropConnectionAfterEffect);
    let last = fake.instances("app")[4].id.clone();
    remove(&mut client, &last).await.unwrap_err();
    assert_eq!(fake.instances("app").len(), 5);
    remove(&mut client, &last).await.unwrap_err();
    assert_eq!(fake.instances("app").len(), 4);
    assert_eq!(fake.calls("RemoveContainer")[1].outcome, Outcome::Lost);

    for fault in [Fault::Hang, Fault::Slow(HOUR), Fault::HangAfterEffect] {
        fake.on("StartContainer").fault(fault);
        assert_eq!(fake.times("started app#1"), 0, "before {fault:?}");
        let (mut caller, second) = (client.clone(), fake.instances("app")[1].id.clone());
        abandoned(&fake, "StartContainer", async move { start(&mut caller, &second).await }).await;
    }
    fake.until("the start", |m| m.running("app").len() == 2).await;
    assert_eq!(fake.calls("StartContainer")[0].to_string(), "StartContainer app#1: no answer");
}

#[tokio::test]
async fn a_restart_keeps_the_state_and_the_channel() {
    let (fake, mut client) = shop().await;
    let id = fake.only("app").id;
    let new = clone(&mut client, &id, 1).await.unwrap();
    fake.restart_before("StartContainer", HOUR);
    start(&mut client, &new).await.unwrap_err();
    assert!(list(&mut client).await.is_err());
    fake.come_back().await;
    assert_eq!(fake.times("started app#1"), 0);
    start(&mut client, &new).await.unwrap();

    fake.restart_after("RemoveContainer", MOMENT);
    remove(&mut client, &id).await.unwrap_err();
    fake.up().await;
    assert_eq!(list(&mut client).await.unwrap().len(), 2);

    fake.go_away();
    assert!(list(&mut client).await.is_err());
    fake.come_back().await;
    assert_eq!(fake.only("app").id, list(&mut client).await.unwrap()[1].id);
}

#[tokio::test]
async fn others_act_at_the_worst_moment() {
    let (fake, mut client) = shop().await;
    let id = fake.only("app").id;
    fake.after("StopContainer", |m| drop(m.kubelet_restarts("app").unwrap()));
    stop(&mut client, &id, 30).await.unwrap();
    assert!(clone(&mut client, &id, 1).await.unwrap_err().message().contains("is reserved for"));
    let theirs = fake.only("app");
    assert_eq!((theirs.attempt(), theirs.annotation(annotation::RESTART_COUNT)), (1, Some("1")));

    let side = fake.only("side").id;
    fake.after("ListContainers", move |m| m.vanish(&side));
    let seen = list(&mut client).await.unwrap();
    let side = seen.iter().find(|c| c.metadata.as_ref().unwrap().name == "side").unwrap();
    assert_eq!(details(&mut client, &side.id).await.unwrap_err().code(), Code::NotFound);

    fake.before("StartContainer", |m| m.die("app", 9));
    start(&mut client, &theirs.id).await.unwrap_err();
    assert!(fake.running("app").is_empty());
}

#[tokio::test]
async fn processes_end_in_their_time() {
    let (fake, mut client) = shop().await;
    fake.model(|m| m.image("img:v1").dies_after = Some((MOMENT, 3)));
    let id = clone(&mut client, &fake.only("app").id, 1).await.unwrap();
    start(&mut client, &id).await.unwrap();
    fake.until("the end", |m| m.running("app").len() == 1).await;
    let ended = fake.instances("app")[1].clone();
    assert_eq!((ended.exit_code, ended.finished_at - ended.started_at), (3, 30_000_000));

    // SIGKILL is sent only if the caller waits until the end.
    fake.model(|m| m.image("side:v1").ignores_stop = true);
    let side = fake.only("side").id;
    let (mut caller, id) = (client.clone(), side.clone());
    abandoned(&fake, "StopContainer", async move { stop(&mut caller, &id, 600).await }).await;
    fake.until("the signal", |m| m.running("side").iter().any(|side| side.signalled)).await;
    stop(&mut client, &side, 1).await.unwrap();
    assert_eq!(fake.instances("side")[0].exit_code, 137);
    assert_eq!(fake.times("signalled side#0"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_test_may_stop_its_own_clock() {
    let (fake, mut client) = shop().await;
    fake.model(|m| m.image("img:v1").stop_takes = MOMENT);
    let id = fake.only("app").id;
    stop(&mut client, &id, 30).await.unwrap();
    assert_eq!(fake.instances("app")[0].exit_code, 143);
    fake.restart_before("RemoveContainer", MOMENT);
    remove(&mut client, &id).await.unwrap_err();
    fake.up().await;
    remove(&mut client, &id).await.unwrap();
}

#[tokio::test]
async fn commands_are_answered() {
    let (fake, mut client) = shop().await;
    fake.exec(|container, cmd| match cmd[0].as_str() {
        "slow" => Exec { takes: MOMENT * 1000, ..Exec::default() },
        "bad" => Exec::failed(7, "no"),
        _ => Exec::ok(container.name()),
    });
    let id = fake.only("app").id;
    let exec =
        |cmd: &str| cri::ExecSyncRequest { container_id: id.clone(), cmd: vec![cmd.to_owned()], timeout: 1 };
    assert_eq!(client.exec_sync(exec("good")).await.unwrap().into_inner().stdout, b"app");
    assert_eq!(client.exec_sync(exec("bad")).await.unwrap().into_inner().exit_code, 7);
    assert_eq!(client.exec_sync(exec("slow")).await.unwrap_err().code(), Code::DeadlineExceeded);
    fake.model(|m| m.die("app", 0));
    assert!(client.exec_sync(exec("good")).await.unwrap_err().message().contains("CONTAINER_EXITED"));
}

#[tokio::test]
async fn images_are_known_by_all_their_names() {
    let (fake, _) = shop().await;
    let (id, digest) = fake.model(|m| {
        let image = m.remote_image("img:v2").tag("img:stable");
        (image.id.clone(), image.digest().to_owned())
    });
    let mut client = ImageServiceClient::new(channel(&fake));
    let spec = |image: &str| Some(cri::ImageSpec { image: image.to_owned(), ..cri::ImageSpec::default() });
    let pull = |image: &str| cri::PullImageRequest { image: spec(image), auth: None, sandbox_config: None };
    let status = |image: &str| cri::ImageStatusRequest { image: spec(image), verbose: true };
    assert!(client.image_status(status("img:v2")).await.unwrap().into_inner().image.is_none());
    assert_eq!(client.pull_image(pull("img:v2")).await.unwrap().into_inner().image_ref, id);
    assert_eq!(client.pull_image(pull("img:v3")).await.unwrap_err().code(), Code::NotFound);
    for name in [id.as_str(), &digest, "img:stable", "docker.io/library/img:v2"] {
        let assert_call = client.image_status(status(name)).await.unwrap().into_inner();
        assert_eq!(assert_call.image.unwrap().id, id, "{name}");
        assert!(member(&assert_call.info["info"], "imageSpec").contains("\"os\":\"linux\""));
    }
    fake.model(|m| "/srv".clone_into(&mut m.mountpoint));
    let usage = client.image_fs_info(cri::ImageFsInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(usage.image_filesystems[0].fs_id.as_ref().unwrap().mountpoint, "/srv");
}

#[tokio::test]
async fn pods_carry_the_marks_of_their_owner() {
    let fake = Fake::start().await;
    let pod =
        |name, owner| fake.put(Pod::new("shop", name).owner(owner).attempt(4).container("app", "img:v1"));
    let mut client = Client::new(channel(&fake));
    let made = [pod("a", Owner::Kubelet), pod("b", Owner::NodeRun), pod("c", Owner::Nobody)];
    let sandboxes = client.list_pod_sandbox(cri::ListPodSandboxRequest::default()).await.unwrap();
    let sandboxes = sandboxes.into_inner().items;
    assert_eq!(sandboxes[0].annotations[annotation::CONFIG_SOURCE], "api");
    assert_eq!(sandboxes[0].labels[annotation::POD_UID], made[0].uid);
    assert!(sandboxes[1].labels.contains_key(annotation::NODE_RUN));
    assert!(!sandboxes[2].labels.contains_key(annotation::POD_NAME));
    assert_eq!(fake.only("a/app").label(annotation::CONTAINER_NAME), Some("app"));
    assert_eq!(fake.only("b/app").attempt(), 4);
    assert_eq!((fake.only("c/app").id.as_str(), fake.history().len()), (made[2].id("app"), 0));

    drop(fake);
    assert!(client.version(cri::VersionRequest::default()).await.is_err());
}
