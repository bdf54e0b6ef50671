//! Finds the panics of a process in its log: a release aborts where the build of the tests unwinds and continues. Prints those of
//! the tests.

use std::{
    fs,
    io::{self, Write},
    panic,
    path::Path,
    sync::Once,
    thread,
};

/// The panics that the tests themselves cause.
const INJECTED: &str = "src/process/fault.rs";

/// The lines that tell of a panic that no test has caused.
pub(crate) fn in_log(log: &str) -> Vec<String> {
    let is_panic = |line: &&str| line.contains(" panicked at ") && !line.contains(INJECTED);
    log.lines().filter(is_panic).map(str::to_owned).collect()
}

/// Asserts that the log of a process has none. Does nothing while this thread panics: a second panic would hide the first.
pub(crate) fn assert_none(log: impl FnOnce() -> String) {
    if !thread::panicking() {
        let log = log();
        assert_eq!(in_log(&log), [""; 0], "{log}");
    }
}

/// The panics in all logs in `folder` whose names begin with `prefix`.
pub(crate) fn in_folder(folder: &Path, prefix: &str) -> Vec<String> {
    let logs = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let logs = logs.filter(|log| log.file_name().to_string_lossy().starts_with(prefix));
    logs.flat_map(|log| in_log(&String::from_utf8_lossy(&fs::read(log.path()).unwrap()))).collect()
}

/// Prints the message of each panic of this process at once. Otherwise it is printed when all tests have ended, and not at all if
/// they are ended from outside before.
pub(crate) fn print_at_once() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        panic::set_hook(Box::new(|panic| {
            let thread = thread::current();
            let message = format!("\nthread '{}' {panic}\n", thread.name().unwrap_or("without a name"));
            // `eprintln!` would be captured for the end. A message that cannot be written must not hide that the test failed.
            let _ = io::stderr().write_all(message.as_bytes());
        }));
    });
}

#[test]
fn panics_are_found_except_those_that_a_test_causes() {
    let panic = "thread 'tokio-runtime-worker' (7) panicked at src/agent/queue.rs:3:4:";
    let log = format!("serving\n{panic}\nwhat it says\n{}\n", panic.replace("src/agent/queue.rs", INJECTED));
    assert_eq!(in_log(&log), [panic]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("agent.1.log"), &log).unwrap();
    assert_eq!(in_folder(folder.path(), "agent."), [panic]);
    assert!(in_folder(folder.path(), "kubelet").is_empty());
}
