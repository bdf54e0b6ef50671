//! Measures the budgets side by side in one run, on a private containerd and a private Kubernetes: `make bench`.
//! Prints tables, writes `bench.json` into the target folder, and exits with 1 when a budget is missed. Absolute
//! figures depend on the machine and its load; the ratios within a run are what counts. Runs of the parts
//! F and H write the plots of the README and their figures into `docs/images`; a quick run has too few samples for that and
//! writes them into the target folder.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "for people at a terminal")]

#[path = "../cluster/agent.rs"]
#[allow(dead_code, reason = "the tests do more with it")]
mod agent;
mod at_once;
mod beside;
#[path = "../hermetic/docs/blocks.rs"]
#[allow(dead_code, reason = "the tests of the pages read more")]
mod blocks;
mod client;
#[path = "../cluster/cluster.rs"]
#[allow(dead_code, reason = "the tests do more with it")]
mod cluster;
mod downtime;
mod endpoints;
mod idle;
#[path = "../cluster/kinds.rs"]
mod kinds;
mod many_pods;
mod parts;
mod plot;
#[path = "../cluster/pod.rs"]
#[allow(dead_code, reason = "the tests observe more")]
mod pod;
mod processor;
mod report;
mod restart;
#[path = "../support/mod.rs"]
mod support;
mod swap;
mod test_node;
mod ways;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::FalseyValueParser;
use serde::Serialize;

use crate::plot::Mode;
use crate::report::Report;
use crate::test_node::TestNode;

/// The parts that need a Kubernetes.
const BESIDE: char = 'f';
const DOWNTIME: char = 'h';
const AT_ONCE: char = 'i';
const PROCESSOR: char = 'j';
const JOB: char = 'k';
/// The folder of the plot.
const IMAGES: &str = "docs/images";
/// Time limit of all other parts.
const LONGEST: Duration = Duration::from_secs(45 * 60);

/// Measures the budgets of inplace.
#[derive(Debug, Parser)]
struct Args {
    /// Which measurements, like `ab`; all without
    #[arg(default_value = "abcdefghijk")]
    parts: String,
    /// Only shows that the benchmark works
    #[arg(long, env = "BENCH_QUICK", value_parser = FalseyValueParser::new())]
    quick: bool,
    /// Ends well also when a budget is missed
    #[arg(long, env = "BENCH_LENIENT", value_parser = FalseyValueParser::new())]
    lenient: bool,
    /// Megabytes of the large image
    #[arg(long, env = "BENCH_IMAGE_MB")]
    image_mb: Option<u32>,
    /// How often the pods of part I are restarted in each way, and those of part K fail
    #[arg(long, env = "BENCH_ROUNDS")]
    rounds: Option<usize>,
    /// The binary whose rest is measured; the one of this build without
    #[arg(long, env = "BENCH_AGENT", default_value = env!("CARGO_BIN_EXE_inplace"))]
    agent: PathBuf,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The sample sizes and durations of a run.
struct Scale {
    restarts: u32,
    /// The duration of part B's "minute".
    minute: Duration,
    swaps: u32,
    image_mb: u32,
    rollbacks: u32,
    pods: usize,
    rest: Duration,
    agent: PathBuf,
    /// Number of restarts beside a kubelet, and of pods that the kubelet restarts.
    beside: u32,
    kubelets: usize,
    /// Operations of each way of part H on the pod's address, and the requests during all of them.
    operations: usize,
    requests: usize,
    /// Pods of the parts I and K, the rounds of these parts, and restarts of part J.
    at_once: usize,
    rounds: usize,
    processor: u32,
}

impl Scale {
    fn of(args: &Args) -> Self {
        let agent = args.agent.clone();
        if args.quick {
            let (minute, rest) = (Duration::from_secs(5), Duration::from_secs(5));
            let image_mb = args.image_mb.unwrap_or(64);
            let (beside, kubelets) = (5, 2);
            return Self {
                restarts: 10,
                minute,
                swaps: 2,
                image_mb,
                rollbacks: 2,
                pods: 20,
                rest,
                agent,
                beside,
                kubelets,
                operations: 1,
                requests: 5_000,
                at_once: 6,
                rounds: args.rounds.unwrap_or(1),
                processor: 3,
            };
        }
        let (minute, rest) = (Duration::from_secs(60), Duration::from_secs(60));
        let image_mb = args.image_mb.unwrap_or(500);
        let (beside, kubelets) = (100, 10);
        Self {
            restarts: 100,
            minute,
            swaps: 5,
            image_mb,
            rollbacks: 5,
            pods: 110,
            rest,
            agent,
            beside,
            kubelets,
            operations: 5,
            requests: 100_000,
            at_once: 40,
            rounds: args.rounds.unwrap_or(20),
            processor: 40,
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scale = Scale::of(&args);
    // The same kind of runtime as the program's own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut report = Report::default();
    let parts = args.parts.replace([BESIDE, DOWNTIME, AT_ONCE, PROCESSOR, JOB], "");
    if !parts.is_empty() {
        runtime.block_on(async {
            let test_node = TestNode::new();
            let measured =
                tokio::time::timeout(LONGEST, measure(&test_node, &scale, &parts, &mut report)).await;
            measured.expect("it takes too long");
        });
    }
    // These parts create their own nodes, so they run after the others.
    let figures = args.parts.contains(BESIDE).then(|| beside::beside(&scale, &mut report));
    let noticed = args.parts.contains(DOWNTIME).then(|| downtime::downtime(&scale, &mut report));
    if args.parts.contains(AT_ONCE) {
        at_once::at_once(&scale, &mut report);
    }
    if args.parts.contains(PROCESSOR) {
        processor::processor(&scale, &mut report);
    }
    if args.parts.contains(JOB) {
        at_once::job(&scale, &mut report);
    }
    let kept = report.conclude();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join(IMAGES);
    let images = if args.quick { target } else { &images };
    if let Some(figures) = figures {
        draw(&figures, "restart.json", Mode::file, plot::svg, images);
    }
    if let Some(figures) = noticed {
        draw(&figures, "downtime.json", plot::downtime::file, plot::downtime::svg, images);
    }
    let file = target.join("bench.json");
    fs::write(&file, serde_json::to_vec_pretty(&report.json()).unwrap()).unwrap();
    println!("\nAll samples are in {}", file.display());
    if kept || args.lenient { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes a plot and its figures.
fn draw<F: Serialize>(
    figures: &F,
    json: &str,
    file: fn(Mode) -> &'static str,
    svg: fn(&F, Mode) -> String,
    folder: &Path,
) {
    let text = serde_json::to_string_pretty(figures).unwrap();
    fs::write(folder.join(json), text + "\n").unwrap();
    for mode in Mode::ALL {
        fs::write(folder.join(file(mode)), svg(figures, mode)).unwrap();
    }
    println!("\nThe plot of {json} and its figures are in {}", folder.display());
}

async fn measure(test_node: &TestNode, scale: &Scale, parts: &str, report: &mut Report) {
    for part in parts.chars() {
        match part {
            'a' => Box::pin(restart::many(test_node, scale, report)).await,
            'b' => Box::pin(restart::minute(test_node, scale, report)).await,
            'c' => Box::pin(swap::sizes(test_node, scale, report)).await,
            'd' => Box::pin(swap::back(test_node, scale, report)).await,
            'e' => Box::pin(idle::idle(test_node, scale, report)).await,
            'g' => Box::pin(many_pods::idle(scale, report)).await,
            other => panic!("there is no measurement {other}"),
        }
    }
}
