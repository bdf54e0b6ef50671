//! Swaps to another image: how the image arrives, and how a swap is rolled back.

use std::process::Stdio;

use inplace::api::status::{Phase, Status};
use inplace::process::clock;

use crate::{
    pod::{ENDS_WHEN_ASKED, Ended, PAIR, Pod},
    support::facts::{Facts, Instance},
    support::lab::Lab,
    support::wait::eventually,
};

/// For an image that exits at once: on a busy machine it does so seconds after the runtime has reported its start.
const WATCHED: [&str; 2] = ["--min-ready", "20"];

/// `app`'s attempt and image version. Verifies that everything a swap must retain equals `before`.
fn now(pod: &Pod<'_>, before: &Facts) -> (u32, String) {
    let facts = pod.facts().settled();
    assert_eq!((&facts.sandbox, &facts.ip, &facts.shm), (&before.sandbox, &before.ip, &before.shm));
    assert_eq!(facts.running("side"), before.running("side"));
    let app = facts.running("app");
    assert_eq!(app.namespaces, before.running("app").namespaces);
    (app.attempt, app.version.clone())
}

/// A pod with a file in its shared memory.
fn pod(name: &str, spec: &str) -> (Pod<'static>, Facts) {
    let pod = Pod::run(Lab::shared(), name, spec);
    pod.remember("world", "12 players");
    let facts = pod.facts().settled();
    (pod, facts)
}

fn swap(pod: &Pod<'_>, image: &str, options: &[&str], phase: Phase) -> Status {
    let mut args = vec![image];
    args.extend(options);
    pod.operate("swap", &args).is(phase)
}

#[test]
fn by_tag_by_digest_and_one_of_many() {
    let (pod, before) = pod("swap", PAIR);
    let multi = pod.lab.digest("app:multi");
    let digest = pod.lab.digest("app:v3");
    for (cycle, image, version) in [
        (1, pod.lab.image("app:v2"), "v2"),
        (2, digest.clone(), "v3"),
        (3, pod.lab.image("app:multi"), "multi"),
        // These images are on the node already.
        (4, pod.lab.image("app:v2"), "v2"),
        (5, multi, "multi"),
        (6, digest, "v3"),
        // A swap to the present image is permitted.
        (7, pod.lab.image("app:v3"), "v3"),
    ] {
        let old = pod.facts().running("app").image.clone();
        let status = swap(&pod, &format!("app={image}"), &[], Phase::Succeeded);
        assert_eq!(now(&pod, &before), (cycle, version.to_owned()));
        let report = &status.containers[0];
        let to = report.to.as_ref().unwrap();
        assert_eq!((&report.from.image_id, &to.image_id), (&old, &pod.facts().running("app").image));
        assert!(to.image_id.starts_with("sha256:"), "{status:?}");
        assert!(status.message.contains(&image), "{status:?}");
        let instances = pod.facts().of("app").count();
        assert_eq!(instances, 2);
    }
    // A restart keeps the swapped image.
    pod.restart(&["app"]);
    assert_eq!(now(&pod, &before), (8, "v3".to_owned()));
}

#[test]
fn what_crashes_is_rolled_back() {
    let (pod, before) = pod("crash", PAIR);
    let image = before.running("app").image.clone();
    for cycle in 0..2 {
        let status = swap(&pod, "app=lab/app:crash", &WATCHED, Phase::RolledBack);
        assert_eq!(status.reason, "Exited", "{status:?}");
        assert!(status.message.contains("exited with code 3"), "{status:?}");
        let report = &status.containers[0];
        assert!(report.downtime_ms.is_some(), "{status:?}");
        assert_eq!(report.to.as_ref().unwrap().attempt, 2 * cycle + 2, "{status:?}");
        assert_eq!(now(&pod, &before), (2 * cycle + 2, "v1".to_owned()));
        let facts = pod.facts();
        assert_eq!(facts.running("app").image, image);
        let crashed = facts.of("app").find(|instance| instance.attempt == 2 * cycle + 1).unwrap();
        assert_eq!(crashed.exit_code, 3);
        assert!(facts.of("app").count() <= 3, "{facts:#?}");
    }
    // The failed swap does not block the next one.
    swap(&pod, "app=lab/app:v2", &[], Phase::Succeeded);
    assert_eq!(now(&pod, &before), (5, "v2".to_owned()));
}

#[test]
fn what_cannot_start_is_rolled_back() {
    let (pod, before) = pod("noentry", PAIR);
    let status = swap(&pod, "app=lab/app:noentry", &[], Phase::RolledBack);
    assert_eq!(status.reason, "StartFailed", "{status:?}");
    assert!(status.message.contains("not-there"), "{status:?}");
    let (attempt, version) = now(&pod, &before);
    assert_eq!((attempt, version.as_str()), (2, "v1"));
}

#[test]
fn what_cannot_be_created_is_known_beforehand() {
    let (pod, before) = pod("nocmd", PAIR);
    let status = swap(&pod, "app=lab/app:nocmd", &[], Phase::Failed);
    assert_eq!(status.reason, "CannotCreate", "{status:?}");
    assert!(status.message.ends_with("The running containers were not touched"), "{status:?}");
    assert_eq!(pod.facts(), before);
}

#[test]
fn what_is_for_another_machine_is_known_beforehand() {
    let (pod, before) = pod("alien", PAIR);
    let status = swap(&pod, "app=lab/app:alien", &[], Phase::Failed);
    assert_eq!(status.reason, "PullFailed", "{status:?}");
    assert!(status.message.ends_with("The running containers were not touched"), "{status:?}");
    assert_eq!(pod.facts(), before);
}

#[test]
fn what_must_stay_up_is_watched_that_long() {
    let (pod, before) = pod("late", ENDS_WHEN_ASKED);
    let mut command = pod.command("swap", &["app=lab/app:v3", "--min-ready", "60"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Without --min-ready a swap succeeds after one second.
    eventually("the new version to run for two seconds", || {
        let started_before = clock::now().as_nanosecond() - 2_000_000_000;
        let runs = |app: &Instance| app.pid != 0 && i128::from(app.started_at) < started_before;
        pod.facts().of("app").any(|app| app.attempt == 1 && runs(app)).then_some(())
    });
    pod.remember("end", "");
    let status = Ended::of(&child.wait_with_output().unwrap()).is(Phase::RolledBack);
    assert!(status.message.contains("exited with code 1 after"), "{status:?}");
    pod.forget("end");
    assert_eq!(now(&pod, &before), (2, "v1".to_owned()));
    let status = swap(&pod, "app=lab/app:v3", &[], Phase::Succeeded);
    assert_eq!(status.containers[0].to.as_ref().unwrap().attempt, 3);
}

#[test]
fn without_a_rollback_it_is_left_as_it_failed() {
    let (pod, before) = pod("keep", PAIR);
    pod.await_handler();
    let status = swap(&pod, "app=lab/app:crash", &["--no-rollback", WATCHED[0], WATCHED[1]], Phase::Failed);
    assert_eq!(status.reason, "Exited", "{status:?}");
    assert!(status.message.contains("No further action is taken automatically: check app now"), "{status:?}");
    let facts = pod.facts();
    assert!(facts.fences.is_empty(), "{facts:#?}");
    let instances: Vec<_> =
        facts.of("app").map(|instance| (instance.attempt, instance.pid, instance.exit_code)).collect();
    assert_eq!(instances, [(0, 0, 0), (1, 0, 3)]);
    assert_eq!(facts.running("side"), before.running("side"));
    // A container that does not run cannot be replaced in place, and the status says so.
    let status = swap(&pod, "app=lab/app:v2", &[], Phase::Refused);
    assert!(status.message.contains("is not running: it is exited with code 3"), "{status:?}");
}

#[test]
fn when_the_second_of_two_fails_both_go_back() {
    let spec = format!("{PAIR}- {{name: more, image: lab/app:v1}}\n");
    let pod = Pod::run(Lab::shared(), "both", &spec);
    let before = pod.facts();
    let images = ["app=lab/app:v2", "more=lab/app:crash"];
    let status = pod.operate("swap", &[images, WATCHED].concat()).is(Phase::RolledBack);
    assert!(
        status.message.contains("app is back on") && status.message.contains("more is back on"),
        "{status:?}"
    );
    assert_eq!(now(&pod, &before), (2, "v1".to_owned()));
    let facts = pod.facts();
    assert_eq!((facts.running("more").attempt, facts.running("more").version.as_str()), (2, "v1"));
    let both = pod.operate("swap", &["app=lab/app:v2", "more=lab/app:v3"]).is(Phase::Succeeded);
    assert_eq!(both.containers.len(), 2);
    assert_eq!(now(&pod, &before), (3, "v2".to_owned()));
    assert_eq!(pod.facts().running("more").version, "v3");
}

#[test]
fn when_the_first_of_two_is_refused_beforehand_none_is_touched() {
    let (pod, before) = pod("none", PAIR);
    for images in [["app=lab/app:v2", "side=lab/app:absent"], ["app=lab/app:absent", "side=lab/app:v2"]] {
        let status = pod.operate("swap", &images).is(Phase::Failed);
        assert_eq!(status.reason, "PullFailed", "{status:?}");
        assert_eq!(pod.facts(), before);
    }
}
