//! Unit tests of the manifests: what is parsed, which defaults are set, and which values are errors.

use super::*;

const FULL: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: 6d1c-AB
  labels: {app: web, tier: "1"}
  annotations:
    inplace.dev/request: "restart app #2"
spec:
  shareProcessNamespace: true
  hostNetwork: false
  terminationGracePeriodSeconds: 7
  restartPolicy: Never
  containers:
  - name: app
    image: 127.0.0.1:5000/app:v1
    imagePullPolicy: Never
    command: [/bin/sh, -c]
    args: ["echo $(A)"]
    workingDir: /tmp
    env:
    - {name: A, value: "1"}
    - name: EMPTY
    ports:
    - {name: http, containerPort: 8080}
    volumeMounts:
    - {name: data, mountPath: /data, readOnly: true}
    - {name: shm, mountPath: /shm}
    - {name: log, mountPath: /dev/log}
    lifecycle:
      preStop:
        httpGet: {port: http, httpHeaders: [{name: a, value: b}]}
  - name: side
    image: side
    lifecycle: {preStop: {sleep: {seconds: 5}}}
  volumes:
  - name: data
    emptyDir: {}
  - {name: shm, emptyDir: {medium: Memory}}
  - {name: log, hostPath: {path: /dev/log, type: Socket}}
  - name: nothing
"#;

fn refusal(text: &str) -> String {
    Manifest::parse(text).unwrap_err().to_string()
}

fn pod(spec: &str) -> String {
    format!("{{apiVersion: v1, kind: Pod, metadata: {{name: web}}, spec: {spec}}}")
}

#[test]
fn a_pod_reads_in_full() {
    let pod = Manifest::parse(FULL).unwrap();
    assert_eq!((pod.namespace.as_str(), pod.name.as_str()), ("shop", "web"));
    assert_eq!(pod.uid.as_deref(), Some("6d1c-AB"));
    assert_eq!(pod.labels["tier"], "1");
    assert_eq!(pod.annotations["inplace.dev/request"], "restart app #2");
    assert!(pod.share_process_namespace && !pod.host_network);
    assert_eq!(pod.grace_seconds, 7);
    let app = &pod.containers[0];
    assert_eq!(app.image.as_str(), "127.0.0.1:5000/app:v1");
    assert_eq!((app.pull, app.working_dir.as_str()), (PullPolicy::Never, "/tmp"));
    assert_eq!((app.command.len(), app.args[0].as_str()), (2, "echo $(A)"));
    assert_eq!(app.env[1], EnvVar { name: "EMPTY".into(), value: String::new() });
    assert!(app.mounts[0].read_only && !app.mounts[1].read_only);
    assert_eq!(app.ports[0].protocol, "TCP");
    let get = app.pre_stop.as_ref().unwrap().http_get.as_ref().unwrap();
    assert_eq!((get.path.as_str(), get.scheme.as_str()), ("/", "HTTP"));
    assert_eq!(get.port, Port::Name("http".into()));
    let sources: Vec<_> = pod.volumes.iter().map(|volume| &volume.source).collect();
    assert_eq!(sources[..2], [&VolumeSource::Directory, &VolumeSource::Memory]);
    assert_eq!(sources[2], &VolumeSource::Host { path: "/dev/log".into(), kind: HostPathKind::Socket });
    assert_eq!(sources[3], &VolumeSource::Directory);
}

#[test]
fn what_is_left_out_is_what_kubernetes_takes() {
    let pod = Manifest::parse(&pod("{volumes: null, containers: [{name: a, image: a, env: null}]}")).unwrap();
    assert_eq!((pod.namespace.as_str(), pod.uid, pod.grace_seconds), ("default", None, 30));
    for (image, policy) in [
        ("a".to_owned(), PullPolicy::Always),
        ("a:latest".to_owned(), PullPolicy::Always),
        ("h:5000/a".to_owned(), PullPolicy::Always),
        ("a:v1".to_owned(), PullPolicy::IfNotPresent),
        (format!("a@sha256:{}", "0".repeat(64)), PullPolicy::IfNotPresent),
    ] {
        let text = self::pod(&format!("{{containers: [{{name: a, image: \"{image}\"}}]}}"));
        assert_eq!(Manifest::parse(&text).unwrap().containers[0].pull, policy, "{image}");
    }
}

#[test]
fn everything_else_is_refused_by_its_path_and_at_once() {
    let text = FULL
        .replace("  hostNetwork: false", "  hostNetwork: false\n  dnsPolicy: Default\n  initContainers: []")
        .replace("    workingDir: /tmp", "    workingDir: /tmp\n    resources: {}")
        .replace("- name: EMPTY", "- {name: EMPTY, valueFrom: {fieldRef: {fieldPath: x}}}")
        .replace("medium: Memory", "medium: Memory, sizeLimit: 1Gi")
        .replace("readOnly: true", "readOnly: true, subPath: x")
        .replace("containerPort: 8080", "containerPort: 8080, hostPort: 80")
        .replace("- name: nothing", "- {name: nothing, configMap: {name: x}}")
        .replace("  uid: 6d1c-AB", "  uid: 6d1c-AB\n  creationTimestamp: null")
        + "status: {}\n";
    let Err(InvalidManifest::Unsupported(paths)) = Manifest::parse(&text) else { panic!() };
    assert_eq!(
        paths,
        [
            "metadata.creationTimestamp",
            "spec.dnsPolicy",
            "spec.initContainers",
            "spec.containers[0].resources",
            "spec.containers[0].env[1].valueFrom",
            "spec.containers[0].ports[0].hostPort",
            "spec.containers[0].volumeMounts[0].subPath",
            "spec.volumes[1].emptyDir.sizeLimit",
            "spec.volumes[3].configMap",
            "status",
        ]
    );
    let one = refusal(&pod("{containers: [{name: a, image: a, resources: {}}]}"));
    assert_eq!(one, "spec.containers[0].resources is not supported by `inplace node run`");
    let post = refusal(&pod("{containers: [{name: a, image: a, lifecycle: {postStart: {}}}]}"));
    assert_eq!(post, "spec.containers[0].lifecycle.postStart is not supported by `inplace node run`");
}

#[test]
fn another_kind_is_named_before_its_fields() {
    let error = refusal("{apiVersion: apps/v1, kind: Deployment, spec: {replicas: 1}}");
    assert_eq!(
        error,
        "the manifest is apps/v1 Deployment: `inplace node run` accepts apiVersion v1, kind Pod"
    );
}

#[test]
fn wrong_values_are_reported_all_at_once() {
    let text = pod(r#"{restartPolicy: Always, terminationGracePeriodSeconds: -1,
        containers: [
          {name: A, image: "a b", imagePullPolicy: Sometimes, env: [{name: "x=y"}],
           volumeMounts: [{name: none, mountPath: x}]},
          {name: a, image: a, ports: [{name: p, containerPort: 0}, {name: p, containerPort: 1, protocol: IP}],
           lifecycle: {preStop: {httpGet: {port: q, scheme: FTP}, exec: {}}}},
          {name: a, image: a, lifecycle: {preStop: {}}}],
        volumes: [{name: v, emptyDir: {medium: HugePages}}, {name: v, hostPath: {path: /a/../b, type: Thing}},
          {name: w, emptyDir: {}, hostPath: {path: /x}}]}"#);
    let error = refusal(&text);
    for expected in [
        "spec.restartPolicy: `inplace node run` does not restart",
        "spec.terminationGracePeriodSeconds: ",
        "spec.containers[0].name: `A`",
        "spec.containers[0].image: `a b`",
        "spec.containers[0].imagePullPolicy: ",
        "spec.containers[0].env[0].name: ",
        "spec.containers[0].volumeMounts[0].name: the pod has no volume `none`",
        "spec.containers[0].volumeMounts[0].mountPath: ",
        "spec.containers[1].ports[0].containerPort: ",
        "spec.containers[1].ports[1].name: `p` is used twice",
        "spec.containers[1].ports[1].protocol: ",
        "spec.containers[1].lifecycle.preStop: exactly one",
        "spec.containers[1].lifecycle.preStop.exec.command: ",
        "spec.containers[1].lifecycle.preStop.httpGet.port: the container has no port `q`",
        "spec.containers[1].lifecycle.preStop.httpGet.scheme: ",
        "spec.containers[2].name: `a` is used twice",
        "spec.containers[2].lifecycle.preStop: exactly one",
        "spec.volumes[0].emptyDir.medium: ",
        "spec.volumes[1].name: `v` is used twice",
        "spec.volumes[1].hostPath.path: ",
        "spec.volumes[1].hostPath.type: ",
        "spec.volumes[2]: ",
    ] {
        assert!(error.lines().any(|line| line.starts_with(expected)), "{expected} in\n{error}");
    }
    assert!(refusal(&pod("{}")).starts_with("spec.containers: "));
    let marked = pod("{containers: [{name: a, image: a}]}")
        .replace("name: web", "name: web, uid: ../x, annotations: {kubernetes.io/config.source: api}");
    let error = refusal(&marked);
    assert!(error.contains("metadata.uid: ") && error.contains("kubernetes.io/config.source"), "{error}");
}

#[test]
fn bad_yaml_is_reported_by_line_and_column_and_without_values() {
    for (from, to, line) in [
        ("namespace: shop", "namespace: [", 0),
        ("value: \"1\"", "value: 4711", 24),
        ("value: \"1\"", "value: [secret4711]", 24),
        ("value: \"1\"", "value: {a: secret4711}", 24),
        ("value: \"1\"", "value: \"secret4711", 0),
        ("containerPort: 8080", "containerPort: secret4711", 27),
        ("shareProcessNamespace: true", "shareProcessNamespace: secret4711", 12),
        ("uid: 6d1c-AB", "name: secret4711", 7),
        ("    env:\n", "    env: secret4711\n    ports:\n", 23),
    ] {
        let error = Manifest::parse(&FULL.replace(from, to)).unwrap_err();
        let text = error.to_string();
        let InvalidManifest::Yaml(bad) = error else { panic!("{to}: {text}") };
        assert!(bad.line > 0 && bad.column > 0 && (line == 0 || bad.line == line), "{to}: {text}");
        assert!(!text.contains("4711") && !text.contains("at line"), "{to}: {text}");
    }
    assert!(matches!(Manifest::parse(&format!("{FULL}---\n{FULL}")), Err(InvalidManifest::Yaml(_))));
    assert!(Manifest::parse("").is_err());
}

#[test]
fn debug_output_has_no_environment_values() {
    let pod = Manifest::parse(&FULL.replace("value: \"1\"", "value: secret4711")).unwrap();
    assert!(format!("{pod:?}").contains("A=...") && !format!("{pod:?}").contains("4711"));
}

#[test]
fn the_pods_directory_takes_any_pod() {
    let text = r#"---
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data: {a: 1}
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  creationTimestamp: null
  annotations:
    inplace.dev/request: 'restart app #2'
    other:
spec:
  containers: [{name: app, image: a, resources: {limits: {cpu: 1}}, tty: yes, env: [{name: A, value: 0x10}]}]
status: {}
---
# nothing here
---
{"kind": "Pod", "metadata": {"name": "b", "namespace": "shop", "uid": "77", "annotations": null}}
"#;
    let pods_file = |namespace: &str, name: &str, uid: Option<&str>, request: Option<&str>| PodEntry {
        namespace: namespace.into(),
        name: name.into(),
        uid: uid.map(Into::into),
        request: request.map(Into::into),
    };
    assert_eq!(
        PodEntry::parse(text).unwrap(),
        [pods_file("default", "web", None, Some("restart app #2")), pods_file("shop", "b", Some("77"), None)]
    );
    assert_eq!(PodEntry::parse("").unwrap(), []);
    assert_eq!(PodEntry::parse(FULL).unwrap()[0].uid.as_deref(), Some("6d1c-AB"));
}

#[test]
fn a_broken_pods_file_is_reported_by_line() {
    let Err(InvalidPodsFile::Yaml(bad)) = PodEntry::parse("kind: Pod\nmetadata:\n  name: [\n") else {
        panic!()
    };
    assert!(bad.line >= 3, "{bad}");
    let Err(InvalidPodsFile::Yaml(bad)) =
        PodEntry::parse("kind: Pod\nmetadata: {name: a}\nspec:\n a: b\n  c: d\n")
    else {
        panic!()
    };
    assert!(bad.line >= 4, "{bad}");
    let error = PodEntry::parse("kind: Pod\nmetadata: {generateName: a}\n").unwrap_err().to_string();
    assert_eq!(error, "Pod number 1 of the file has no metadata.name: set it");
}

/// Names of objects become names of files.
#[test]
fn a_pods_file_whose_names_are_none_is_refused() {
    for (name, namespace, field) in [
        ("web", "../../etc", "metadata.namespace"),
        ("web", "/etc/x", "metadata.namespace"),
        ("web", "a.b", "metadata.namespace"),
        ("../web", "shop", "metadata.name"),
        ("a/b", "shop", "metadata.name"),
        ("Web", "shop", "metadata.name"),
        ("..", "shop", "metadata.name"),
        ("a..b", "shop", "metadata.name"),
    ] {
        let text = format!("kind: Pod\nmetadata: {{name: '{name}', namespace: '{namespace}'}}\n");
        let error = PodEntry::parse(&text).unwrap_err();
        assert_eq!(error, InvalidPodsFile::BadName { pod: 1, field }, "{text}");
        assert!(error.to_string().contains(field) && !error.to_string().contains(namespace), "{error}");
    }
    let long = "a".repeat(254);
    assert!(PodEntry::parse(&format!("kind: Pod\nmetadata: {{name: {long}}}\n")).is_err());
    assert_eq!(PodEntry::parse("kind: Pod\nmetadata: {name: web.a-1}\n").unwrap()[0].name, "web.a-1");
}
