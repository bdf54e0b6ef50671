//! Wrong input at the command line: each mistake has its exit code and a message that says what happened and what to
//! do, and nothing is changed.

use std::{
    fs,
    os::unix::{fs::PermissionsExt, net::UnixListener},
    path::Path,
    process::{Command, Output},
    thread,
};

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::support::{lab::run, wait::eventually};

/// Exit code and standard error.
fn ended(output: &Output) -> (i32, String) {
    (output.status.code().unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// The only JSON object on standard output.
fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn a_runtime_that_cannot_be_reached_is_reported_as_such() {
    let fixture = Fixture::new();
    let at = |name: &str| fixture.folder.path().join(name).to_str().unwrap().to_owned();
    let manifest = at("pod.yaml");
    fs::write(
        &manifest,
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: b, image: 'c:d'}]}\n",
    )
    .unwrap();
    let (dead, silent, closing, chatty) = (at("dead"), at("silent"), at("closing"), at("chatty"));
    drop(UnixListener::bind(&dead).unwrap());
    // No process accepts connections on this socket.
    let _silent = UnixListener::bind(&silent).unwrap();
    let answering = |path: &str, answer: &'static [u8]| {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                use std::io::Write;
                let _ = stream.unwrap().write_all(answer);
            }
        });
    };
    answering(&closing, b"");
    answering(&chatty, b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let commands = [
        &["ps"][..],
        &["restart", "--pod", "a", "-c", "b"],
        &["plan", "--pod", "a", "b"],
        &["run", "-f", &manifest],
        &["rm", "--pod", "a"],
    ];
    for (endpoint, reported, verbs) in [
        (at("none"), "no such file: check that the runtime runs", &commands[..]),
        (at("nowhere/none"), "check that the runtime runs", &commands[1..2]),
        (dead, "connection refused: the socket exists, but no process listens on it", &commands[..]),
        (closing, "this is not a runtime's socket", &commands[..2]),
        (chatty, "this is not a runtime's socket", &commands[..2]),
        (silent, "did not answer within 10 s", &commands[1..2]),
        ("tcp://127.0.0.1:1".to_owned(), "only a Unix socket of this node can be used", &commands[..]),
    ] {
        for verb in verbs {
            let output = fixture.node(&[&["--runtime-endpoint", &endpoint, "-o", "json"], *verb].concat());
            let (code, message) = ended(&output);
            assert_eq!(code, 6, "{endpoint} {verb:?}: {message}");
            assert!(
                message.starts_with("inplace: ") && message.contains(reported),
                "{endpoint} {verb:?}: {message}"
            );
            assert_eq!(message.lines().count(), 1, "{message}");
            let object = object(&output);
            assert_eq!(
                (object["phase"].as_str(), object["reason"].as_str()),
                (Some("Failed"), Some("RuntimeAway"))
            );
        }
    }
}

#[test]
fn a_user_who_is_not_root_gets_an_error() {
    let fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let binary = fixture.folder.path().join("inplace");
    // Not copied by this process: a process that another test starts meanwhile has the copy open for writing until it
    // executes its own program, and the kernel executes no such file.
    run(Command::new("cp").arg(env!("CARGO_BIN_EXE_inplace")).arg(&binary));
    let open = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open(fixture.folder.path(), 0o755);
    let theirs = fixture.folder.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    open(&theirs, 0o777);
    let nobody = |state: &Path, verb: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&binary);
        command
            .args(["node", "--runtime-endpoint", &fixture.lab.endpoint, "--state-dir"])
            .arg(state)
            .args(verb);
        ended(&command.output().unwrap())
    };
    let restart = ["restart", "--pod", "web", "-c", "app"];
    let (code, message) = nobody(&theirs, &restart);
    assert_eq!(code, 6, "{message}");
    assert!(message.contains("permission denied: run as root"), "{message}");
    let (code, message) = nobody(&fixture.state.join("mine"), &restart);
    assert_eq!(code, 1, "{message}");
    assert!(message.contains("Permission denied") && message.contains("--state-dir"), "{message}");
    open(&fixture.lab.dir, 0o700);
    let (code, message) = nobody(&theirs, &restart);
    open(&fixture.lab.dir, 0o755);
    assert_eq!(code, 6, "{message}");
    assert!(message.contains("root is required): Permission denied"), "{message}");
    assert_eq!(fixture.instances("web"), before);
}

#[test]
fn what_is_not_there_or_does_not_run_is_refused() {
    let fixture = Fixture::new();
    fixture.run("web");
    fixture.run_app("short", &json!({"command": ["/bin/sh", "-c", "exit 4"]}));
    eventually("it to exit", || {
        fixture.instances("short").iter().all(|instance| !instance.running).then_some(())
    });
    let before = (fixture.instances("web"), fixture.instances("short"));
    for (pod, container, reason, reported) in [
        ("none", "app", "PodNotFound", "there is no pod default/none on this node"),
        ("other/web", "app", "PodNotFound", "there is no pod other/web"),
        ("web", "none", "UnknownContainer", "has no container none; it has app"),
        ("web", "app,app", "InvalidRequest", "`app` is named twice"),
        ("web", "UP", "InvalidRequest", "`UP` is not a container name"),
        (
            "short",
            "app",
            "NotRunning",
            "it is exited with code 4. No kubelet manages it: remove the pod and run it again",
        ),
    ] {
        let swap = format!("{container}={}", fixture.lab.image("app:v2"));
        let mut verbs =
            vec![vec!["restart", "--pod", pod, "-c", container], vec!["plan", "--pod", pod, "-c", container]];
        if !container.contains(',') {
            verbs.push(vec!["swap", "--pod", pod, &swap]);
        }
        for verb in verbs {
            let (code, message) = ended(&fixture.node(&verb));
            assert_eq!(code, 3, "{verb:?}: {message}");
            assert!(message.starts_with("inplace: ") && message.contains(reported), "{verb:?}: {message}");
            let output = fixture.node(&[&verb[..], &["-o", "json"]].concat());
            let object = object(&output);
            assert_eq!(output.status.code(), Some(3));
            assert_eq!(
                (object["phase"].as_str(), object["reason"].as_str()),
                (Some("Refused"), Some(reason)),
                "{verb:?}"
            );
            assert!(
                object["message"].as_str().unwrap().contains(reported) && object["containers"] == json!([])
            );
        }
    }
    // An ID that has ended.
    let once = ["restart", "--pod", "web", "-c", "app", "--id", "once", "-o", "json"];
    let first = fixture.node(&once);
    assert_eq!((first.status.code(), object(&first)["id"].as_str()), (Some(0), Some("once")));
    let second = fixture.node(&once);
    assert_eq!(object(&second), object(&first));
    assert_eq!(fixture.running("web").attempt, 1);
    assert_eq!(fixture.instances("short"), before.1);
}

#[test]
fn what_is_written_wrongly_is_refused_before_anybody_is_asked() {
    let fixture = Fixture::new();
    for (verb, reported) in [
        (&["restart", "--pod", "a/b/c", "-c", "x"][..], "write NAMESPACE/NAME"),
        (&["restart", "--pod", "/b", "-c", "x"], "write NAMESPACE/NAME"),
        (&["restart", "--pod", "b"], "--container <NAME>"),
        (&["swap", "--pod", "b", "x"], "write CONTAINER=IMAGE"),
        (&["swap", "--pod", "b", "x=UP:v1"], "UP"),
        (&["plan", "--pod", "b"], "CONTAINER"),
        (&["ps", "--output", "xml"], "possible values: text, json"),
        (&["restart", "--pod", "b", "-c", "x", "--deadline", "soon"], "write a time like 30s"),
    ] {
        let (code, message) = ended(&fixture.node(verb));
        assert_eq!(code, 2, "{verb:?}: {message}");
        assert!(message.contains(reported), "{verb:?}: {message}");
    }
    let (code, message) = ended(&fixture.node(&["restart", "--pod", "b", "-c", "x", "--deadline", "0"]));
    assert_eq!(code, 3);
    assert!(message.contains("deadlineSeconds: 1 to 86400"), "{message}");
}

#[test]
fn help_lists_the_exit_codes_and_every_flag() {
    let fixture = Fixture::new();
    for path in
        ["", "node", "agent", "node ps", "node restart", "node swap", "node plan", "node run", "node rm"]
    {
        let words: Vec<_> = path.split_whitespace().chain(["--help"]).collect();
        let output = fixture.lab.inplace(&words);
        let text = String::from_utf8(output.stdout).unwrap();
        // The exit codes are in one place.
        let has_exit_codes = text.contains("7  an inplace agent or another command is running");
        assert!(output.status.success() && has_exit_codes == path.is_empty(), "{path}: {text}");
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.trim_start().starts_with("--") || line.trim_start().starts_with('-'))
        {
            // On the same line after two spaces, or on the next line.
            let beside = line.trim_start().split_once("  ").is_some_and(|(_, help)| !help.trim().is_empty());
            let below = lines
                .get(at + 1)
                .is_some_and(|next| next.starts_with("          ") && !next.trim().is_empty());
            assert!(beside || below || line.contains("- "), "{path}: no help: {line}");
        }
    }
}

#[test]
fn looking_changes_nothing() {
    let fixture = Fixture::new();
    fixture.run("web");
    assert_eq!(fixture.node(&["restart", "--pod", "web", "-c", "app"]).status.code(), Some(0));
    let _agent = fixture.agent(&[]);
    let before = (fixture.instances("web"), fs::read(fixture.state.join("journal/uid-web.json")).unwrap());
    let swap = format!("app={}", fixture.lab.image("app:v3"));
    let plan = String::from_utf8(fixture.node(&["plan", "--pod", "web", &swap]).stdout).unwrap();
    for reported in [
        "pod default/web: sandbox",
        "stays",
        "Swap app (attempt 1 now)",
        "Recreate",
        "is pulled first",
        "steps: Pull",
        "nothing was touched",
    ] {
        assert!(plan.contains(reported), "{reported}: {plan}");
    }
    let plan = object(&fixture.node(&["plan", "--pod", "web", "app", "-o", "json"]));
    assert_eq!(
        (plan["containers"][0]["action"].as_str(), plan["containers"][0]["from"]["attempt"].as_u64()),
        (Some("Restart"), Some(1))
    );
    let text = String::from_utf8(fixture.node(&["ps"]).stdout).unwrap();
    let rows: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows[0],
        ["POD", "CONTAINER", "ATTEMPT", "STATE", "IMAGE", "AGE", "LAST", "OPERATION", "DOWNTIME"]
    );
    assert_eq!(rows[1][..5], ["default/web", "app", "1", "running", &fixture.lab.image("app:v1")]);
    assert!(text.contains("Restart Succeeded") && text.trim_end().ends_with(" ms"), "{text}");
    let seen = object(&fixture.node(&["ps", "--pod", "web", "-o", "json"]));
    assert_eq!(seen[0]["pod"], json!({"namespace": "default", "name": "web", "uid": "uid-web"}));
    assert_eq!(seen[0]["containers"][0]["containerID"], fixture.running("web").id);
    assert_eq!(seen[0]["lastOperation"]["phase"], "Succeeded");
    assert_eq!(object(&fixture.node(&["ps", "--pod", "none", "-o", "json"])), json!([]));
    let after = (fixture.instances("web"), fs::read(fixture.state.join("journal/uid-web.json")).unwrap());
    assert_eq!(after, before);
    // The image of the plan was not pulled either.
    assert!(!fixture.lab.ctr(&["image", "ls", "-q"]).contains("app:v3"));
}
