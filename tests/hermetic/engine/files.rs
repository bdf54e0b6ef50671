//! Files on the node that block when they are opened, and responses that are too large: a container that is down
//! comes up all the same, and the memory of the process stays bounded.

use std::sync::mpsc;

use inplace::api::status::Phase;
use inplace::cri::clone::fresh_termination_log;
use inplace::cri::proto::v1::Mount;
use inplace::operation::snapshot::Owner;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::super::runtime::{Exec, Pod};
use super::{Fixture, nobody, pod, pod_ref, request};

/// The replacement's termination message file cannot be opened: the old file is used.
#[tokio::test]
async fn a_file_that_hangs_keeps_no_container_down() {
    let fixture = Fixture::of(pod().owner(Owner::Kubelet)).await;
    let folder = fixture.state.path().join(format!("pods/{}/containers/app", fixture.pod.uid));
    std::fs::create_dir_all(&folder).unwrap();
    let old = folder.join("0a1b2c3d");
    let mount = Mount {
        container_path: "/dev/termination-log".to_owned(),
        host_path: old.to_str().unwrap().to_owned(),
        ..Default::default()
    };
    fixture.fake.model(|m| m.container_mut(&fixture.first).unwrap().config.mounts.push(mount.clone()));
    let pipe = fresh_termination_log(&old, 1);
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    // Unblocks in any case: an executor waits for its threads when it ends.
    let (go, gone) = mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ = gone.recv();
        drop(std::fs::OpenOptions::new().read(true).write(true).open(pipe).unwrap());
    });
    let other = fixture.fake.put(Pod::new("shop", "web-1").owner(Owner::NodeRun).container("db", "img:v1"));
    let (node, control) = (fixture.node.clone(), fixture.control());
    let beside = tokio::spawn(async move {
        node.carry_out(&pod_ref(&other), request("restart db"), control, &nobody()).await
    });
    let status = fixture.restart().await.unwrap();
    let down = status.containers[0].downtime_ms.unwrap();
    // Without a limit for the file it stays down for as long as this test waits. The disk may be slow as well.
    assert!(status.phase == Phase::Succeeded && down < 10_000, "{status:#?}");
    let mounts = fixture.fake.only("app").config.mounts;
    assert!(mounts.contains(&mount), "{mounts:?}");
    assert_eq!(fixture.patiently(beside).await.unwrap().unwrap().phase, Phase::Succeeded);
    drop(go);
    thread.join().unwrap();
    fixture.sane("hung");
}

/// The output of a handler may be confidential, and is not held in memory.
#[tokio::test]
async fn a_pre_stop_handler_that_prints_much_is_not_read() {
    // On a busy machine it takes seconds to send that much.
    let fixture = Fixture::of(pod().grace(60).pre_stop(r#"{"exec":{"command":["head"]}}"#)).await;
    fixture.fake.exec(|_, _| Exec::ok(&"x".repeat(15 << 20)));
    let status = fixture.restart().await.unwrap();
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert!(status.message.contains("printed more than 64 KiB"), "{}", status.message);
    assert_eq!(fixture.fake.calls("ExecSync").len(), 1);
    fixture.sane("printed");
}
