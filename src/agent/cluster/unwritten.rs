//! Finds statuses that were never written: the journal holds them and the pod does not carry them, because a
//! process died in between.
//!
//! Pure.

use jiff::Timestamp;

use crate::api::status::{Phase, Status};
use crate::operation::outcome::Withdrawal;
use crate::operation::report;

/// Whether `last` (from the journal) still has to be written. `published` is the status on the pod, `requested` the
/// id of the request in its annotation.
pub(super) fn is_missing(last: &Status, published: Option<&Status>, requested: Option<&str>) -> bool {
    let Some(published) = published else { return true };
    if published.id == last.id {
        return !published.phase.is_terminal();
    }
    requested == Some(&last.id)
        || last.finished_at > published.finished_at.or(published.started_at) && has_times(published)
}

/// False for a request that only waits: its status has no times, and it is younger than any status that has ended.
fn has_times(published: &Status) -> bool {
    published.finished_at.is_some() || published.started_at.is_some()
}

/// Returns the final status of a request that was pending when a process died, and whose annotation was deleted
/// before the next process started.
pub(super) fn withdrawn(
    published: Option<&Status>,
    requested: Option<&str>,
    now: Timestamp,
) -> Option<Status> {
    let waits = published.filter(|published| published.phase == Phase::Pending && requested.is_none())?;
    let (reason, why) = (Withdrawal::Deleted.reason(), "the request was withdrawn while it waited");
    Some(report::not_begun(&waits.id, Phase::Cancelled, reason, &why, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn status(id: &str, phase: Phase, second: i64) -> Status {
        let status = report::not_begun(id, phase, "", &"it", at(second));
        match phase {
            Phase::Pending => Status { finished_at: None, ..status },
            Phase::Running => Status { finished_at: None, started_at: Some(at(second)), ..status },
            _ => status,
        }
    }

    #[test]
    fn an_answer_is_reported_once_and_never_in_the_place_of_a_newer_one() {
        use Phase::{Failed, Pending, Refused, Running, Succeeded};
        let last = status("a", Succeeded, 100);
        for (published, requested, missing) in [
            (None, Some("a"), true),
            (None, None, true),
            (Some(status("a", Running, 90)), Some("a"), true),
            (Some(status("a", Running, 90)), None, true),
            (Some(status("a", Succeeded, 100)), Some("a"), false),
            // The user repeats an earlier request after another one: the status in the journal is still valid.
            (Some(status("b", Refused, 200)), Some("a"), true),
            (Some(status("b", Failed, 50)), Some("c"), true),
            (Some(status("b", Failed, 200)), Some("c"), false),
            (Some(status("b", Running, 50)), None, true),
            (Some(status("b", Running, 200)), Some("b"), false),
            (Some(status("b", Pending, 0)), Some("b"), false),
        ] {
            assert_eq!(
                is_missing(&last, published.as_ref(), requested),
                missing,
                "{published:?} {requested:?}"
            );
        }
    }

    #[test]
    fn a_waiting_request_that_is_removed_was_withdrawn() {
        let ended = |phase, requested| withdrawn(Some(&status("a", phase, 1)), requested, at(2));
        let reported = ended(Phase::Pending, None).unwrap();
        assert_eq!((reported.id.as_str(), reported.phase), ("a", Phase::Cancelled));
        assert_eq!(ended(Phase::Pending, Some("a")), None);
        assert_eq!(ended(Phase::Pending, Some("b")), None);
        // A running operation may have touched a container, so the journal decides.
        assert_eq!(ended(Phase::Running, None), None);
        assert_eq!(ended(Phase::Succeeded, None), None);
        assert_eq!(withdrawn(None, None, at(2)), None);
    }
}
