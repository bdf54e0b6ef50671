//! Parts of a test (see `tests/support/parts.rs`): all of them run, and the test fails with the names of those that failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use crate::support::parts::Parts;

#[test]
fn a_part_that_fails_hides_no_other_and_fails_the_test() {
    let ran = Mutex::new(Vec::new());
    let part = |name: &'static str, fails: bool| {
        let ran = &ran;
        move || {
            ran.lock().unwrap().push(name);
            assert!(!fails, "on purpose");
        }
    };
    let ended = catch_unwind(AssertUnwindSafe(|| {
        let parts = Parts::default();
        assert_eq!(parts.run("value", || 1), Some(1));
        assert_eq!(parts.run("first", part("first", true)), None);
        parts.run_all([("second", part("second", true)), ("third", part("third", false))]);
    }));
    let message = ended.unwrap_err().downcast::<String>().unwrap();
    assert!(message.starts_with("failed parts: first, second"), "{message}");
    ran.lock().unwrap().sort_unstable();
    assert_eq!(*ran.lock().unwrap(), ["first", "second", "third"]);
}

#[test]
fn parts_that_succeed_fail_no_test() {
    let parts = Parts::default();
    parts.run_all(["one", "two"].map(|name| (name, || {})));
}
