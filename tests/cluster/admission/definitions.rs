//! The leader compares the `CustomResourceDefinition`s of a real API server with those of its release.

use serde_json::{Value, json};

use super::Fixture;
use crate::agent::get;
use crate::support::wait::{WAIT_LIMIT, eventually_slowly};

const NAME: &str = "gamedeployments.tkex.tencent.com";
/// A field that no other part of the test uses.
const FIELD: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/progressDeadlineSeconds";
const MESSAGE: &str = "is older than this release and lacks spec.progressDeadlineSeconds: ";

/// A definition of an older release: one field is missing.
pub(super) struct Older<'a> {
    fixture: &'a Fixture,
    removed: Value,
}

impl<'a> Older<'a> {
    pub(super) fn apply(fixture: &'a Fixture) -> Self {
        let whole: Value =
            serde_json::from_str(&fixture.done(&["get", "crd", NAME, "-o", "json"], "")).unwrap();
        let removed = whole.pointer(FIELD).unwrap().clone();
        let older = Self { fixture, removed };
        older.patch(&json!({"op": "remove", "path": FIELD}));
        older
    }

    /// The controller logs what is missing, and what to do; then the definition of this release is applied.
    pub(super) fn await_report_and_replace(self) {
        let fixture = self.fixture;
        let what = "the missing field is reported";
        eventually_slowly(WAIT_LIMIT, what, || reported(fixture).first().map(drop), || fixture.log());
        let message = reported(fixture).remove(0);
        assert!(message.contains(NAME) && message.contains("`inplace crds | kubectl apply"), "{message}");
        is_counted(fixture, 1);
        self.patch(&json!({"op": "add", "path": FIELD, "value": self.removed}));
    }

    fn patch(&self, operation: &Value) {
        let patch = json!([operation]).to_string();
        self.fixture.done(&["patch", "crd", NAME, "--type=json", "-p", &patch], "");
    }
}

/// The next leader finds all fields.
pub(super) fn is_this_release(fixture: &Fixture) {
    is_counted(fixture, 0);
    assert_eq!(reported(fixture).len(), 1, "{}", fixture.log());
    // It may read all of them.
    assert!(!fixture.log().contains("is that of this release is unknown"), "{}", fixture.log());
}

fn reported(fixture: &Fixture) -> Vec<String> {
    fixture.log().lines().filter(|line| line.contains(MESSAGE)).map(str::to_owned).collect()
}

/// Waits until the metric of the newest controller has this value.
fn is_counted(fixture: &Fixture, missing: usize) {
    let sample = format!("inplace_crd_missing_fields{{definition=\"{NAME}\"}} {missing}\n");
    let what = format!("the metric is {missing}");
    let last = || metrics(fixture).unwrap_or_default();
    eventually_slowly(
        WAIT_LIMIT,
        &what,
        || last().contains(&sample).then_some(()),
        || format!("{}\n{}", last(), fixture.log()),
    );
}

/// The metrics of the controller that started last.
fn metrics(fixture: &Fixture) -> Option<String> {
    let log = fixture.log();
    let line = log.lines().rev().find(|line| line.contains("serving /healthz"))?;
    let port: u16 = line.split("address=127.0.0.1:").nth(1)?.trim().parse().ok()?;
    Some(get(("127.0.0.1", port), "/metrics")?.1)
}
