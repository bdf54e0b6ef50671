//! The lab itself: it starts completely, and is removed without a trace.

use std::{env, fs, process::Command};

use crate::support::lab::{Lab, Options, run};

#[test]
fn the_registry_has_the_image_that_the_lab_names() {
    let lab = Lab::shared();
    let url = format!("http://{}/v2/app/manifests/v1", lab.registry);
    let accept = "Accept: application/vnd.oci.image.manifest.v1+json";
    let answer = run(Command::new("curl").args(["-sS", "-f", "-I", "-H", accept, &url]));
    let named = lab.digest("app:v1");
    let (repository, digest) = named.split_once('@').unwrap();
    assert_eq!(format!("{repository}:v1"), lab.image("app:v1"));
    assert!(answer.contains(digest), "{digest} is not in {answer}");
}

#[test]
fn containerd_answers_on_its_endpoint() {
    let lab = Lab::shared();
    let socket = lab.endpoint.strip_prefix("unix://").unwrap();
    assert!(run(Command::new("ctr").args(["-a", socket, "version"])).contains("Server:"));
    assert!(lab.ctr(&["image", "ls", "-q"]).contains("localhost/pause:1"));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the variable selects the containerd of all labs")]
fn the_containerd_of_the_lab_is_the_selected_one() {
    let selected = env::var_os("LAB_CONTAINERD").unwrap_or_else(|| "containerd".into());
    let program = run(Command::new(selected).arg("--version"));
    let version = program.split_whitespace().nth(2).unwrap();
    let answers = Lab::shared().ctr(&["version"]);
    let server = answers.split_once("Server:").unwrap().1;
    assert!(server.contains(version), "{program}\n{answers}");
}

#[test]
fn containerd_comes_back_after_a_kill() {
    let lab = Lab::own(&Options::default());
    lab.kill_containerd();
    lab.start_containerd();
    assert!(lab.ctr(&["version"]).contains("Server:"));
}

#[test]
fn a_lab_that_is_dropped_leaves_nothing() {
    let lab = Lab::own(&Options { root_size: Some("64m".to_owned()) });
    let dir = lab.dir.clone();
    let bridge = fs::read_to_string(dir.join("bridge")).unwrap();
    // Another lab may take the name as soon as it is free, but not the number.
    let name = format!(": {}:", bridge.trim());
    let link = links().lines().find_map(|link| Some(link.split_once(&name)?.0.to_owned() + &name)).unwrap();
    assert!(fs::read_to_string("/proc/self/mounts").unwrap().contains(&*dir.to_string_lossy()));
    // A running container, so that a shim, a cgroup and mounts exist and must be removed.
    let image = lab.image("app:v1");
    lab.ctr(&["image", "pull", "--plain-http", &image]);
    lab.ctr(&["run", "--detach", &image, "left"]);
    assert!(
        processes()
            .iter()
            .any(|line| line.contains("containerd-shim") && line.contains(&*dir.to_string_lossy()))
    );
    drop(lab);

    assert!(!dir.exists());
    assert!(!links().lines().any(|other| other.starts_with(&link)));
    let below = format!("{}/", dir.display());
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&below));
    let left: Vec<_> = processes().into_iter().filter(|line| line.contains(&below)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_pushed_image_can_be_pulled() {
    let lab = Lab::shared();
    let made = tempfile::tempdir().unwrap();
    let maker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lab/big-image.sh");
    run(Command::new(maker).arg(made.path()).arg("1"));
    lab.push(&made.path().join("big-v1.tar"), "big:v1");
    lab.ctr(&["image", "pull", "--plain-http", &lab.image("big:v1")]);
}

#[test]
fn the_program_can_be_run_on_the_lab() {
    let lab = Lab::shared();
    assert!(lab.inplace(&["--version"]).status.success());
    assert!(lab.inplace_command(&["--version"]).status().unwrap().success());
}

/// The network links of the machine, as `ip` prints them.
fn links() -> String {
    run(Command::new("ip").args(["-o", "link"]))
}

/// The command lines of all processes.
fn processes() -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.map(|line| String::from_utf8_lossy(&line).into_owned()).collect()
}
