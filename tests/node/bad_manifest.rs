//! What `node run` and `node rm` refuse: every error with its name and location, all in one message, with nothing
//! left behind.

use std::{collections::HashMap, fs};

use inplace::cri::{
    client::Client,
    endpoint::Endpoint,
    proto::v1::{PodSandboxConfig, PodSandboxMetadata},
};
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Runs a manifest; returns exit code, standard output and standard error.
fn run(fixture: &Fixture, text: &str, more: &[&str]) -> (i32, String, String) {
    let file = fixture.folder.path().join("bad.yaml");
    fs::write(&file, text).unwrap();
    ended(fixture, &[&["run", "-f", file.to_str().unwrap()], more].concat())
}

fn ended(fixture: &Fixture, verb: &[&str]) -> (i32, String, String) {
    let output = fixture.node(verb);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_manifest_that_cannot_be_kept_is_refused_by_place_and_name() {
    let fixture = Fixture::new();
    let pod = |spec: &str| format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n{spec}\n");
    let app = |rest: &str| pod(&format!("  containers: [{{name: app, image: 'app:v1'{rest}}}]"));
    for (text, reported) in [
        ("kind: [\n".to_owned(), "line 1, column 7: expected string"),
        (app(", env: [{name: A, value: 7}]"), "line 5, column"),
        (pod("  containers: []"), "spec.containers: at least one container is required"),
        (
            pod("  containers: [{name: A_b, image: 'a:b'}]"),
            "spec.containers[0].name: `A_b` is not a valid name",
        ),
        (pod("  containers: [{name: app, image: 'UP:v1'}]"), "spec.containers[0].image: "),
        (app("}]\n  restartPolicy: Always\n  volumes: [{name: a"), "spec.restartPolicy: "),
        (
            "apiVersion: apps/v1\nkind: Deployment\n".to_owned(),
            "is apps/v1 Deployment: `inplace node run` accepts apiVersion v1, kind Pod",
        ),
        (app("").replace("{name: web}", "{name: Web}"), "metadata.name: `Web` is not a valid name"),
    ] {
        let (code, _, message) = run(&fixture, &text, &[]);
        assert_eq!(code, 3, "{text}: {message}");
        assert!(message.contains("bad.yaml: ") && message.contains(reported), "{text}: {message}");
    }
    let (code, out, _) = run(&fixture, "kind: [\n", &["-o", "json"]);
    let object = json_of(&out);
    assert_eq!(
        (code, &object["phase"], &object["reason"]),
        (3, &json!("Refused"), &json!("InvalidManifest"))
    );
    // A value is never quoted.
    let (code, _, message) = run(&fixture, &app(", env: [{name: A, value: {s3cret: s3cret}}]"), &[]);
    assert!(code == 3 && !message.contains("s3cret"), "{message}");
    let (code, _, message) = ended(&fixture, &["run", "-f", "/does/not/exist.yaml"]);
    assert!(code == 1 && message.contains("/does/not/exist.yaml: No such file"), "{code}: {message}");
    assert!(fixture.instances("web").is_empty() && !fixture.state.join("pods/default_web").exists());
}

#[test]
fn every_field_outside_the_subset_is_refused_by_its_name() {
    let fixture = Fixture::new();
    let of_pod = "initContainers ephemeralContainers activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName \
        automountServiceAccountToken nodeName hostPID hostIPC securityContext imagePullSecrets hostname subdomain \
        affinity schedulerName tolerations hostAliases priorityClassName priority dnsConfig readinessGates os \
        runtimeClassName enableServiceLinks preemptionPolicy overhead topologySpreadConstraints setHostnameAsFQDN \
        hostUsers schedulingGates resourceClaims resources";
    let of_container = "envFrom resources resizePolicy restartPolicy volumeDevices livenessProbe readinessProbe \
        startupProbe terminationMessagePath terminationMessagePolicy securityContext stdin stdinOnce tty";
    let mut container = json!({
        "name": "app",
        "image": "app:v1",
        "lifecycle": {"postStart": {"sleep": {"seconds": 1}}},
        "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}],
        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "s", "mountPropagation": "None"}],
    });
    let volumes =
        json!([{"name": "v", "configMap": {"name": "c"}}, {"name": "w", "emptyDir": {"sizeLimit": "1Mi"}}]);
    let mut spec = json!({"volumes": volumes});
    let mut wanted: Vec<_> = [
        "lifecycle.postStart",
        "env[0].valueFrom",
        "volumeMounts[0].subPath",
        "volumeMounts[0].mountPropagation",
    ]
    .map(|field| format!("spec.containers[0].{field}"))
    .into();
    wanted.extend(["spec.volumes[0].configMap".to_owned(), "spec.volumes[1].emptyDir.sizeLimit".to_owned()]);
    for field in of_container.split_whitespace() {
        container[field] = json!({});
        wanted.push(format!("spec.containers[0].{field}"));
    }
    for field in of_pod.split_whitespace() {
        spec[field] = json!({});
        wanted.push(format!("spec.{field}"));
    }
    spec["containers"] = json!([container]);
    let manifest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec});
    let (code, _, message) = run(&fixture, &manifest.to_string(), &[]);
    assert_eq!(code, 3);
    let refused: Vec<_> = message
        .lines()
        .filter_map(|line| line.strip_suffix(" is not supported by `inplace node run`"))
        .collect();
    for field in &wanted {
        assert!(refused.iter().any(|line| line.ends_with(field)), "{field} is not in {message}");
    }
    assert_eq!(refused.len(), wanted.len(), "{message}");
}

#[test]
fn a_pod_is_run_once_and_removed_only_by_who_made_it() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let manifest = |name: &str, image: &str| {
        let app = json!({"name": "app", "image": fixture.lab.image(image), "imagePullPolicy": "Never"});
        let metadata = json!({"name": name});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [app]}})
            .to_string()
    };
    let (code, out, message) = run(&fixture, &manifest("web", "app:v1"), &["-o", "json"]);
    assert_eq!((code, &json_of(&out)["phase"]), (3, &json!("Refused")), "{message}");
    let reported = "pod default/web exists: `inplace node run` created it; remove it with `inplace node rm`";
    assert!(message.contains(reported), "{message}");
    let (code, _, message) = run(&fixture, &manifest("new", "app:none"), &[]);
    assert_eq!(code, 3, "{message}");
    assert!(message.contains("is not on this node, and imagePullPolicy is Never"), "{message}");
    assert!(fixture.instances("new").is_empty());
    // Removing a missing pod succeeds.
    let gone = (0, "pod default/none did not exist\n".to_owned(), String::new());
    assert_eq!(ended(&fixture, &["rm", "--pod", "none"]), gone);
    let (code, out, _) = ended(&fixture, &["rm", "--pod", "none", "-o", "json"]);
    assert_eq!((code, &json_of(&out)["removed"]), (0, &json!(false)));
    // A pod of another creator.
    let sandbox = foreign(&fixture, "theirs");
    let (code, _, message) = ended(&fixture, &["rm", "--pod", "theirs"]);
    assert_eq!(code, 3, "{message}");
    let reported = "pod default/theirs was not created by `inplace node run`: neither `inplace node run` nor a \
                    kubelet created it";
    assert!(message.contains(reported), "{message}");
    assert!(fixture.lab.ctr(&["containers", "ls", "-q"]).contains(&sandbox));
    // A pod of `node run` with another state folder.
    let elsewhere = fixture.folder.path().join("elsewhere");
    let (code, _, message) =
        ended(&fixture, &["rm", "--pod", "web", "--state-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(code, 3, "{message}");
    let reported = format!("run the command again with --state-dir {}", fixture.state.display());
    assert!(message.contains(&reported), "{message}");
    assert_eq!(fixture.instances("web"), before);
    let (code, out, _) = ended(&fixture, &["rm", "--pod", "web", "-o", "json"]);
    assert_eq!((code, &json_of(&out)["removed"]), (0, &json!(true)));
    assert!(fixture.instances("web").is_empty());
}

/// Creates a sandbox as another tool would, and returns its ID.
fn foreign(fixture: &Fixture, name: &str) -> String {
    let (pod, namespace) = (name.to_owned(), "default".to_owned());
    let metadata = PodSandboxMetadata { name: pod, namespace, uid: "theirs".to_owned(), attempt: 0 };
    let labels = [("name", name), ("namespace", "default"), ("uid", "theirs")];
    let labels: HashMap<_, _> =
        labels.map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.to_owned())).into();
    let config = PodSandboxConfig { metadata: Some(metadata), labels, ..PodSandboxConfig::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(&Endpoint::parse(&fixture.lab.endpoint).unwrap(), None);
        Box::pin(client.run_sandbox(config)).await.unwrap()
    })
}
