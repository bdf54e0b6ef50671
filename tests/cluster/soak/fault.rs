//! Faults: kills, freezes, slows and restarts the parts of the cluster, fills disks, sets clocks, reboots nodes. Every
//! fault is undone when its time is over.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    history::FaultSpan,
    plan::{Fault, PODS, Part, node_of},
    run::{LIMIT, Run, clock_file, name_of},
    watch::clock,
};
use crate::{
    agent::{Agent, state},
    cluster::Node,
    support::lab::run as command,
};

/// The size of the file system of an agent's journal.
const JOURNAL_SIZE: &str = "4m";
/// A slow part is stopped and continued in these times.
const STOPPED: Duration = Duration::from_millis(90);
const CONTINUED: Duration = Duration::from_millis(10);

/// Makes the fault, and undoes it after the time.
pub(super) fn disturb(run: &Run<'_>, fault: Fault, node: usize, time: Duration) {
    let index = {
        let mut faults = run.faults.lock().unwrap();
        faults.push(FaultSpan { fault, node, began: clock(), ended: None });
        faults.len() - 1
    };
    match fault {
        Fault::Kill(part) => ended(run, part, node, "kill", time),
        Fault::Stop(part) => ended(run, part, node, "stop", time),
        Fault::Freeze(part) => frozen(run, part, node, time),
        Fault::Slow(part) => slow(run, part, node, time),
        Fault::FullDisk => full_disk(&run.nodes[node], time),
        Fault::Clock(seconds) => {
            fs::write(clock_file(&run.nodes[node]), seconds.to_string()).unwrap();
            thread::sleep(time);
            fs::write(clock_file(&run.nodes[node]), "0").unwrap();
        }
        Fault::Reboot => reboot(run, node, time),
    }
    run.faults.lock().unwrap()[index].ended = Some(clock());
    *run.report.lock().unwrap().faults.entry(format!("{fault:?}")).or_default() += 1;
}

/// The name of the part in `cluster.sh`; `None` for a process that the test starts itself.
fn script_name(part: Part) -> Option<&'static str> {
    Some(match part {
        Part::Agent | Part::Controller => return None,
        Part::Kubelet => "kubelet",
        Part::Containerd => "containerd",
        Part::Etcd => "etcd",
        Part::ApiServer => "kube-apiserver",
        Part::Registry => "registry",
    })
}

/// The node whose folder has the part's PID: that of the control plane is the first one.
fn node_with<'a>(run: &'a Run<'_>, part: Part, node: usize) -> &'a Node {
    &run.nodes[if matches!(part, Part::Kubelet | Part::Containerd) { node } else { 0 }]
}

fn ended(run: &Run<'_>, part: Part, node: usize, how: &str, time: Duration) {
    if let Some(name) = script_name(part) {
        let node = node_with(run, part, node);
        if how == "kill" {
            node.kill(name);
        } else {
            node.stop(name);
        }
        thread::sleep(time);
        node.start(name);
        return;
    }
    let slot = if part == Part::Agent { &run.agents[node] } else { &run.controller };
    let process = slot.lock().unwrap().take();
    if let Some(process) = process {
        if how == "kill" { process.kill() } else { process.stop() }
    }
    thread::sleep(time);
    if part == Part::Agent { run.launch_agent(node) } else { run.launch_controller() }
}

/// The PID of the part.
fn pid(run: &Run<'_>, part: Part, node: usize) -> Pid {
    let Some(name) = script_name(part) else {
        let slot = if part == Part::Agent { &run.agents[node] } else { &run.controller };
        let pid = slot.lock().unwrap().as_ref().map(Agent::pid).unwrap();
        return Pid::from_raw(pid.cast_signed());
    };
    let file = node_with(run, part, node).dir.join("pids").join(name);
    Pid::from_raw(fs::read_to_string(file).unwrap().trim().parse().unwrap())
}

fn frozen(run: &Run<'_>, part: Part, node: usize, time: Duration) {
    let pid = pid(run, part, node);
    signal(pid, Signal::SIGSTOP);
    thread::sleep(time);
    signal(pid, Signal::SIGCONT);
}

fn slow(run: &Run<'_>, part: Part, node: usize, time: Duration) {
    let pid = pid(run, part, node);
    for _ in 0..time.as_millis() / (STOPPED + CONTINUED).as_millis() {
        signal(pid, Signal::SIGSTOP);
        thread::sleep(STOPPED);
        signal(pid, Signal::SIGCONT);
        thread::sleep(CONTINUED);
    }
}

/// The process may have ended by itself: the check of its effects is not made here.
fn signal(pid: Pid, signal: Signal) {
    let _ = kill(pid, signal);
}

/// Puts the state directory of the node's agent on a small file system, which only the processes of the node see.
pub(super) fn mount_journal(node: &Node) {
    let folder = state(node);
    fs::create_dir_all(&folder).unwrap();
    let mut mount = Command::new("nsenter");
    mount.args(["--mount", "--target", &anchor(node), "mount", "-t", "tmpfs", "-o"]);
    command(mount.arg(format!("size={JOURNAL_SIZE}")).arg("lab").arg(&folder));
}

/// The state directory of the node's agent as this process reaches it.
pub(super) fn journal_folder(node: &Node) -> PathBuf {
    let folder = state(node);
    Path::new("/proc").join(anchor(node)).join("root").join(folder.strip_prefix("/").unwrap())
}

fn anchor(node: &Node) -> String {
    fs::read_to_string(node.dir.join("pids/anchor")).unwrap().trim().to_owned()
}

fn full_disk(node: &Node, time: Duration) {
    let path = journal_folder(node).join("filled");
    let mut file = fs::File::create(&path).unwrap();
    let block = [0; 4096];
    while file.write_all(&block).is_ok() {}
    thread::sleep(time);
    fs::remove_file(path).unwrap();
}

/// Kills the node's kubelet, agent, containerd, containers and shims at the same time, and starts the node again. It is
/// over when its pods are Ready.
fn reboot(run: &Run<'_>, node: usize, time: Duration) {
    let lab = &run.nodes[node];
    let process = run.agents[node].lock().unwrap().take();
    if let Some(process) = process {
        process.kill();
    }
    lab.kill("kubelet");
    lab.kill("containerd");
    // The shims reap the processes of their containers.
    let cgroup = format!("/{}/", fs::read_to_string(lab.dir.join("bridge")).unwrap().trim());
    let is_contained = |pid: &Path| read(pid, "cgroup").contains(&cgroup);
    kill_all(is_contained);
    let socket = format!("{}/run/containerd.sock", lab.dir.display());
    kill_all(|pid| {
        let line = read(pid, "cmdline");
        line.contains("containerd-shim") && line.contains(&socket)
    });
    thread::sleep(time);
    lab.start("containerd");
    let observations = || run.watch.history.lock().unwrap().observations.get(&node).copied();
    let before = observations();
    lab.start("kubelet");
    run.launch_agent(node);
    // The last observation before the kill shows its pods as settled.
    run.within(LIMIT, || (observations() > before).then_some(()));
    for pod in (0..PODS).filter(|pod| node_of(*pod) == node) {
        let name = name_of(pod);
        let end = clock() + i64::try_from(LIMIT.as_nanos()).unwrap();
        // A pod that is being replaced has no place here. What does not settle is reported by its next operation.
        while clock() < end && run.watch.pod(&name).is_some() && run.is_settled(&name).is_err() {
            thread::sleep(CONTINUED);
        }
    }
}

fn read(pid: &Path, file: &str) -> String {
    String::from_utf8_lossy(&fs::read(pid.join(file)).unwrap_or_default()).into_owned()
}

/// Kills all processes of a kind, until there are none.
fn kill_all(is_it: impl Fn(&Path) -> bool) {
    loop {
        let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let pids: Vec<i32> = processes
            .filter(|path| is_it(path) && is_alive(path))
            .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
            .collect();
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            signal(Pid::from_raw(pid), Signal::SIGKILL);
        }
        thread::sleep(CONTINUED);
    }
}

/// A process that has ended and was not reaped yet is not alive.
fn is_alive(process: &Path) -> bool {
    let stat = read(process, "stat");
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with('Z') && !fields.starts_with('X'))
}
