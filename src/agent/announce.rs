//! Decides which events are written for an operation. The text of the event at its end comes from `operation::report`; that
//! of the event at its start, which only a long operation has, is here.
//!
//! Pure. A plain restart ends before a user could read the begin event, so it only writes the end event. Must not
//! write anything itself.

use jiff::{SignedDuration, Timestamp};

use crate::api::request::{ContainerRequest, Request};
use crate::api::status::{Phase, Status};

/// The content of one event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    /// The event's reason: one word that programs can match.
    pub(super) reason: &'static str,
    /// Whether the event needs a user's attention (type `Warning`).
    pub(super) warning: bool,
    /// One line of text for users.
    pub(super) note: String,
    pub(super) at: Timestamp,
}

/// The event for the begin of `request`. `None` for a plain restart without hooks, which ends almost at once.
pub(super) fn begun(request: &Request, at: Timestamp) -> Option<Announcement> {
    let pulls = request.containers.iter().any(|target| target.image.is_some());
    let has_hooks = request.pre_hook.is_some() || request.post_hook.is_some();
    if !pulls && !has_hooks {
        return None;
    }
    let what = |target: &ContainerRequest| match &target.image {
        Some(image) => format!("changing the image of container {} in place to {image}", target.name),
        None => format!("restarting container {} in place", target.name),
    };
    let note = request.containers.iter().map(what).collect::<Vec<_>>().join("; ");
    Some(Announcement { reason: "InPlaceStarted", warning: false, note, at })
}

/// The event for the end of a request. `None` if the phase of `status` is not terminal, and for the success of a part of a
/// group restart, whose rollout has the event.
///
/// The time of the event, which becomes its name, depends on `status` alone: a process that does not know whether an earlier one
/// has written the event writes it again, and the API server refuses the second one.
pub(super) fn ended(status: &Status, now: Timestamp) -> Option<Announcement> {
    let (reason, warning) = match status.phase {
        Phase::Pending | Phase::Running => return None,
        Phase::Succeeded if status.group.is_some() => return None,
        Phase::Succeeded => ("InPlaceSucceeded", false),
        Phase::Cancelled => ("InPlaceCancelled", false),
        Phase::Failed => ("InPlaceFailed", true),
        Phase::RolledBack => ("InPlaceRolledBack", true),
        Phase::Refused => ("InPlaceRefused", true),
    };
    let at = at_end_of(status, now);
    Some(Announcement { reason, warning, note: one_line(&status.message), at })
}

/// The end of the request to the millisecond, as the journal and the pod have it. The digits below are those of the request, so
/// that the events of two requests that end in the same millisecond have different names.
fn at_end_of(status: &Status, now: Timestamp) -> Timestamp {
    // Other releases of this program have to find the same digits.
    let digits = status.id.bytes().fold(0, |digits, byte| (digits * 31 + i64::from(byte)) % 1_000_000);
    let end = status.finished_at.unwrap_or(now);
    let end = Timestamp::from_millisecond(end.as_millisecond()).unwrap_or(end);
    end.saturating_add(SignedDuration::from_nanos(digits)).unwrap_or(end)
}

/// Joins the lines of a message: a message from the runtime may have several.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::report;

    #[test]
    fn a_long_operation_reports_its_begin() {
        let now = Timestamp::UNIX_EPOCH;
        let begun = |text: &str| begun(&Request::parse(Some(text)).unwrap().unwrap(), now);
        assert_eq!(begun("restart app,side"), None);
        let swap = begun("swap app=repo/app:v2").unwrap();
        assert_eq!((swap.reason, swap.warning), ("InPlaceStarted", false));
        assert_eq!(swap.note, "changing the image of container app in place to repo/app:v2");
        let hook = begun(r#"{"containers":[{"name":"app"}],"preHook":{"templateName":"drain"}}"#).unwrap();
        assert_eq!(hook.note, "restarting container app in place");
    }

    #[test]
    fn every_end_is_reported_and_the_bad_ones_warn() {
        for (phase, reported) in [
            (Phase::Pending, None),
            (Phase::Running, None),
            (Phase::Succeeded, Some(("InPlaceSucceeded", false))),
            (Phase::Cancelled, Some(("InPlaceCancelled", false))),
            (Phase::Failed, Some(("InPlaceFailed", true))),
            (Phase::RolledBack, Some(("InPlaceRolledBack", true))),
            (Phase::Refused, Some(("InPlaceRefused", true))),
        ] {
            let status = report::not_begun("a", phase, "", &"two\n lines", Timestamp::UNIX_EPOCH);
            let announced = ended(&status, Timestamp::UNIX_EPOCH);
            assert_eq!(announced.as_ref().map(|a| (a.reason, a.warning)), reported);
            assert!(announced.is_none_or(|a| a.note == "two lines. Nothing was touched"));
        }
    }

    #[test]
    fn whoever_writes_the_event_of_an_end_gives_it_the_same_name() {
        let end: Timestamp = "2026-11-29T10:00:00.123456789Z".parse().unwrap();
        let at = |id: &str, end, now| {
            ended(&report::not_begun(id, Phase::Failed, "", &"it", end), now).unwrap().at
        };
        let (read_again, later) = ("2026-11-29T10:00:00.123Z".parse().unwrap(), Timestamp::UNIX_EPOCH);
        assert_eq!(at("a", end, end), at("a", read_again, later));
        assert_ne!(at("a", end, end), at("b", end, end));
        assert_eq!(at("a", end, end).as_millisecond(), end.as_millisecond());
    }
}
