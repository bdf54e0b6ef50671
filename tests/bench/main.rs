//! The budgets, measured side by side in one run, on a private containerd: `make bench`.
//!
//! Prints tables, writes `bench.json` into the target folder, and ends with 1 when a budget is missed. Absolute figures
//! move with the machine and its load; what counts are the ratios within a run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "for people at a terminal")]

mod idle;
#[path = "../node/lab.rs"]
#[allow(dead_code, reason = "not everything of the lab is needed here")]
mod lab;
mod parts;
mod report;
mod restart;
mod stand;
mod swap;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use clap::builder::FalseyValueParser;

use crate::report::Report;
use crate::stand::Stand;

/// Nothing here takes longer.
const LONGEST: Duration = Duration::from_secs(45 * 60);

/// Measures the budgets of inplace.
#[derive(Debug, Parser)]
struct Args {
    /// Which measurements, like `ab`; all without
    #[arg(default_value = "abcde")]
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
    /// The binary whose rest is measured; the one of this build without
    #[arg(long, env = "BENCH_AGENT", default_value = env!("CARGO_BIN_EXE_inplace"))]
    agent: PathBuf,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// How much of everything.
struct Scale {
    restarts: u32,
    /// How long "a minute" is.
    minute: Duration,
    swaps: u32,
    image_mb: u32,
    rollbacks: u32,
    pods: usize,
    rest: Duration,
    agent: PathBuf,
}

impl Scale {
    fn of(args: &Args) -> Self {
        let agent = args.agent.clone();
        if args.quick {
            let (minute, rest) = (Duration::from_secs(5), Duration::from_secs(5));
            let image_mb = args.image_mb.unwrap_or(64);
            return Self { restarts: 10, minute, swaps: 2, image_mb, rollbacks: 2, pods: 20, rest, agent };
        }
        let (minute, rest) = (Duration::from_secs(60), Duration::from_secs(60));
        let image_mb = args.image_mb.unwrap_or(500);
        Self { restarts: 100, minute, swaps: 5, image_mb, rollbacks: 5, pods: 110, rest, agent }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scale = Scale::of(&args);
    // The same kind as the program's own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let report = runtime.block_on(async {
        let stand = Stand::new();
        let measured = tokio::time::timeout(LONGEST, measure(&stand, &scale, &args.parts)).await;
        measured.expect("it takes too long")
    });
    let kept = report.conclude();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let file = target.join("bench.json");
    fs::write(&file, serde_json::to_vec_pretty(&report.json()).unwrap()).unwrap();
    println!("\nAll samples are in {}", file.display());
    if kept || args.lenient { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn measure(stand: &Stand, scale: &Scale, parts: &str) -> Report {
    let mut report = Report::default();
    for part in parts.chars() {
        match part {
            'a' => Box::pin(restart::many(stand, scale, &mut report)).await,
            'b' => Box::pin(restart::minute(stand, scale, &mut report)).await,
            'c' => Box::pin(swap::sizes(stand, scale, &mut report)).await,
            'd' => Box::pin(swap::back(stand, scale, &mut report)).await,
            'e' => Box::pin(idle::idle(stand, scale, &mut report)).await,
            other => panic!("there is no measurement {other}"),
        }
    }
    report
}
