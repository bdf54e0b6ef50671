//! Runs the decisions against random worlds, in virtual time: the code that all these worlds share.
//!
//! Every run has the worlds of one fixed seed, and a quarter as many of a seed of its own. `INPLACE_MODEL_CASES` and
//! `INPLACE_MODEL_SEED` set the number of worlds and the only seed. A failing world is printed with the seed that reproduces it.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::hash::{BuildHasher as _, RandomState};

use inplace::api::pod_ref::PodRef;
use inplace::operation::state::Operation;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestError, TestRunner};

mod cluster;
mod hooks;
mod standalone;

const SEED: u64 = 0x1912_ace5;
const ID: &str = "test-1";

/// 2026-11-20T10:00:00Z. The searches ask for it often.
fn epoch() -> Timestamp {
    Timestamp::constant(1_795_168_800, 0)
}

fn ms(count: i64) -> SignedDuration {
    SignedDuration::from_millis(count)
}

fn pod() -> PodRef {
    PodRef { namespace: "default".into(), name: "web".into(), uid: "u-1".into() }
}

/// True when `now` is within `span`: its start in milliseconds after the beginning, and its length in milliseconds.
fn within(now: Timestamp, span: Option<(i64, i64)>) -> bool {
    span.is_some_and(|(from, long)| (epoch() + ms(from)..epoch() + ms(from + long)).contains(&now))
}

/// Reproducible random numbers.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn ms(&mut self, least: i64, most: i64) -> i64 {
        least + i64::try_from(self.roll(u64::try_from(most - least + 1).unwrap())).unwrap()
    }
}

/// The agent: its operation in memory, and its journal.
struct Agent {
    operation: Operation,
    journal: String,
    writes: bool,
    restarts: u32,
}

impl Agent {
    fn new(operation: Operation, writes: bool) -> Self {
        Self { journal: serde_json::to_string(&operation).unwrap(), operation, writes, restarts: 0 }
    }

    fn write(&mut self) {
        if self.writes {
            self.journal = serde_json::to_string(&self.operation).unwrap();
        }
    }

    /// Decides at random, with `percent` probability, whether the process dies here. Returns for how many
    /// milliseconds it is gone; the caller must then call [`Agent::comes_back`].
    fn dies(&mut self, dice: &mut Dice, percent: u64) -> Option<i64> {
        if self.restarts >= 4 || dice.roll(100) >= percent {
            return None;
        }
        self.restarts += 1;
        Some(dice.ms(1, 5000))
    }

    fn comes_back(&mut self, now: Timestamp) {
        self.operation = serde_json::from_str(&self.journal).unwrap();
        self.operation.resume(now);
    }
}

#[expect(clippy::disallowed_methods, reason = "how often a test looks is no setting of the program")]
fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs many worlds. The error is the smallest world that violates a rule, and the rule. `run` returns a short
/// description of how a world ended; counted are those of the fixed seed.
#[expect(clippy::print_stdout, reason = "which worlds a run had is in the output of the test")]
fn search<S: Debug>(
    cases: u32,
    worlds: &impl Strategy<Value = S>,
    run: impl Fn(&S) -> Result<String, String>,
) -> Result<BTreeMap<String, u32>, String> {
    let given = from_environment("INPLACE_MODEL_SEED");
    let tally = search_from(given.unwrap_or(SEED), cases, worlds, &run)?;
    if given.is_none() {
        let (seed, cases) = (RandomState::new().hash_one(()), cases.div_ceil(4));
        search_from(seed, cases, worlds, &run)?;
        println!("seed {seed}: {cases} worlds passed");
    }
    Ok(tally)
}

/// Runs the worlds of one seed, and counts how they ended.
fn search_from<S: Debug>(
    seed: u64,
    cases: u32,
    worlds: &impl Strategy<Value = S>,
    run: impl Fn(&S) -> Result<String, String>,
) -> Result<BTreeMap<String, u32>, String> {
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..ProptestConfig::default()
    };
    let tally = std::cell::RefCell::new(BTreeMap::new());
    let result = TestRunner::new(config).run(worlds, |world| {
        let end = run(&world).map_err(TestCaseError::fail)?;
        *tally.borrow_mut().entry(end).or_default() += 1;
        Ok(())
    });
    match result {
        Ok(()) => Ok(tally.into_inner()),
        Err(TestError::Fail(reason, world)) => {
            Err(format!("{reason}\nin {world:#?}\nINPLACE_MODEL_SEED={seed} INPLACE_MODEL_CASES={cases}"))
        }
        Err(TestError::Abort(reason)) => Err(reason.to_string()),
    }
}

/// The number of worlds in a search; `usual` unless the environment sets it.
fn cases(usual: u32) -> u32 {
    from_environment("INPLACE_MODEL_CASES").map_or(usual, |cases| u32::try_from(cases).unwrap())
}

fn rarely<T: Debug + Clone>(strategy: impl Strategy<Value = T>) -> impl Strategy<Value = Option<T>> {
    proptest::option::weighted(0.2, strategy)
}
