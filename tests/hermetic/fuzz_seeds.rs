//! Runs each fuzz target with each of its seeds, so that a change that the targets do not follow, or that breaks a promise for a
//! known input, fails here. Looks for no new inputs: `make fuzz` does.

use std::fs;
use std::path::Path;

#[path = "../../fuzz/targets/mod.rs"]
mod targets;

#[test]
fn each_fuzz_target_accepts_each_of_its_seeds() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, run) in targets::TARGETS {
        let mut count = 0;
        for seed in fs::read_dir(seeds.join(name)).unwrap() {
            run(&fs::read(seed.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "{name} has no seeds");
    }
    assert_eq!(
        fs::read_dir(seeds).unwrap().count(),
        targets::TARGETS.len(),
        "a folder of seeds has no target"
    );
}
