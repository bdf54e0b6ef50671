//! Decides about an operation, step by step, as if each effect succeeded. Carries nothing out.

use inplace::operation::effect::EffectOutput;
use inplace::operation::next::{Next, next};
use inplace::operation::report;
use inplace::operation::snapshot::Snapshot;
use inplace::operation::state::Operation;
use jiff::Timestamp;

/// Decides until the operation waits or has ended, at most `most` times, and reports its status.
pub(super) fn go_on(mut operation: Operation, snapshot: &Snapshot, now: Timestamp, most: usize) {
    for _ in 0..most {
        match next(&operation, snapshot, now) {
            Next::Do(effect) => {
                operation.begin(&effect, now);
                operation.record(&effect, Ok(EffectOutput::Nothing), now);
            }
            Next::Note(note) => operation.note(note),
            Next::Wait(_) => break,
            Next::Done(outcome) => {
                operation.finish(outcome, now);
                break;
            }
        }
    }
    report::status(&operation);
}
