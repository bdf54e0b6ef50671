//! Swaps of a running pod's container beside its kubelet: the downtime, an image that does not work, and a
//! concurrent change by another user.

#![expect(clippy::print_stderr, reason = "figures for whoever reads the log")]

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{self, Command},
    thread,
};

use inplace::{
    api::status::{ContainerReport, Engine, Phase, Step},
    cri::{
        client::Client,
        endpoint::Endpoint,
        proto::v1::{ImageSpec, RemoveImageRequest, image_service_client::ImageServiceClient},
    },
};
use k8s_openapi::api::core::v1::{Event, Pod as Object};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    drain::slice,
    instances::{Instance, Instances, Record},
    ongoing::{raw_channel, running_fence, slow_to_stop},
    pod::{PAIR, Pod, container, is, is_ready},
    request::{ONE, adopted, answered, event, request, restored, spec_image, swap},
    support::facts,
    support::lab::run,
    support::wait::eventually,
    traffic::now,
};

/// The shortest back-off of a kubelet for a container that has crashed before.
const HOLDS_BACK_MS: i64 = 10_000;
/// Longer than any kubelet takes for a start without back-off.
const HELD_BACK_MS: i64 = 5_000;
/// After so many seconds without a start of an image a kubelet forgets its back-off for it: twice the longest one.
const FORGETS_AFTER: i64 = 600;
/// How many seconds a runtime may take to report that an image has exited at once. A swap that is observed for less may
/// succeed before.
const CRASHES_WITHIN: u32 = 5;

/// Does the same as `kubectl set image`.
fn somebody_sets(pod: &Pod<'_>, image: &str) {
    let patch = json!({"spec": {"containers": [{"name": "app", "image": pod.cluster.named(image)}]}});
    let patch = Patch::Strategic(patch);
    block_on(pod.api.patch(&pod.name, &PatchParams::default(), &patch)).unwrap();
}

/// Milliseconds from the end of each instance of `app` to the start of the next one, by the runtime's clock.
fn downtimes(record: &Record, pod: &Pod<'_>) -> Vec<i64> {
    let instances = record.one_at_a_time(&pod.uid, "app");
    let down = |pair: &[(u32, Instance)]| (pair[1].1.started_at - pair[0].1.finished_at) / 1_000_000;
    instances.windows(2).map(down).collect()
}

/// Milliseconds from the end of the old instance to the creation of the new one. A back-off of the kubelet delays the creation,
/// a slow machine most of all the start.
fn until_created(report: &ContainerReport, new: &facts::Instance) -> i64 {
    new.created_at / 1_000_000 - report.stopped_at.unwrap().as_millisecond()
}

/// Lets the kubelet alone swap `app`.
fn left_to_the_kubelet(pod: &Pod<'_>, image: &str, restarts: i32) -> Object {
    somebody_sets(pod, image);
    pod.wait("the kubelet has swapped it", |pod| {
        container(pod, "app").is_some_and(|app| app.ready && app.restart_count == restarts)
    })
}

/// Milliseconds from the end of the last instance of `app` to the start of the one that runs, as the kubelet reports both: in
/// whole seconds.
fn reported_down(pod: &Object) -> Option<i64> {
    let app = container(pod, "app")?;
    let started = app.state.as_ref()?.running.as_ref()?.started_at.as_ref()?;
    let ended = app.last_state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?;
    Some(1_000 * started.0.duration_since(ended.0).as_secs())
}

/// True if the kubelet reports that it holds `app` back.
fn is_held_back(pod: &Object) -> bool {
    let waiting = container(pod, "app").and_then(|app| app.state.as_ref()?.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CrashLoopBackOff"))
}

/// Lets the kubelet alone swap `app`, until it has held an image back for long. Returns the number of swaps. A kubelet holds an
/// image back if it stopped the last container less than the back-off of that image ago: one that takes longer for a swap does so
/// after more swaps, because each doubles that back-off.
fn swapped_until_held_back(pod: &Pod<'_>) -> usize {
    let mut longest: Option<i64> = None;
    for (cycle, image) in cycles(12) {
        longest = longest.max(reported_down(&left_to_the_kubelet(pod, image, cycle)));
        if cycle >= 4 && longest > Some(HELD_BACK_MS) && pod.seen().versions().any(is_held_back) {
            return usize::try_from(cycle).unwrap();
        }
    }
    panic!("{pod:?}: the kubelet holds no image back: down for {longest:?} ms");
}

fn cycles(cycles: i32) -> impl Iterator<Item = (i32, &'static str)> {
    (1..=cycles).map(|cycle| (cycle, if cycle % 2 == 1 { "lab/app:v2" } else { "lab/app:v1" }))
}

#[test]
fn ten_swaps_in_a_row_are_short_each_and_the_kubelets_are_not() {
    let cluster = Cluster::shared();
    Agent::shared();
    let (ours, theirs) = (Pod::run(cluster, "flips", ONE), Pod::run(cluster, "alone", ONE));
    // The kubelet collects previous instances while others run.
    let instances = Instances::watch(&cluster.node());
    let ((reported, created), alone): ((Vec<_>, Vec<_>), _) = thread::scope(|scope| {
        let alone = scope.spawn(|| swapped_until_held_back(&theirs));
        // The kubelet's own last start of each image: what the agent starts in its place prolongs no back-off.
        let mut by_kubelet = BTreeMap::new();
        let helped = cycles(10).map(|(cycle, image)| {
            let status = swap(&ours, image, json!({}), Phase::Succeeded);
            let report = &status.containers[0];
            assert_eq!(report.engine, Engine::Respec);
            assert_eq!(report.to.as_ref().unwrap().attempt, cycle.unsigned_abs());
            let instance = adopted(&ours, "app", image);
            assert_eq!(format!("lab/app:{}", instance.version), image);
            let last = by_kubelet.entry(image).or_insert(instance.created_at);
            let seconds = (instance.created_at - *last) / 1_000_000_000;
            assert!(seconds < FORGETS_AFTER, "cycle {cycle}: {seconds} s after the kubelet's last start");
            if !instance.by_operation {
                *last = instance.created_at;
            }
            (report.downtime_ms.unwrap(), until_created(report, &instance))
        });
        (helped.unzip(), alone.join().unwrap())
    });
    let record = instances.end();
    let (ours_ms, theirs_ms) = (downtimes(&record, &ours), downtimes(&record, &theirs));
    assert_eq!(ours_ms, reported);
    assert_eq!(theirs_ms.len(), alone);
    eprintln!("swaps back and forth, down for ms: {ours_ms:?}; left to the kubelet: {theirs_ms:?}");
    assert!(theirs_ms.iter().any(|ms| *ms > HELD_BACK_MS), "{theirs_ms:?}");
    assert!(created.iter().all(|ms| *ms < HOLDS_BACK_MS), "held back: {created:?}");
    // On a busy machine both take longer: 250 ms is the time that the agent leaves to the kubelet, the rest is
    // work. A single start may be slow.
    let unhindered = theirs_ms.iter().filter(|ms| **ms < HELD_BACK_MS).max().or(theirs_ms.iter().min());
    let bound = 2_000.max(250 + 4 * unhindered.unwrap());
    let short = ours_ms.iter().filter(|ms| **ms < bound).count();
    assert!(2 * short > ours_ms.len(), "{ours_ms:?}, bound {bound} ms");
    let longest = HOLDS_BACK_MS.max(bound);
    assert!(ours_ms.iter().all(|ms| *ms < longest), "{ours_ms:?}, bound {longest} ms");
}

#[test]
fn an_image_that_cannot_be_had_is_not_felt() {
    let cluster = Cluster::shared();
    Agent::shared();
    let pod = Pod::run(cluster, "unpulled", PAIR);
    let before = pod.facts().settled();
    let images = [("side", Some("lab/app:v2")), ("app", Some("lab/app:never-pushed"))];
    let status = pod.ask(&request(cluster, &images, json!({})), Phase::Failed);
    assert_eq!((status.reason.as_str(), status.step), ("PullFailed", Some(Step::Pull)), "{status:#?}");
    assert!(status.message.contains(&cluster.image("app:never-pushed")), "{}", status.message);
    assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
    assert_eq!(pod.facts(), before);
    let object = pod.get();
    assert!(["app", "side"].iter().all(|name| spec_image(&object, name) == cluster.image("app:v1")));
    assert!(pod.seen().versions().skip_while(|version| !is_ready(version)).all(is_ready));
    assert_eq!(event(&pod, "InPlaceFailed"), status.message);
}

/// Ready unless the version is v3.
const PROBED: &str = "
terminationGracePeriodSeconds: 2
containers:
- name: app
  image: lab/app:v1
  readinessProbe: {exec: {command: [grep, -qv, v3, /etc/version]}, periodSeconds: 1, timeoutSeconds: 30}
";

#[test]
fn an_image_that_does_not_come_up_is_taken_back() {
    Agent::shared();
    let cases = [
        ("crash", ONE, json!({"minReadySeconds": CRASHES_WITHIN}), "Exited", "code 3"),
        ("noentry", ONE, json!({}), "StartFailed", "did not start"),
        ("late", ONE, json!({"minReadySeconds": 15}), "Exited", "code 1"),
        ("v3", PROBED, json!({"readyTimeoutSeconds": 3}), "NotReady", "within 3 s"),
    ];
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || taken_back(case));
        }
    });
}

fn taken_back((tag, spec, more, reason, says): (&str, &str, Value, &str, &str)) {
    let pod = Pod::run(Cluster::shared(), "back", spec);
    let status = swap(&pod, &format!("lab/app:{tag}"), more, Phase::RolledBack);
    assert_eq!((status.reason.as_str(), status.step), (reason, Some(Step::Rollback)), "{status:#?}");
    assert!(status.message.contains(says), "{tag}: {}", status.message);
    assert!(status.message.starts_with("app is back on "), "{tag}: {}", status.message);
    let instance = restored(&pod, &status.containers[0], "lab/app:v1");
    assert_eq!(instance.version, "v1");
    assert_eq!(event(&pod, "InPlaceRolledBack"), status.message);
    eprintln!("{tag}: {}", status.message);
    // The restored container stays, and can be restarted as usual. Only a late kubelet may stop it once more: a request that
    // comes in between is refused, and the user asks again (docs/limits.md).
    let mut after = answered(&pod, "app");
    if after.reason == "NotRunning" {
        restored(&pod, &status.containers[0], "lab/app:v1");
        after = answered(&pod, "app");
    }
    assert_eq!(after.phase, Phase::Succeeded, "{after:#?}");
    let from = &after.containers[0].from;
    assert!(from.container_id == instance.id || from.attempt > instance.attempt, "{after:#?}");
}

#[test]
fn the_way_back_is_short_while_the_kubelet_holds_the_image_back() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "hurry", ONE);
    // From now on the kubelet would delay a start of either image.
    let swaps = cycles(4).map(|(_, image)| {
        let status = swap(&pod, image, json!({}), Phase::Succeeded);
        status.containers[0].downtime_ms.unwrap()
    });
    let slowest = swaps.max().unwrap();
    let (mut downs, mut there, mut alone) = (Vec::new(), Vec::new(), Vec::new());
    let more = json!({"minReadySeconds": CRASHES_WITHIN});
    // The busier the machine, the more often a late kubelet kills the restored instance first.
    while alone.len() < 2 && downs.len() < 12 || downs.len() < 3 {
        let status = swap(&pod, "lab/app:crash", more.clone(), Phase::RolledBack);
        let report = &status.containers[0];
        let instance = restored(&pod, report, "lab/app:v1");
        assert_eq!(instance.version, "v1");
        let facts = pod.facts();
        // The kubelet keeps only the last exited instance, which is another one if the kubelet killed the
        // restored instance first.
        let is_between = |other: &facts::Instance| {
            other.attempt == report.from.attempt + 1 && other.attempt + 1 == instance.attempt
        };
        if let Some(crashed) = facts.of("app").find(|other| other.exit_code == 3 && is_between(other)) {
            there.push(until_created(report, crashed));
            alone.push((instance.started_at - crashed.finished_at) / 1_000_000);
        }
        downs.push(report.downtime_ms.unwrap());
    }
    eprintln!(
        "ms from the stop to the old image running again: {downs:?}, to the new one: {there:?}, and from the crash: {alone:?}"
    );
    // On a busy machine a swap takes longer as well: stop, head start of the kubelet, and start.
    let bound = 500.max(2 * slowest);
    let fastest = alone.iter().min().copied().unwrap_or(i64::MAX);
    assert!(alone.len() >= 2 && fastest <= bound, "{alone:?}, bound {bound} ms");
    let longest = 5_000.max(6 * slowest);
    assert!(alone.iter().all(|ms| *ms < longest), "{alone:?}, bound {longest} ms");
    // Nor does the kubelet delay the crashing image on the way there: from the second time on it could, for ten seconds at
    // least.
    assert!(there.iter().all(|ms| *ms < HOLDS_BACK_MS), "{there:?}");
    let longest = 25_000.max(8 * slowest);
    assert!(downs.iter().all(|down| *down < longest), "{downs:?}, bound {longest} ms");
}

#[test]
fn what_failed_is_kept_on_request_and_a_crash_loop_is_ended_by_a_swap() {
    let cluster = Cluster::shared();
    Agent::shared();
    thread::scope(|scope| {
        scope.spawn(|| {
            let pod = Pod::run(cluster, "kept", ONE);
            let more = json!({"onFailure": "Keep", "minReadySeconds": CRASHES_WITHIN});
            let status = swap(&pod, "lab/app:crash", more, Phase::Failed);
            assert_eq!(status.reason, "Exited", "{status:#?}");
            assert!(status.message.ends_with("No further action is taken automatically: check app now"));
            assert_eq!(event(&pod, "InPlaceFailed"), status.message);
            rescued(&pod);
        });
        scope.spawn(|| rescued(&Pod::create(cluster, "crashes", &ONE.replace(":v1", ":crash"))));
    });
}

/// A kubelet that needs disk space collects images that no container uses.
#[test]
fn an_image_that_is_collected_during_a_drain_is_pulled_before_the_spec_is_changed() {
    let cluster = Cluster::shared();
    Agent::shared();
    // No other test on this cluster uses this image.
    let image = "lab/app:multi";
    let gated = format!("readinessGates: [{{conditionType: InPlaceUpdateReady}}]{ONE}");
    let pod = Pod::run(cluster, "collected", &gated);
    // The drain lasts until the slice is deleted, and then for longer than an image that was seen is assumed to be there.
    let by_hand = slice(&pod, &format!("collected-{}", process::id()));
    let more = json!({"drain": "Confirmed", "gracePeriodSeconds": 5});
    let id = pod.request(&request(cluster, &[("app", Some(image))], more));
    pod.reported("it drains", |status| status.id == id && status.step == Some(Step::Drain));
    remove_image(cluster, &cluster.named(image));
    let removed = now();
    cluster.kubectl(&["delete", "endpointslice", &by_hand]);
    let status = pod.answer(&id);
    assert_eq!(status.phase, Phase::Succeeded, "{status:#?}");
    assert!(status.containers[0].stopped_at.unwrap() > removed, "removed too late: {removed}, {status:#?}");
    assert_eq!(adopted(&pod, "app", image).version, "multi");
    let reported = |event: &Event| {
        let message = event.message.as_deref().unwrap_or_default();
        message.contains(&cluster.named(image)).then(|| (event.reason.clone().unwrap(), message.to_owned()))
    };
    let by_kubelet = eventually("the kubelet's word about the image", || {
        let reported: Vec<_> = pod.events().iter().filter_map(reported).collect();
        reported.iter().any(|(reason, _)| reason == "Pulled").then_some(reported)
    });
    assert!(by_kubelet.iter().all(|(reason, _)| reason != "Pulling"), "{by_kubelet:?}");
}

/// Removes an image from the first node, under all of its names; the node must have it.
fn remove_image(cluster: &Cluster, name: &str) {
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    block_on(async {
        let client = Client::new(&endpoint, None);
        assert!(client.image(name, false).await.unwrap().is_some(), "{name} was never there");
        let image = Some(ImageSpec { image: name.to_owned(), ..ImageSpec::default() });
        ImageServiceClient::new(raw_channel(cluster))
            .remove_image(RemoveImageRequest { image })
            .await
            .unwrap();
        assert!(client.image(name, false).await.unwrap().is_none(), "{name} is still there");
    });
}

/// If the fence were created after the old container's end, a kubelet could keep it as the newest of two exited
/// containers, and remove the container that the kubelet itself creates.
#[test]
fn the_fence_of_a_swap_runs_while_the_kubelet_stops_the_old_container() {
    let cluster = Cluster::shared();
    Agent::shared();
    let mut spec = slow_to_stop(&cluster.image("app:v1"));
    spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] = json!(["sleep", "8"]);
    let pod = Pod::make(cluster, "fenced", json!({"spec": spec}));
    pod.wait("it is Ready", is_ready);
    // With a kubelet before 1.27 the agent finishes the swap only if it has observed that kubelet's hashes of
    // both specs.
    for image in ["lab/app:v2", "lab/app:v1"] {
        swap(&pod, image, json!({}), Phase::Succeeded);
        adopted(&pod, "app", image);
    }
    let id = pod.request(&request(cluster, &[("app", Some("lab/app:v2"))], json!({})));
    pod.wait("its spec is changed", |object| spec_image(object, "app") == cluster.image("app:v2"));
    let fence = running_fence(&pod).map(|fence| fence.metadata.unwrap().attempt);
    let facts = pod.facts();
    assert_eq!((facts.running("app").attempt, facts.running("app").version.as_str()), (2, "v1"));
    assert_eq!(fence, Some(4));
    assert_eq!(pod.answer(&id).phase, Phase::Succeeded);
    assert_eq!(adopted(&pod, "app", "lab/app:v2").attempt, 3);
}

/// `app` crashes again and again, until it is swapped to an image that does not.
fn rescued(pod: &Pod<'_>) {
    let object = pod.wait("it crashes again and again", is_held_back);
    assert_eq!(spec_image(&object, "app"), pod.cluster.image("app:crash"));
    let status = swap(pod, "lab/app:v1", json!({}), Phase::Succeeded);
    assert_eq!(adopted(pod, "app", "lab/app:v1").version, "v1");
    eprintln!("{}", status.message);
}

#[test]
fn the_first_of_two_goes_back_with_the_second() {
    let cluster = Cluster::shared();
    Agent::shared();
    let pod = Pod::run(cluster, "two", PAIR);
    let images = [("app", Some("lab/app:v2")), ("side", Some("lab/app:crash"))];
    let more = json!({"minReadySeconds": CRASHES_WITHIN});
    let status = pod.ask(&request(cluster, &images, more), Phase::RolledBack);
    assert_eq!(status.reason, "Exited");
    assert!(status.message.contains("app is back on") && status.message.contains("side is back on"));
    for report in &status.containers {
        assert_eq!(restored(&pod, report, "lab/app:v1").version, "v1", "{status:#?}");
    }
}

/// Gives an image of the registry another name there.
fn tag(cluster: &Cluster, from: &str, to: &str) {
    let [from, to] = [from, to].map(|name| format!("docker://{}", cluster.image(name)));
    let flags = ["--insecure-policy", "copy", "-q", "--preserve-digests"];
    let plain = ["--src-tls-verify=false", "--dest-tls-verify=false"];
    run(Command::new("skopeo").args(flags).args(plain).args([from, to]));
}

#[test]
fn a_tag_that_has_moved_is_followed() {
    let cluster = Cluster::shared();
    Agent::shared();
    // One tag that the spec already names, and one for which the kubelet asks the registry; the node has both as
    // v1.
    tag(cluster, "app:v1", "moved:stable");
    let spec = ONE.replace("app:v1", "moved:stable");
    let here = Pod::run(cluster, "here", &spec);
    let asking = Pod::run(cluster, "asking", &ONE.replace("app:v1}", "app:v3, imagePullPolicy: Always}"));
    tag(cluster, "app:v2", "moved:stable");

    let status = swap(&here, "lab/moved:stable", json!({}), Phase::Succeeded);
    let report = &status.containers[0];
    assert_eq!(report.engine, Engine::Recreate);
    assert_ne!(report.to.as_ref().unwrap().image_id, report.from.image_id);
    let instance = adopted(&here, "app", "lab/moved:stable");
    assert_eq!((instance.version.as_str(), instance.attempt), ("v2", 1));

    tag(cluster, "app:v1", "moved:stable");
    let status = swap(&asking, "lab/moved:stable", json!({}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Respec);
    let instance = adopted(&asking, "app", "lab/moved:stable");
    assert_eq!((instance.version.as_str(), instance.attempt), ("v1", 1));
    // The image behind the tag on other pods changes nothing for this pod.
    assert_eq!(adopted(&here, "app", "lab/moved:stable").version, "v2");
}

#[test]
fn somebody_elses_change_is_never_undone() {
    let cluster = Cluster::shared();
    Agent::shared();
    let gated = format!("readinessGates: [{{conditionType: InPlaceUpdateReady}}]{ONE}");
    let (draining, watched) = (Pod::run(cluster, "draining", &gated), Pod::run(cluster, "watched", ONE));
    let at_once = [(); 3].map(|()| Pod::run(cluster, "at-once", ONE));

    let ask = |pod: &Pod<'_>, more| pod.request(&request(cluster, &[("app", Some("lab/app:v2"))], more));
    // The drain lasts until the slice is deleted.
    let by_hand = slice(&draining, &format!("overtaken-{}", process::id()));
    let in_drain = ask(&draining, json!({"drain": "Confirmed", "gracePeriodSeconds": 1}));
    let in_verify = ask(&watched, json!({"minReadySeconds": 30}));
    watched.reported("it is watched", |status| status.id == in_verify && status.step == Some(Step::Verify));
    somebody_sets(&watched, "lab/app:v3");
    draining.reported("it drains", |status| status.id == in_drain && status.step == Some(Step::Drain));
    left_to_the_kubelet(&draining, "lab/app:v3", 1);
    cluster.kubectl(&["delete", "endpointslice", &by_hand]);
    thread::scope(|scope| {
        for pod in &at_once {
            scope.spawn(|| ask(pod, json!({})));
            scope.spawn(|| somebody_sets(pod, "lab/app:v3"));
        }
    });

    let status = draining.answer(&in_drain);
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "RespecFailed"), "{status:#?}");
    assert!(status.message.contains("another client"), "{}", status.message);
    assert!(status.message.contains(&cluster.image("app:v3")), "{}", status.message);
    draining.wait("it takes traffic again", |pod| is(pod, "InPlaceUpdateReady"));
    let status = watched.answer(&in_verify);
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "Overruled"), "{status:#?}");
    assert!(status.message.contains(&cluster.image("app:v3")), "{}", status.message);
    for pod in &at_once {
        let ended = pod.reported("it has ended", |status| status.phase.is_terminal());
        eprintln!("at once: {} {}: {}", ended.phase, ended.reason, ended.message);
        let last = spec_image(&pod.get(), "app");
        pod.wait("its watch has the last change", |object| spec_image(object, "app") == last);
        let mut images: Vec<_> = pod.seen().versions().map(|object| spec_image(object, "app")).collect();
        images.dedup();
        // The user's change may have come first; then it is what the request replaces.
        let theirs = cluster.image("app:v3");
        let is_replaced = ended.containers.first().is_some_and(|report| report.from.image == theirs);
        assert!(last == theirs || (ended.phase == Phase::Succeeded && is_replaced), "{ended:#?}");
        assert!(images.iter().collect::<BTreeSet<_>>().len() == images.len(), "{images:?}: {ended:#?}");
        is_all_there_is(pod, &last);
    }
    for pod in [&draining, &watched] {
        is_all_there_is(pod, &cluster.image("app:v3"));
    }
}

/// Asserts that the spec names the image, and that it runs alone.
fn is_all_there_is(pod: &Pod<'_>, image: &str) {
    pod.wait("the kubelet has done it", |object| {
        container(object, "app").is_some_and(|app| app.image == image && app.ready)
    });
    let instance = adopted(pod, "app", image);
    assert!(image.ends_with(&format!(":{}", instance.version)), "{pod:?}: {image}, {instance:?}");
}
