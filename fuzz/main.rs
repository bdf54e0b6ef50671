//! Runs the fuzz target that the variable `FUZZ_TARGET` names, with inputs of libFuzzer.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use targets::{TARGETS, Target};

mod targets;

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.into_iter().find(|(candidate, _)| *candidate == name);
    target.unwrap_or_else(|| panic!("FUZZ_TARGET={name}: there is no such target")).1
});

fuzz_target!(|data: &[u8]| (*TARGET)(data));
