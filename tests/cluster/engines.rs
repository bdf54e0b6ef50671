//! Which engine is used for which container, on a real kubelet: each kind is restarted in its permitted way, the
//! kubelet adopts the result, and what cannot be done safely is refused.

#![expect(clippy::print_stderr, reason = "figures for whoever reads the log")]

use std::{
    fs,
    path::Path,
    process::{Command, id},
    thread,
};

use inplace::api::status::{Engine, Phase};
use k8s_openapi::api::core::v1::Pod as Object;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    ongoing::{retag, unique},
    pod::{Pod, is_ready},
    request::{ONE, adopted, restart, spec_image, swap},
    support::{lab::run, release},
};

/// How often a container is restarted until two restarts were the agent's own.
const TRIES: u32 = 12;

/// A pod with one container, `app`; `more` is added to the container, `rest` to the spec.
fn spec(more: &str, rest: &str) -> String {
    format!(
        "terminationGracePeriodSeconds: 2\n{rest}\ncontainers:\n- {{name: app, image: lab/app:v1{more}}}\n"
    )
}

fn digest_of(cluster: &Cluster, name: &str) -> String {
    cluster.lab().digest(name)
}

#[test]
fn what_may_not_be_cloned_gets_another_name_of_its_image_and_then_the_first_again() {
    let cluster = Cluster::shared();
    Agent::shared();
    let secret = format!("engines-{}", id());
    cluster.apply(&format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {secret}}}\nstringData: {{key: of no importance}}\n"
    ));
    let from_secret = format!("{{name: A, valueFrom: {{secretKeyRef: {{name: {secret}, key: key}}}}}}");
    let from_none = "{name: A, valueFrom: {secretKeyRef: {name: not-there, key: a, optional: true}}}";
    let kinds = [
        (spec(", lifecycle: {postStart: {exec: {command: ['true']}}}", ""), "postStart handler"),
        (
            spec(", envFrom: [{configMapRef: {name: kube-root-ca.crt}}]", ""),
            "its environment comes from objects",
        ),
        (spec(&format!(", env: [{from_secret}]"), ""), "its environment comes from objects"),
        (spec(&format!(", env: [{from_none}]"), ""), "its environment comes from objects"),
        (
            spec(
                ", volumeMounts: [{name: ca, mountPath: /etc/ca.crt, subPath: ca.crt}]",
                "volumes: [{name: ca, configMap: {name: kube-root-ca.crt}}]",
            ),
            "subPath of objects",
        ),
    ];
    thread::scope(|scope| {
        for (spec, why) in &kinds {
            let spec = format!("{spec}- {{name: plain, image: lab/app:v1}}\n");
            scope.spawn(move || flipped(&Pod::run(cluster, "kind", &spec), why));
        }
    });
    cluster.kubectl(&["delete", "secret", &secret]);
}

/// Asserts that the kubelet restarts it twice, that nothing else differs afterwards, and that it is not cloned on
/// request either.
fn flipped(pod: &Pod<'_>, why: &str) {
    let plan = pod.cluster.inplace(&["plan", &pod.name, "-c", "app", "-o", "json"]).output().unwrap();
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let planned = &plan[0]["containers"][0];
    assert_eq!(planned["engine"], "Respec", "{plan}");
    assert!(planned["why"].as_str().unwrap().contains(why), "{plan}");
    for (attempt, image) in [digest_of(pod.cluster, "app:v1"), "lab/app:v1".to_owned()].iter().enumerate() {
        let status = restart(pod, "app", json!({}), Phase::Succeeded);
        let report = &status.containers[0];
        assert_eq!(report.engine, Engine::Respec, "{why}: {status:#?}");
        assert_eq!(report.from.image_id, report.to.as_ref().unwrap().image_id);
        let instance = adopted(pod, "app", image);
        assert_eq!((instance.version.as_str(), instance.attempt as usize), ("v1", attempt + 1));
        assert_eq!(pod.facts().settled().running("plain").attempt, 0);
    }
    let refused = restart(pod, "app", json!({"engine": "Recreate"}), Phase::Refused);
    assert!(refused.message.contains(why), "{refused:#?}");
}

/// With `imagePullPolicy: Always` a kubelet asks the registry before each start, where the tag has moved.
#[test]
fn a_restart_never_starts_the_image_to_which_the_tag_has_moved() {
    let cluster = Cluster::shared();
    Agent::shared();
    let tag = format!("moved-{}:latest", unique());
    retag(cluster, "v1", &tag);
    let spec = json!({"terminationGracePeriodSeconds": 2, "containers": [{
        "name": "app", "image": cluster.image(&tag), "imagePullPolicy": "Always",
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}],
    }]});
    let pod = Pod::make(cluster, "asked", json!({"metadata": {"labels": {"a": "1"}}, "spec": spec}));
    let before = pod.wait("it is Ready", is_ready);
    let digest = digest_of(cluster, "app:v1");
    let (_, digest) = digest.split_once('@').unwrap();
    let (repository, _) = tag.split_once(':').unwrap();
    retag(cluster, "v2", &tag);
    for attempt in 1..5 {
        let status = restart(&pod, "app", json!({}), Phase::Succeeded);
        assert_eq!(status.containers[0].engine, Engine::Respec, "{status:#?}");
        let is_even = attempt % 2 == 0;
        let image = if is_even { format!("{tag}@{digest}") } else { format!("{repository}@{digest}") };
        let instance = adopted(&pod, "app", &format!("lab/{image}"));
        assert_eq!((instance.version.as_str(), instance.attempt), ("v1", attempt));
    }
    let ip = |pod: &Object| pod.status.as_ref().unwrap().pod_ip.clone();
    assert_eq!(ip(&pod.get()), ip(&before));
}

/// The environment of the new container is that of the old one, until a kubelet starts a container from its spec.
#[test]
fn a_clone_keeps_the_environment_if_the_request_allows_it() {
    let cluster = Cluster::shared();
    Agent::shared();
    let object = format!("stale-{}", id());
    let write = |value: &str| {
        let manifest = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": object, "namespace": "default"}, "data": {"key": value}});
        cluster.apply(&manifest.to_string());
    };
    write("0");
    let value = format!("{{name: A, valueFrom: {{configMapKeyRef: {{name: {object}, key: key}}}}}}");
    let pod = Pod::run(cluster, "stale", &spec(&format!(", env: [{value}]"), ""));
    let value = || {
        let printed = cluster.kubectl(&["exec", &pod.name, "-c", "app", "--", "sh", "-c", "echo $A"]);
        printed.trim().to_owned()
    };
    let mut environment = value();
    assert_eq!(environment, "0");
    let (mut clones, mut attempt) = (0, 0);
    while clones < 2 {
        assert!(attempt < TRIES, "the kubelet was faster too often");
        attempt += 1;
        write(&attempt.to_string());
        let status = restart(&pod, "app", json!({"allowStaleEnv": true}), Phase::Succeeded);
        assert_eq!(status.containers[0].engine, Engine::Recreate, "{status:#?}");
        let instance = adopted(&pod, "app", "lab/app:v1");
        assert_eq!(instance.attempt, attempt);
        // On a busy node the kubelet may be faster and start the container from its spec.
        if instance.by_operation {
            clones += 1;
            assert_eq!(value(), environment);
        } else {
            environment = value();
        }
        eprintln!("{}", status.message);
    }
    let status = restart(&pod, "app", json!({}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Respec, "{status:#?}");
    assert_eq!(value(), attempt.to_string());
    cluster.kubectl(&["delete", "configmap", &object]);
}

#[test]
fn a_pod_that_may_end_is_never_lost() {
    Agent::shared();
    thread::scope(|scope| {
        for policy in ["Never", "OnFailure"] {
            scope.spawn(move || kept_alive(policy));
        }
    });
}

fn kept_alive(policy: &str) {
    let cluster = Cluster::shared();
    let rest = format!("restartPolicy: {policy}");
    let pod = Pod::run(cluster, "may-end", &spec("", &rest));
    let asking = Pod::run(cluster, "may-end", &spec(", imagePullPolicy: Always", &rest));

    let status = restart(&pod, "app", json!({}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Respec, "{status:#?}");
    adopted(&pod, "app", &digest_of(cluster, "app:v1"));

    // Its kubelet may collect the previous instance meanwhile.
    let state = |pod: &Pod<'_>| (pod.facts().settled().running("app").clone(), spec_image(&pod.get(), "app"));
    for (pod, reason, says) in [
        // The kubelet might be in back-off now, and count the pod as finished.
        (&pod, "BackOff", "Try again in "),
        (&asking, "NoEngine", "would contact the registry while it is down (imagePullPolicy Always)"),
    ] {
        let before = state(pod);
        let status = restart(pod, "app", json!({}), Phase::Refused);
        assert_eq!(status.reason, reason, "{status:#?}");
        assert!(status.message.contains(says), "{}", status.message);
        if let Some((_, rest)) = status.message.split_once("Try again in ") {
            let seconds: u64 = rest.split(' ').next().unwrap().parse().unwrap();
            assert!((200..=300).contains(&seconds), "{}", status.message);
        }
        assert_eq!(state(pod), before);
        for engine in ["Recreate", "Stop"] {
            let status = restart(pod, "app", json!({"engine": engine}), Phase::Refused);
            assert!(status.message.contains("restartPolicy"), "{engine}: {}", status.message);
        }
        let seen = pod.seen();
        let phases = seen.versions().filter_map(|version| version.status.as_ref()?.phase.as_deref());
        let ran: Vec<_> = phases.skip_while(|phase| *phase != "Running").collect();
        assert!(ran.iter().all(|phase| *phase == "Running"), "{policy}: {ran:?}");
    }
}

/// Puts an image onto the node that is in no registry, so that it has no digest reference.
fn import(cluster: &Cluster, from: &str, name: &str) {
    let archive = cluster.lab().dir.join("bare.tar");
    let from = format!("docker://{}", cluster.image(from));
    let to = format!("oci-archive:{}:{name}", archive.display());
    run(Command::new("skopeo").args([
        "--insecure-policy",
        "copy",
        "-q",
        "--src-tls-verify=false",
        &from,
        &to,
    ]));
    cluster.lab().ctr(&[Path::new("image"), Path::new("import"), &archive]);
    fs::remove_file(archive).unwrap();
}

#[test]
fn an_image_without_another_name_leaves_the_stop_or_nothing() {
    let cluster = Cluster::shared();
    Agent::shared();
    // An image that no kubelet has pulled: newer kubelets record who may use what they pulled.
    import(cluster, "app:nocmd", "localhost/bare:v1");
    let bare = |spec: String| spec.replace("lab/app:v1", "localhost/bare:v1, command: [/bin/app]");
    let once = Pod::run(cluster, "bare", &bare(spec("", "restartPolicy: Never")));
    let before = once.facts().settled();
    let status = restart(&once, "app", json!({}), Phase::Refused);
    assert_eq!(status.reason, "NoEngine", "{status:#?}");
    assert!(status.message.contains("no second reference to the running image"), "{}", status.message);
    assert_eq!(once.facts(), before);

    let post_start = spec(", lifecycle: {postStart: {exec: {command: ['true']}}}", "");
    let pod = Pod::run(cluster, "bare", &bare(post_start));
    let plan = cluster.inplace(&["plan", &pod.name, "-c", "app", "-o", "json"]).output().unwrap();
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    assert_eq!(plan[0]["containers"][0]["engine"], "Stop", "{plan}");
    assert!(plan[0]["warnings"].to_string().contains("treats the stop as a crash"), "{plan}");
    let status = restart(&pod, "app", json!({}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Stop, "{status:#?}");
    assert_eq!(adopted(&pod, "app", "localhost/bare:v1").attempt, 1);
    eprintln!("{}", status.message);
}

#[test]
fn an_engine_can_be_asked_for_by_name() {
    let cluster = Cluster::shared();
    Agent::shared();
    thread::scope(|scope| {
        for (engine, image) in [
            (Engine::Recreate, "lab/app:v1".to_owned()),
            (Engine::Respec, digest_of(cluster, "app:v1")),
            (Engine::Stop, "lab/app:v1".to_owned()),
        ] {
            scope.spawn(move || {
                let pod = Pod::run(cluster, "named", ONE);
                let status = restart(&pod, "app", json!({"engine": engine}), Phase::Succeeded);
                assert_eq!(status.containers[0].engine, engine);
                assert_eq!(adopted(&pod, "app", &image).attempt, 1);
                eprintln!("{engine}: {}", status.message);
                if engine != Engine::Respec {
                    // The spec would still name the old image.
                    let status = swap(&pod, "lab/app:v2", json!({"engine": engine}), Phase::Refused);
                    assert!(
                        ["EngineUnavailable", "KubeletNamesImages"].contains(&&*status.reason),
                        "{status:#?}"
                    );
                    assert_eq!(adopted(&pod, "app", &image).attempt, 1);
                }
            });
        }
    });
}

#[test]
fn a_static_pod_is_restarted_through_its_copy_and_never_swapped() {
    let cluster = Cluster::shared();
    Agent::shared();
    let node = cluster.node();
    let file = node.dir.join("manifests/engines.yaml");
    let head = "apiVersion: v1\nkind: Pod\nmetadata: {name: engines, namespace: default}\nspec:\n  ";
    fs::write(&file, format!("{head}{}", cluster.named(ONE.trim()).replace('\n', "\n  "))).unwrap();
    let pod = Pod::existing(cluster, "default", &format!("engines-{}", node.name));
    pod.wait("it is Ready", is_ready);

    let status = restart(&pod, "app", json!({}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Recreate, "{status:#?}");
    assert_eq!(adopted(&pod, "app", "lab/app:v1").attempt, 1);
    let status = restart(&pod, "app", json!({"engine": "Stop"}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Stop, "{status:#?}");
    let instance = adopted(&pod, "app", "lab/app:v1");
    assert_eq!(instance.attempt, 2);

    for more in [json!({}), json!({"engine": "Respec"}), json!({"engine": "Recreate"})] {
        let status = swap(&pod, "lab/app:v2", more, Phase::Refused);
        eprintln!("{}: {}", status.reason, status.message);
        assert!(status.message.contains("manifest on its node") || status.message.contains("static pod"));
    }
    let status = restart(&pod, "app", json!({"engine": "Respec"}), Phase::Refused);
    assert!(status.message.contains("manifest on its node"), "{}", status.message);
    assert_eq!(adopted(&pod, "app", "lab/app:v1"), instance);
    fs::remove_file(&file).unwrap();
    pod.await_gone();
}

#[test]
fn a_native_sidecar_is_a_container_like_any_other() {
    let cluster = Cluster::shared();
    Agent::shared();
    let version = block_on(cluster.client.apiserver_version()).unwrap().git_version;
    if !release::has("native sidecars", release::SIDECARS_SINCE, &version) {
        return;
    }
    let rest = "initContainers: [{name: side, image: lab/app:v1, restartPolicy: Always}]";
    let pod = Pod::run(cluster, "sidecar", &spec("", rest));
    let app = pod.facts().settled().running("app").clone();
    let status = restart(&pod, "side", json!({}), Phase::Succeeded);
    assert_eq!(status.containers[0].engine, Engine::Recreate, "{status:#?}");
    assert_eq!(adopted(&pod, "side", "lab/app:v1").attempt, 1);
    for (attempt, tag) in [(2, "v2"), (3, "v1")] {
        let image = format!("lab/app:{tag}");
        let request_text = crate::request::request(cluster, &[("side", Some(&image))], json!({}));
        let status = pod.ask(&request_text, Phase::Succeeded);
        assert_eq!(status.containers[0].engine, Engine::Respec, "{status:#?}");
        let instance = adopted(&pod, "side", &image);
        assert_eq!((instance.version.as_str(), instance.attempt), (tag, attempt));
    }
    assert_eq!(*pod.facts().running("app"), app);
}

/// A file that is mounted alone and was replaced on its volume since cannot be mounted again. Its kubelet mounts the new one.
#[test]
fn a_container_whose_file_was_replaced_on_its_volume_is_started_by_its_kubelet() {
    let cluster = Cluster::shared();
    Agent::shared();
    let parts = "{name: work, mountPath: /part, subPath: part}, {name: work, mountPath: /volume}";
    let init = "initContainers: [{name: make, image: lab/app:v1, command: [sh, -c, 'echo old >/volume/part'], \
                volumeMounts: [{name: work, mountPath: /volume}]}]\nvolumes: [{name: work, emptyDir: {}}]";
    let pod = Pod::run(cluster, "replaced", &spec(&format!(", volumeMounts: [{parts}]"), init));
    let exec = |script: &str| cluster.kubectl(&["exec", &pod.name, "-c", "app", "--", "sh", "-c", script]);
    exec("echo new >/volume/other && mv /volume/other /volume/part");
    assert_eq!(exec("cat /part").trim(), "old");
    pod.request(&json!({"id": "replaced", "containers": [{"name": "app"}]}).to_string());
    let status = pod.answer("replaced");
    eprintln!("{}", status.message);
    // On a busy node the kubelet may be faster: it starts the container, or has mounted the file before the agent does.
    let has_failed = status.phase != Phase::Succeeded;
    if has_failed {
        assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "StartFailed"), "{status:#?}");
    }
    pod.wait("its kubelet has started it", |pod| {
        is_ready(pod) && crate::pod::container(pod, "app").is_some_and(|app| app.restart_count > 0)
    });
    assert_eq!(exec("cat /part").trim(), "new");
    assert!(!has_failed || !pod.facts().running("app").by_operation);
}
