//! Unit tests of `node run` and `node rm`: configurations, files and claims.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::api::annotation;
use crate::api::manifest::Manifest;
use crate::cri::convert::owner;
use crate::cri::proto::v1;
use crate::operation::snapshot::Owner;

const POD: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  labels: {app: web, io.kubernetes.pod.name: liar, inplace.dev/node-run: "false"}
  annotations: {note: x, inplace.dev/state-dir: /liar}
spec:
  terminationGracePeriodSeconds: 7
  containers:
  - name: app
    image: repo/app:v1
    command: [/app]
    args: ["--port=$(PORT)", "$$(PORT)", "$(NONE)"]
    workingDir: /w
    env:
    - {name: PORT, value: "8080"}
    - {name: URL, value: "http://x:$(PORT)"}
    ports:
    - {name: http, containerPort: 8080}
    - {containerPort: 53, protocol: UDP}
    volumeMounts:
    - {name: data, mountPath: /data/deep, readOnly: true}
    - {name: host, mountPath: /data}
    - {name: mem, mountPath: /mem}
    lifecycle:
      preStop: {httpGet: {path: /bye, port: http, host: h, scheme: HTTPS, httpHeaders: [{name: a, value: b}]}}
  - {name: side, image: side}
  volumes:
  - {name: data}
  - {name: mem, emptyDir: {medium: Memory}}
  - {name: host, hostPath: {path: /srv/x}}
"#;

fn pod() -> Manifest {
    Manifest::parse(POD).unwrap()
}

fn dirs() -> Dirs {
    Dirs::new("/state".into()).unwrap()
}

fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_state_directory_is_absolute() {
    assert_eq!(Dirs::new("state".into()), None);
    assert_eq!(dirs().logs("a", "b", "c"), Path::new("/state/logs/a_b_c"));
}

#[test]
fn a_sandbox_is_marked_as_ours_and_as_the_pods() {
    let config = sandbox_config(&pod(), "u-1", &dirs());
    assert_eq!(
        config.labels,
        map(&[
            ("app", "web"),
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.uid", "u-1"),
            ("inplace.dev/node-run", "true"),
        ])
    );
    assert_eq!(config.annotations, map(&[("note", "x"), ("inplace.dev/state-dir", "/state")]));
    assert_eq!(config.log_directory, "/state/logs/shop_web_u-1");
    assert_eq!(config.hostname, "web");
    let metadata = config.metadata.unwrap();
    assert_eq!(
        (metadata.name.as_str(), metadata.namespace.as_str(), metadata.uid.as_str(), metadata.attempt),
        ("web", "shop", "u-1", 0)
    );
}

#[test]
fn namespaces_follow_the_pod() {
    use v1::NamespaceMode::{Container, Node, Pod};
    for (share, host, pid, network) in
        [(false, false, Container, Pod), (true, false, Pod, Pod), (false, true, Container, Node)]
    {
        let mut manifest = pod();
        manifest.share_process_namespace = share;
        manifest.host_network = host;
        let sandbox = sandbox_config(&manifest, "u", &dirs());
        assert_eq!(sandbox.hostname.is_empty(), host);
        let container = container_config(&manifest, &manifest.containers[0], "i", "u", &dirs());
        let inside = container.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        let outside = sandbox.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        assert_eq!(inside, outside);
        assert_eq!(
            (inside.pid, inside.network, inside.ipc),
            (pid.into(), network.into(), Pod.into()),
            "shared memory is the pod's, always"
        );
    }
}

#[test]
fn a_container_is_what_a_kubelet_would_make() {
    let manifest = pod();
    let config = container_config(&manifest, &manifest.containers[0], "sha256:1", "u-1", &dirs());
    assert_eq!(
        config.labels,
        map(&[
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.uid", "u-1"),
            ("io.kubernetes.container.name", "app"),
        ])
    );
    assert_eq!(
        config.annotations,
        map(&[
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.pod.terminationGracePeriod", "7"),
            (
                "io.kubernetes.container.preStopHandler",
                r#"{"httpGet":{"path":"/bye","port":"http","host":"h","scheme":"HTTPS","httpHeaders":[{"name":"a","value":"b"}]}}"#
            ),
            (
                "io.kubernetes.container.ports",
                r#"[{"name":"http","containerPort":8080,"protocol":"TCP"},{"containerPort":53,"protocol":"UDP"}]"#
            ),
        ])
    );
    let image = config.image.unwrap();
    assert_eq!((image.image.as_str(), image.user_specified_image.as_str()), ("sha256:1", "repo/app:v1"));
    assert_eq!(config.command, ["/app"]);
    assert_eq!(config.args, ["--port=8080", "$(PORT)", "$(NONE)"]);
    assert_eq!((config.working_dir.as_str(), config.log_path.as_str()), ("/w", "app/0.log"));
    let envs: Vec<_> = config.envs.iter().map(|env| (env.key.as_str(), env.value.as_slice())).collect();
    assert_eq!(envs, [("PORT", b"8080".as_slice()), ("URL", b"http://x:8080")]);
    let mounts: Vec<_> = config
        .mounts
        .iter()
        .map(|mount| (mount.container_path.as_str(), mount.host_path.as_str(), mount.readonly))
        .collect();
    assert_eq!(
        mounts,
        [
            ("/data", "/srv/x", false),
            ("/mem", "/state/volumes/u-1/mem/memory", false),
            ("/data/deep", "/state/volumes/u-1/data", true),
        ],
        "what is mounted upon comes first"
    );
    let side = container_config(&manifest, &manifest.containers[1], "i", "u-1", &dirs());
    assert_eq!(side.annotations.len(), 2, "no handler, no ports");
    assert!(side.command.is_empty() && side.mounts.is_empty());
}

#[test]
fn handlers_in_kubernetes_spelling() {
    for (yaml, json) in [
        ("{exec: {command: [a, b]}}", r#"{"exec":{"command":["a","b"]}}"#),
        ("{httpGet: {port: 80}}", r#"{"httpGet":{"path":"/","port":80,"scheme":"HTTP"}}"#),
        ("{tcpSocket: {port: 80, host: h}}", r#"{"tcpSocket":{"port":80,"host":"h"}}"#),
        ("{sleep: {seconds: 5}}", r#"{"sleep":{"seconds":5}}"#),
    ] {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: a, image: a, \
             lifecycle: {{preStop: {yaml}}}}}]}}}}"
        );
        let manifest = Manifest::parse(&text).unwrap();
        let config = container_config(&manifest, &manifest.containers[0], "i", "u", &dirs());
        assert_eq!(config.annotations[annotation::PRE_STOP], json);
    }
}

#[test]
fn the_owner_of_a_sandbox() {
    for (labels, annotations, expected) in [
        (map(&[]), map(&[]), Owner::Nobody),
        (map(&[("inplace.dev/node-run", "true")]), map(&[]), Owner::NodeRun),
        (map(&[("inplace.dev/node-run", "false")]), map(&[]), Owner::Nobody),
        (map(&[]), map(&[("kubernetes.io/config.source", "api")]), Owner::Kubelet),
        (map(&[]), map(&[("kubernetes.io/config.source", "file")]), Owner::KubeletStatic),
    ] {
        assert_eq!(owner(&v1::PodSandbox { labels, annotations, ..Default::default() }), expected);
    }
}

#[test]
fn a_name_has_one_owner() {
    let folder = tempfile::tempdir().unwrap();
    let dirs = Dirs::new(folder.path().into()).unwrap();
    assert_eq!(files::claimed(&dirs, "shop", "web").unwrap(), None);
    assert!(files::claim(&dirs, "shop", "web", "u-1").unwrap());
    assert!(!files::claim(&dirs, "shop", "web", "u-2").unwrap());
    assert_eq!(files::claimed(&dirs, "shop", "web").unwrap().as_deref(), Some("u-1"));
    files::release(&dirs, "shop", "web").unwrap();
    files::release(&dirs, "shop", "web").unwrap();
    assert!(files::claim(&dirs, "shop", "web", "u-2").unwrap());
}

#[test]
fn files_are_made_and_removed_without_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let dirs = Dirs::new(folder.path().into()).unwrap();
    let mut manifest = pod();
    manifest.volumes.truncate(1);
    files::make(&manifest, "u-1", &dirs).unwrap();
    let data = dirs.volumes("u-1").join("data");
    assert_eq!(fs::metadata(&data).unwrap().permissions().mode() & 0o7777, 0o777);
    assert_eq!(fs::metadata(dirs.volumes("u-1")).unwrap().permissions().mode() & 0o7777, 0o700);
    assert!(dirs.logs("shop", "web", "u-1").join("side").is_dir());
    fs::write(data.join("file"), "x").unwrap();
    for _ in 0..2 {
        files::remove(&dirs, "shop", "web", "u-1").unwrap();
    }
    let left = |below: &str| fs::read_dir(folder.path().join(below)).unwrap().count();
    assert_eq!((left("volumes"), left("logs")), (0, 0));
}

#[test]
fn host_paths_are_what_they_have_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let dirs = Dirs::new(folder.path().join("state")).unwrap();
    let is = |kind: &str, path: &Path| {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: a}}, spec: {{containers: [{{name: a, image: a}}], \
             volumes: [{{name: v, hostPath: {{path: \"{}\", type: \"{kind}\"}}}}]}}}}",
            path.display()
        );
        files::make(&Manifest::parse(&text).unwrap(), "u", &dirs).map_err(|error| error.to_string())
    };
    let (there, file, none) =
        (folder.path().join("there"), folder.path().join("file"), folder.path().join("none"));
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    assert!(is("DirectoryOrCreate", &there).is_ok() && there.is_dir());
    assert!(is("FileOrCreate", &file).is_ok() && file.is_file());
    for (kind, path, right) in [
        ("", &none, true),
        ("", &file, true),
        ("Directory", &there, true),
        ("Directory", &file, false),
        ("Directory", &none, false),
        ("DirectoryOrCreate", &file, false),
        ("File", &file, true),
        ("File", &there, false),
        ("FileOrCreate", &there, false),
        ("Socket", &folder.path().join("socket"), true),
        ("Socket", &none, false),
        ("CharDevice", &"/dev/null".into(), true),
        ("BlockDevice", &"/dev/null".into(), false),
    ] {
        let result = is(kind, path);
        assert_eq!(result.is_ok(), right, "{kind} {}: {result:?}", path.display());
        if let Err(error) = result {
            assert!(error.starts_with("volume v: /") && error.contains(" is not a "), "{error}");
        }
    }
    assert!(!none.exists());
}
