//! A recreated container equals the original: compared by the OCI specification that the runtime uses.

use std::fs;

use inplace::api::status::Phase;
use serde_json::Value;

use crate::{
    pod::{PAIR, Pod},
    support::facts::Facts,
    support::lab::Lab,
    support::wait::eventually,
};

/// Everything that a manifest for `node run` can express, with values that are easily corrupted.
const EVERYTHING: &str = r#"
terminationGracePeriodSeconds: 30
shareProcessNamespace: true
containers:
- name: app
  image: lab/app:v1
  imagePullPolicy: IfNotPresent
  command: [sh, -c, 'sleep 0; exec "$0" "$@"', app]
  args: ['$(NAME)', '', 'two words', "it's", '"quoted"', 'ünï', '$$(NOT)', '\n']
  workingDir: /tmp
  ports: [{name: http, containerPort: 8080}, {containerPort: 53, protocol: UDP}]
  lifecycle: {preStop: {httpGet: {path: /bye, port: http, httpHeaders: [{name: X-A, value: 'b"c'}]}}}
  env:
  - {name: NAME, value: plain}
  - {name: EMPTY, value: ''}
  - {name: NOTHING}
  - {name: UNICODE, value: 'Grüße, 世界 🎮'}
  - {name: EQUALS, value: '=a==b='}
  - {name: QUOTES, value: "\"double\" 'single' \\ back\\nslash"}
  - {name: BASE64, value: aGVsbG8gd29ybGQ=}
  - {name: BASE64_SHORT, value: YWJj}
  - {name: DIGITS, value: '1234'}
  - {name: LINES, value: "one\ntwo\n\tthree"}
  - {name: SPACES, value: '  a  b  '}
  - {name: DOLLAR, value: '$NAME ${NAME} $$(NAME) $ 100% $('}
  - {name: REFERS, value: '<$(UNICODE)>'}
  - {name: JSON, value: '{"a": [1, "b"], "c": null}'}
  - {name: PATH, value: '/bin:/usr/bin:/opt'}
  - {name: NAME, value: twice}
  volumeMounts:
  - {name: scratch, mountPath: /scratch}
  - {name: scratch, mountPath: /scratch/below, readOnly: true}
  - {name: memory, mountPath: /memory}
  - {name: host, mountPath: /host, readOnly: true}
  - {name: host, mountPath: /host-rw}
  - {name: file, mountPath: /tmp/file}
- {name: side, image: lab/app:v1}
volumes:
- {name: scratch, emptyDir: {}}
- {name: memory, emptyDir: {medium: Memory}}
- {name: host, hostPath: {path: HOST/made, type: DirectoryOrCreate}}
- {name: file, hostPath: {path: HOST/file, type: File}}
"#;

/// The OCI specification of `app`, without the one field that is unique to a container.
fn spec(pod: &Pod<'_>, facts: &Facts) -> Value {
    let text = pod.lab.ctr(&["containers", "info", &facts.running("app").id]);
    let mut info: Value = serde_json::from_str(&text).unwrap();
    let path = info["Spec"]["linux"].as_object_mut().unwrap().remove("cgroupsPath").unwrap();
    assert!(path.as_str().unwrap().contains(&facts.running("app").id), "{path}");
    info["Spec"].take()
}

/// The environment that the process has really received.
fn environ(facts: &Facts) -> Vec<String> {
    let pid = facts.running("app").pid;
    // Before, the process is a shell, which may add variables. The kernel shows the environment of a program a moment after
    // its name.
    let bytes = eventually("the program to be executed", || {
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
        (program.trim() == "app" && !bytes.is_empty()).then_some(bytes)
    });
    let mut all: Vec<_> =
        bytes.split(|byte| *byte == 0).map(|one| String::from_utf8(one.to_vec()).unwrap()).collect();
    all.sort();
    all
}

/// The paths at which two specifications differ.
fn differences(path: &str, a: &Value, b: &Value, found: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let of = |map: &serde_json::Map<_, _>| map.get(key).cloned().unwrap_or_default();
                differences(&format!("{path}/{key}"), &of(a), &of(b), found);
            }
        }
        (a, b) if a != b => found.push(format!("{path}: {a} and {b}")),
        _ => {}
    }
}

fn compare(a: &Value, b: &Value) -> Vec<String> {
    let mut found = Vec::new();
    differences("", a, b, &mut found);
    found
}

#[test]
fn everything_survives_restarts_and_a_swap() {
    let host = tempfile::tempdir().unwrap();
    fs::write(host.path().join("file"), "from the host").unwrap();
    let yaml = EVERYTHING.replace("HOST", host.path().to_str().unwrap());
    let pod = Pod::run(Lab::shared(), "everything", &yaml);
    let facts = pod.facts().settled();
    let (first, environment) = (spec(&pod, &facts), environ(&facts));
    let given = |entry: &str| environment.iter().any(|one| one == entry);
    assert!(given("DOLLAR=$NAME ${NAME} $(NAME) $ 100% $(") && given("EMPTY="), "{environment:#?}");
    assert!(given("BASE64=aGVsbG8gd29ybGQ=") && given("REFERS=<Grüße, 世界 🎮>"), "{environment:#?}");
    let inside = |facts: &Facts, path: &str| format!("/proc/{}/root{path}", facts.running("app").pid);
    for (path, text) in [("/scratch/a", "disk"), ("/memory/b", "memory"), ("/host-rw/c", "host")] {
        fs::write(inside(&facts, path), text).unwrap();
    }
    let steps =
        [("restart", "-c=app"), ("restart", "-c=app"), ("swap", "app=lab/app:v2"), ("restart", "-c=app")];
    for (cycle, (verb, what)) in (1..).zip(steps) {
        let status = pod.operate(verb, &[what]).is(Phase::Succeeded);
        // No server listens: the handler is unchanged, and so is its error.
        assert!(status.message.contains("preStop of app failed: GET failed"), "{status:?}");
        let facts = pod.facts().settled();
        assert_eq!(facts.running("app").attempt, cycle);
        assert_eq!(facts.running("app").version, if cycle < 3 { "v1" } else { "v2" });
        assert_eq!(environ(&facts), environment, "{verb} {cycle}");
        for (path, text) in [
            ("/scratch/below/a", "disk"),
            ("/memory/b", "memory"),
            ("/host/c", "host"),
            ("/tmp/file", "from the host"),
        ] {
            assert_eq!(fs::read_to_string(inside(&facts, path)).unwrap(), text, "{path}");
        }
        // The image name is the only field that a swap may change.
        let changed: Vec<_> = compare(&first, &spec(&pod, &facts));
        let swapped = cycle >= 3;
        assert!(
            changed.iter().all(|line| swapped && line.contains("image-name")),
            "{verb} {cycle}: {changed:#?}"
        );
    }
}

#[test]
fn a_plain_container_survives_too() {
    let pod = Pod::run(Lab::shared(), "plain", PAIR);
    let first = spec(&pod, &pod.facts());
    for _ in 0..2 {
        pod.restart(&["app"]);
        assert_eq!(compare(&first, &spec(&pod, &pod.facts())), [""; 0]);
    }
}

#[test]
fn a_rollback_leads_back_to_the_same_container() {
    let pod = Pod::run(
        Lab::shared(),
        "back",
        &PAIR.replace("app, image", "app, env: [{name: A, value: b=c}], image"),
    );
    let first = spec(&pod, &pod.facts());
    // On a busy machine the image exits seconds after the runtime has reported its start.
    pod.operate("swap", &["app=lab/app:crash", "--min-ready", "20"]).is(Phase::RolledBack);
    assert_eq!(compare(&first, &spec(&pod, &pod.facts())), [""; 0]);
}
