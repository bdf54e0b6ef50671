//! Part J: the processor time of the whole machine for one restart beside a live kubelet and a control plane, compared with
//! the bare calls to the runtime.

use std::fs;
use std::time::Duration;

use inplace::cri::client::Client;
use inplace::cri::endpoint::Endpoint;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde_json::Value;
use tokio::time::Instant;

use crate::Scale;
use crate::agent::Agent;
use crate::beside::{Bare, SPEC, restart};
use crate::cluster::{Cluster, block_on};
use crate::pod::Pod;
use crate::report::{Report, ms};
use crate::support::wait::eventually;

/// Budget of a restart, as a multiple of the bare calls.
const BUDGET: f64 = 2.0;
/// How long the machine is observed at rest, and how long after the last restart others still work on it.
const REST: Duration = Duration::from_secs(20);
const SETTLES: Duration = Duration::from_secs(3);
/// The columns of the first line of `/proc/stat` that are no work: idle and iowait.
const NO_WORK: [usize; 2] = [3, 4];

/// Runs the part on a private Kubernetes.
pub(crate) fn processor(scale: &Scale, report: &mut Report) {
    let count = scale.processor;
    report.title(&format!("J. Processor time of the machine for one restart, mean of {count}"));
    let cluster = Cluster::own();
    let node = cluster.node();
    let agent = Agent::start(&cluster, &[]);
    let client = block_on(async { Client::new(&Endpoint::parse(&node.endpoint).unwrap(), None) });
    let pod = Pod::run(&cluster, "processor", SPEC);
    // The first one fills caches.
    restart(&client, &pod, 0);
    let at_rest = rest();
    let ours = each(count, at_rest, || {
        for number in 1..=count {
            restart(&client, &pod, number);
        }
        std::thread::sleep(SETTLES);
    });
    let kubelet = fs::read_to_string(node.dir.join("pids/kubelet")).unwrap().trim().parse().unwrap();
    let others = [kubelet, agent.pid().try_into().unwrap()].map(Pid::from_raw);
    let send = |signal| others.iter().for_each(|pid| kill(*pid, signal).unwrap());
    let bare = block_on(Bare::of(&client, &pod.uid));
    let mut old = block_on(bare.start(0));
    send(Signal::SIGSTOP);
    let frozen = rest();
    let bare_calls = each(count, frozen, || {
        for number in 1..=count {
            await_handler(&client, &old);
            block_on(async {
                bare.stop(&old).await;
                let new = bare.start(number).await;
                bare.remove(&std::mem::replace(&mut old, new)).await;
            });
        }
    });
    send(Signal::SIGCONT);
    block_on(async {
        bare.stop(&old).await;
        bare.remove(&old).await;
    });
    report.values(
        "processor time",
        &["milliseconds", "each"],
        &[
            ("restart by annotation, with kubelet and control plane", vec![ms(ours)]),
            ("stop, create, start, remove; kubelet and agent frozen", vec![ms(bare_calls)]),
            ("the machine at rest, per second", vec![ms(at_rest * 1e3)]),
            ("the same with kubelet and agent frozen", vec![ms(frozen * 1e3)]),
        ],
    );
    report.budget("J processor time of a restart, x bare calls", ours / bare_calls, BUDGET);
}

/// The processor time of the machine at rest, in seconds per second.
fn rest() -> f64 {
    std::thread::sleep(SETTLES);
    let began = busy();
    std::thread::sleep(REST);
    (busy() - began) / REST.as_secs_f64()
}

/// Waits until the first process of the container handles SIGTERM, as the one that the agent stops does. Without a handler it
/// ignores the signal, and its end takes the whole grace period.
fn await_handler(client: &Client, id: &str) {
    let answer = block_on(client.container(id, true)).unwrap().unwrap();
    let info: Value = serde_json::from_str(&answer.info["info"]).unwrap();
    let file = format!("/proc/{}/status", info["pid"]);
    eventually("a handler of SIGTERM", || {
        let status = fs::read_to_string(&file).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        // The lowest bit is that of signal 1. Before the program the process executes the runtime's own, which handles it too.
        let handles = u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0;
        (handles && !status.starts_with("Name:\trunc")).then_some(())
    });
}

/// The processor time in milliseconds of each of `count` operations, without that of the machine at rest.
fn each(count: u32, at_rest: f64, operations: impl FnOnce()) -> f64 {
    let (began, before) = (Instant::now(), busy());
    operations();
    let worked = busy() - before - at_rest * began.elapsed().as_secs_f64();
    worked * 1e3 / f64::from(count)
}

/// The seconds that all processors together have worked since the start of the machine.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn busy() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap();
    // The guest times at the end are counted twice.
    let columns = text.lines().next().unwrap().split_ascii_whitespace().skip(1).take(8);
    let is_work = |(column, _): &(usize, &str)| !NO_WORK.contains(column);
    let ticks: u64 =
        columns.enumerate().filter(is_work).map(|(_, ticks)| ticks.parse::<u64>().unwrap()).sum();
    let per_second = sysconf(SysconfVar::CLK_TCK).unwrap().unwrap();
    ticks as f64 / per_second as f64
}
