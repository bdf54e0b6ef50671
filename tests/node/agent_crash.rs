//! What survives: kill -9 at any point, orphaned fences, journals that cannot be read or written. Also that secrets
//! do not leak.

use std::{fs, os::unix::process::ExitStatusExt, path::Path, process::Command};

use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use crate::{fixture::Fixture, support::facts::observe, support::lab::run, support::wait::eventually};

#[test]
fn an_agent_killed_at_any_point_is_continued_as_if_nothing_had_happened() {
    let fixture = Fixture::new();
    fixture.run("web");
    let trace = fixture.folder.path().join("trace");
    let mut killed_at = Vec::new();
    for point in 1..100_u32 {
        let id = format!("kill-{point}");
        let before = fixture.running("web");
        let _ = fs::remove_file(&trace);
        let mut agent = fixture.spawn(
            &[],
            &[("INPLACE_FAULT_AT", &point.to_string()), ("INPLACE_FAULT_TRACE", trace.to_str().unwrap())],
        );
        fixture.restart("web", &id);
        let succeeded = || fixture.status("web").is_some_and(|s| s["id"] == *id && s["phase"] == "Succeeded");
        eventually("its death or its success", || (agent.has_ended() || succeeded()).then_some(()));
        if !agent.has_ended() {
            // The operation has fewer points: all of them have been passed.
            break;
        }
        assert_eq!(agent.end().signal(), Some(Signal::SIGKILL as i32), "{}", agent.log());
        let reached = fs::read_to_string(&trace).unwrap().lines().last().unwrap().to_owned();
        let mut agent = fixture.agent(&[]);
        let status = fixture.ended("web", &id, "Succeeded");
        let after = fixture.running("web");
        assert_eq!(after.attempt, before.attempt + 1, "killed at {reached}: {status:#}");
        assert_eq!(status["containers"][0]["from"]["containerID"], before.id, "killed at {reached}");
        assert_eq!(status["containers"][0]["to"]["containerID"], after.id, "killed at {reached}");
        // The previous container is kept for its logs; older ones are removed.
        let instances: Vec<_> = fixture.instances("web").iter().map(|instance| instance.attempt).collect();
        assert_eq!(instances, [before.attempt, after.attempt], "killed at {reached}");
        killed_at.push(reached);
        agent.stop();
    }
    for verb in ["Fence", "Stop", "Create", "Start", "Remove"] {
        for moment in ["before journal", "after journal", "before effect", "after effect"] {
            let moment = format!("{moment} {verb}");
            assert!(killed_at.iter().any(|at| at.ends_with(&moment)), "never at {moment}: {killed_at:#?}");
        }
    }
}

#[test]
fn a_fence_that_nobody_remembers_is_removed_at_the_start() {
    let fixture = Fixture::new();
    fixture.run("web");
    let state = fixture.state.to_str().unwrap();
    let restart = ["node", "--state-dir", state, "restart", "--pod", "web", "-c", "app"];
    // The points before and after the journal is written, and before and after the fence is created.
    let died = fixture.lab.inplace_command(&restart).env("INPLACE_FAULT_AT", "4").status().unwrap();
    assert_eq!(died.signal(), Some(Signal::SIGKILL as i32));
    let fences =
        || fixture.instances("web").iter().filter(|instance| instance.name == "inplace-fence").count();
    assert_eq!(fences(), 1);
    let before = fixture.running_amid("web");
    // A damaged file does not reveal its operation; the fence is removed all the same.
    fs::write(fixture.state.join("journal/uid-web.json"), "{").unwrap();
    let agent = fixture.agent(&[]);
    agent.await_metric(&["inplace_fences_swept_total"], 1.0);
    assert_eq!((fences(), fixture.running("web")), (0, before));
}

#[test]
fn an_operation_that_ends_the_agent_each_time_is_set_aside() {
    let fixture = Fixture::new();
    fixture.run("web");
    fixture.run("other");
    let before = fixture.running("web");
    fixture.restart("web", "poison");
    for _ in 0..2 {
        let mut agent = fixture.spawn(&[], &[("INPLACE_FAULT_PANIC", "before effect Create")]);
        eventually("its end", || agent.has_ended().then_some(()));
        assert!(agent.log().contains("injected by INPLACE_FAULT_PANIC"), "{}", agent.log());
        agent.end();
    }
    let agent = fixture.spawn(&[], &[("INPLACE_FAULT_PANIC", "before effect Create")]);
    let status = fixture.ended("web", "poison", "Failed");
    assert_eq!(status["reason"], "SetAside", "{status:#}");
    eventually("its fence to go", || {
        fixture.instances("web").iter().all(|instance| instance.name == "app").then_some(())
    });
    assert_eq!(fixture.running("web"), before);
    // The agent keeps running, and the next agent serves the pod as before.
    drop(agent);
    let _agent = fixture.agent(&[]);
    fixture.restart("other", "fine");
    fixture.ended("other", "fine", "Succeeded");
    fixture.restart("web", "again");
    fixture.ended("web", "again", "Succeeded");
}

#[test]
fn a_journal_that_cannot_be_read_stops_its_pod_and_no_other() {
    let fixture = Fixture::new();
    let journals = [
        ("torn", r#"{"version":1,"pod":{"names"#, "is damaged"),
        ("empty", "", "is damaged"),
        ("future", r#"{"version":7}"#, "has version 7"),
    ];
    fs::create_dir(fixture.state.join("journal")).unwrap();
    let file = |pod: &str| fixture.state.join(format!("journal/uid-{pod}.json"));
    fixture.run("good");
    for (pod, text, _) in journals {
        fixture.run(pod);
        fs::write(file(pod), text).unwrap();
    }
    let agent = fixture.agent(&[]);
    agent.await_metric(&["inplace_unreadable_files"], 3.0);
    for (pod, text, reported) in journals {
        let before = fixture.instances(pod);
        fixture.restart(pod, "x");
        let status = fixture.ended(pod, "x", "Refused");
        let message = status["message"].as_str().unwrap();
        assert_eq!(status["reason"], "JournalUnreadable");
        assert!(message.contains(reported) && message.contains(file(pod).to_str().unwrap()), "{message}");
        assert!(message.contains("move the file away"), "{message}");
        assert_eq!(
            (fixture.instances(pod), fs::read_to_string(file(pod)).unwrap()),
            (before, text.to_owned())
        );
    }
    fixture.restart("good", "x");
    fixture.ended("good", "x", "Succeeded");
    // `node ps` reports it too, and the advice of the message works.
    let seen = String::from_utf8(fixture.node(&["ps"]).stdout).unwrap();
    assert_eq!(seen.matches("journal unreadable").count(), 3, "{seen}");
    fs::rename(file("torn"), fixture.state.join("torn.json")).unwrap();
    fixture.restart("torn", "y");
    fixture.ended("torn", "y", "Succeeded");
}

/// A small file system mounted on a folder; unmounted on drop.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn at(path: &'a Path) -> Self {
        fs::create_dir(path).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "small"]).arg(path));
        Self(path)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn a_disk_that_hangs_under_the_journal_keeps_no_container_down() {
    let fixture = Fixture::new();
    let gate = fixture.run_gated("web");
    let agent = fixture.agent(&[]);
    fixture.restart("web", "stuck");
    eventually("the handler to begin", || gate.join("began").exists().then_some(()));
    // Opening this FIFO for writing blocks until a reader opens it.
    let new = fixture.state.join("journal/.uid-web.json.new");
    mkfifo(&new, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    fs::write(gate.join("go"), "").unwrap();
    let status = fixture.ended("web", "stuck", "Succeeded");
    assert_eq!(fixture.running_amid("web").attempt, 1);
    let down = status["containers"][0]["downtimeMs"].as_u64().unwrap();
    // Without a limit for the write there is no end at all. The disk of the other files may be slow as well.
    assert!(down < 10_000, "{down} ms: {status:#}");
    assert!(agent.log().contains("the journal cannot be written: continuing without it"), "{}", agent.log());
    let journal = || fs::read_to_string(fixture.state.join("journal/uid-web.json")).unwrap();
    let is_open = || !serde_json::from_str::<Value>(&journal()).unwrap()["open"].is_null();
    assert!(is_open());
    // The disk is back: the result is written, and the pod accepts the next request.
    let released = fs::OpenOptions::new().read(true).write(true).open(&new).unwrap();
    eventually("the journal to be written", || (!is_open()).then_some(()));
    drop(released);
    fs::write(gate.join("go"), "").unwrap();
    fixture.restart("web", "next");
    fixture.ended("web", "next", "Succeeded");
}

#[test]
fn a_full_disk_under_the_journal_ends_it_before_anything_is_touched() {
    let mut fixture = Fixture::new();
    fixture.run("web");
    let before = fixture.instances("web");
    let path = fixture.folder.path().join("small");
    let disk = SmallDisk::at(&path);
    fixture.state.clone_from(&path);
    let fill = || fs::write(disk.0.join("fill"), vec![0; 1 << 20]).unwrap_err();
    fs::create_dir(disk.0.join("journal")).unwrap();
    fill();
    // A command reports it at once.
    let output = fixture.node(&["restart", "--pod", "web", "-c", "app", "-o", "json"]);
    assert_eq!(output.status.code(), Some(1));
    let reported: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (reported["phase"].as_str(), reported["reason"].as_str()),
        (Some("Failed"), Some("JournalFailed"))
    );
    let message = reported["message"].as_str().unwrap();
    assert!(message.contains("No space left on device") && message.contains("were not touched"), "{message}");
    // The agent reports it too, and does not repeat what it cannot journal.
    fs::remove_file(disk.0.join("fill")).unwrap();
    let agent = fixture.agent(&[]);
    fill();
    fixture.restart("web", "full");
    let failed = ["inplace_operations_total", "Failed", "JournalFailed"];
    agent.await_metric(&failed, 1.0);
    eventually("its complaint", || agent.log().contains("the status cannot be written").then_some(()));
    fixture.write(
        "other.yaml",
        "kind: Pod\nmetadata: {name: ghost, annotations: {inplace.dev/request: restart app}}\n",
    );
    agent.await_metric(&["inplace_operations_total", "PodNotFound"], 1.0);
    agent.assert_metric(&failed, 1.0);
    assert_eq!(fixture.instances("web"), before);
    // The answer is written once there is space.
    fs::remove_file(disk.0.join("fill")).unwrap();
    fixture.write("third.yaml", "");
    assert_eq!(fixture.ended("web", "full", "Failed")["reason"], "JournalFailed");
    fixture.restart("web", "room");
    fixture.ended("web", "room", "Succeeded");
    assert_eq!(fixture.running("web").attempt, 1);
}

#[test]
fn no_secret_of_the_environment_is_in_any_output() {
    let secret = "s3cret-hunter2";
    let fixture = Fixture::new();
    fixture.run_app("web", &json!({"env": [{"name": "TOKEN", "value": secret}]}));
    let mut seen = String::new();
    let mut agent = fixture.spawn(&[], &[("INPLACE_LOG", "trace")]);
    fixture.restart("web", "a");
    fixture.ended("web", "a", "Succeeded");
    let image = fixture.lab.image("app:v2");
    let swap = json!({"id": "b", "containers": [{"name": "app", "image": image}]});
    fixture.ask("web", &swap.to_string());
    fixture.ended("web", "b", "Succeeded");
    // Failing operations log more.
    for (id, image) in [("c", "app:noentry"), ("d", "app:alien")] {
        let swap = json!({"id": id, "containers": [{"name": "app", "image": fixture.lab.image(image)}]});
        fixture.ask("web", &swap.to_string());
        eventually(id, || fixture.status("web").filter(|s| s["id"] == id && !s["finishedAt"].is_null()));
    }
    seen.push_str(&agent.metrics());
    agent.stop();
    seen.push_str(&agent.log());
    let crash = format!("app={}", fixture.lab.image("app:crash"));
    for args in [
        &["restart", "--pod", "web", "-c", "app"][..],
        &["swap", "--pod", "web", &format!("app={}", fixture.lab.image("app:v1"))],
        // On a busy machine the image exits seconds after the runtime has reported its start.
        &["swap", "--pod", "web", &crash, "--min-ready", "20", "-o", "json"],
        &["plan", "--pod", "web", "app", "-o", "json"],
        &["ps", "-o", "json"],
        &["ps"],
    ] {
        let output = fixture.node(&[&["--log", "debug"], args].concat());
        seen.push_str(&String::from_utf8(output.stdout).unwrap());
        seen.push_str(&String::from_utf8(output.stderr).unwrap());
    }
    for folder in ["journal", "status"] {
        for file in fs::read_dir(fixture.state.join(folder)).unwrap() {
            seen.push_str(&fs::read_to_string(file.unwrap().path()).unwrap());
        }
    }
    // The test is valid only if these places were searched and the container still has the secret.
    for mark in ["CreateContainer", "inplace_step_duration_seconds", "ATTEMPT", "uid-web", "RolledBack"] {
        assert!(seen.contains(mark), "{mark}");
    }
    assert!(!seen.contains(secret));
    // As a list of bytes, which is how some code prints a message.
    let bytes = secret.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(", ");
    assert!(!seen.contains(&bytes));
    // What the process has really received.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let facts = runtime.block_on(observe(&fixture.lab.endpoint, "uid-web"));
    let pid = facts.running("app").pid;
    // The kernel shows the environment of a program a moment after its name.
    let environment = eventually("the environment of the program", || {
        Some(fs::read(format!("/proc/{pid}/environ")).unwrap()).filter(|environment| !environment.is_empty())
    });
    let entry = format!("TOKEN={secret}");
    assert!(environment.split(|byte| *byte == 0).any(|one| one == entry.as_bytes()));
}
