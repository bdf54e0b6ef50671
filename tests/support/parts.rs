//! Parts of one test on a cluster that is too costly to create for each of them: all of them run, and the test fails at its
//! end with the names of those that failed. A part must not need the result of another one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Mutex,
    thread,
};

/// The parts that failed so far. Dropping this fails the test if there are any.
#[derive(Default)]
pub(crate) struct Parts {
    failed: Mutex<Vec<String>>,
}

impl Parts {
    /// Runs a part. Its panic message is printed as that of a test; `None` if it failed.
    pub(crate) fn run<R>(&self, name: &str, part: impl FnOnce() -> R) -> Option<R> {
        let ended = catch_unwind(AssertUnwindSafe(part));
        if ended.is_err() {
            self.failed.lock().unwrap().push(name.to_owned());
        }
        ended.ok()
    }

    /// Runs parts at the same time, each in a thread with its name, and waits for all.
    pub(crate) fn run_all<F: FnOnce() + Send>(&self, parts: impl IntoIterator<Item = (&'static str, F)>) {
        thread::scope(|scope| {
            for (name, part) in parts {
                let named = thread::Builder::new().name(name.to_owned());
                named.spawn_scoped(scope, move || self.run(name, part)).unwrap();
            }
        });
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let failed = self.failed.lock().unwrap();
        // A second panic would hide the first.
        assert!(failed.is_empty() || thread::panicking(), "failed parts: {}", failed.join(", "));
    }
}
