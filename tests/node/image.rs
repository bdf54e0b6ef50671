//! Images that cannot be pulled or have been removed, on labs of their own, which the tests may damage.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use inplace::api::status::{Phase, Status};

use crate::{
    pod::{ENDS_WHEN_ASKED, Ended, PAIR, Pod},
    support::lab::{Lab, Options, run},
    support::wait::eventually,
};

/// Swaps `app`, which must fail before anything is touched, and returns the status.
fn untouched(pod: &Pod<'_>, image: &str, options: &[&str]) -> Status {
    let before = pod.facts();
    let image = format!("app={image}");
    let mut args = vec![image.as_str()];
    args.extend(options);
    let status = pod.operate("swap", &args).is(Phase::Failed);
    assert_eq!(status.reason, "PullFailed", "{status:?}");
    assert!(status.message.ends_with("The running containers were not touched"), "{status:?}");
    assert_eq!(pod.facts(), before);
    status
}

#[test]
fn what_the_registry_does_not_have() {
    let lab = Lab::shared();
    let pod = Pod::run(lab, "missing", PAIR);
    let status = untouched(&pod, "lab/app:absent", &[]);
    assert!(status.message.contains("not found"), "{status:?}");
    let status = untouched(&pod, &format!("lab/app@sha256:{}", "1".repeat(64)), &[]);
    assert!(status.message.contains("not found"), "{status:?}");
    let status = untouched(&pod, "127.0.0.1:1/app:v1", &[]);
    assert!(status.message.contains("refused"), "{status:?}");
}

#[test]
fn a_damaged_registry_and_then_none() {
    let lab = Lab::own(&Options::default());
    let pod = Pod::run(&lab, "registry", PAIR);
    // v2 is on the node; v3 is not, and has a damaged configuration.
    pod.operate("swap", &["app=lab/app:v2"]).is(Phase::Succeeded);
    damage(&lab, "app:v3");
    let status = untouched(&pod, "lab/app:v3", &[]);
    assert!(status.message.contains("app:v3 for app is not usable"), "{status:?}");

    let pid = fs::read_to_string(lab.dir.join("pids/registry")).unwrap();
    run(Command::new("kill").args(["-9", pid.trim()]));
    let status = untouched(&pod, "lab/app:v1-of-nowhere", &[]);
    assert!(status.message.contains("refused"), "{status:?}");
    // An image on the node needs no registry.
    pod.restart(&["app"]);
    pod.operate("swap", &["app=lab/app:v1"]).is(Phase::Succeeded);
    assert_eq!(pod.facts().settled().running("app").version, "v1");
}

/// Changes the image configuration that the registry serves.
fn damage(lab: &Lab, name: &str) {
    let digest = lab.digest(name);
    let blob = |digest: &str| {
        let hex = digest.rsplit_once("sha256:").unwrap().1.to_owned();
        let blobs = lab.dir.join("registry/docker/registry/v2/blobs/sha256");
        blobs.join(&hex[..2]).join(&hex).join("data")
    };
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(blob(&digest)).unwrap()).unwrap();
    let config = blob(manifest["config"]["digest"].as_str().unwrap());
    let text = fs::read_to_string(&config).unwrap().replace("PATH=/bin", "PATH=/bad");
    assert!(text.contains("/bad"));
    fs::write(config, text).unwrap();
}

#[test]
fn a_disk_that_is_full() {
    let lab = Lab::own(&Options { root_size: Some("48m".to_owned()) });
    let pod = Pod::run(&lab, "full", PAIR);
    // Detected before the pull, if the required space is missing.
    let status = untouched(&pod, "lab/app:v2", &["--image-reserve", "100"]);
    assert!(status.message.contains("MiB are needed: remove unused images or free some space"), "{status:?}");
    // Detected by the pull, if the image is larger than estimated.
    let made = tempfile::tempdir().unwrap();
    let maker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/big-image.sh");
    run(Command::new(maker).arg(made.path()).arg("64"));
    lab.push(&made.path().join("big-v1.tar"), "big:v1");
    let status = untouched(&pod, "lab/big:v1", &[]);
    assert!(status.message.contains("no space left on device"), "{status:?}");
    // The runtime removes the remains of the pull asynchronously; a restart needs some space, but little.
    eventually("the room that the pull took to be free again", || {
        let disk = nix::sys::statvfs::statvfs(&lab.dir.join("root")).unwrap();
        (disk.blocks_available() * disk.fragment_size() > 4 << 20).then_some(())
    });
    pod.restart(&["app"]);
    assert_eq!(pod.facts().settled().running("app").attempt, 1);
}

#[test]
fn no_way_forward_and_no_way_back() {
    let lab = Lab::own(&Options::default());
    let pod = Pod::run(&lab, "stuck", ENDS_WHEN_ASKED);
    let child = spawn(&pod, &["app=lab/app:v3", "--min-ready", "60"]);
    eventually("the new image to run", || {
        pod.facts().of("app").any(|instance| instance.attempt == 1 && instance.pid != 0).then_some(())
    });
    // The previous image is removed while the new one is being verified.
    let names = lab.ctr(&["image", "ls"]);
    let digest = lab.digest("app:v1");
    let digest = digest.rsplit_once('@').unwrap().1;
    for name in names.lines().filter(|line| line.contains(digest)).filter_map(|line| line.split(' ').next()) {
        lab.ctr(&["image", "rm", "--sync", name]);
    }
    pod.remember("end", "");
    let status = Ended::of(&child.wait_with_output().unwrap()).is(Phase::Failed);
    assert_eq!(status.reason, "Exited", "{status:?}");
    for part in [
        "exited with code 1",
        "the rollback failed as well",
        "No further action is taken automatically: check app now",
    ] {
        assert!(status.message.contains(part), "{part}: {status:?}");
    }
    let facts = pod.facts();
    assert!(facts.fences.is_empty(), "{facts:#?}");
    assert!(facts.of("app").all(|instance| instance.pid == 0), "{facts:#?}");
    assert_eq!(facts.running("side").attempt, 0);
}

fn spawn(pod: &Pod<'_>, args: &[&str]) -> Child {
    let mut command = pod.command("swap", args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}
