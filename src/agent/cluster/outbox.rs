//! Decides what still has to be written for one pod, and when: the newest status and a few events.
//!
//! Pure; the time is an argument. The begin and the end of an operation are written at once. A step between them is
//! written only if it lasts: a restart ends before a user could read its steps, and each write puts load on the API
//! server.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::agent::announce::Announcement;
use crate::api::status::{Phase, Status};

/// How long a step must last before it is written.
const LASTING: Duration = Duration::from_secs(2);
/// The same in a group restart, whose pods wait for each other: longer than such a wait usually is.
const LASTING_IN_GROUP: Duration = Duration::from_secs(60);
/// The number of events that are held while they cannot be written: the begin and end of the last two requests.
const MAX_EVENTS: usize = 4;

/// The pending writes of one pod.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The newest status, written or not.
    reported: Option<Status>,
    unwritten: Option<Unwritten>,
    events: VecDeque<Announcement>,
}

#[derive(Debug)]
struct Unwritten {
    status: Status,
    due: Instant,
    /// True for the begin or end of an operation, and for a status that replaced one whose write was due at once
    /// and had not started.
    at_once: bool,
    /// True once a write of this status has started.
    taken: bool,
}

/// The next action of the write task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Write this status.
    Status(Box<Status>),
    /// Write this event.
    Event(Announcement),
    /// Call again at this time, or earlier when a new status or event arrives.
    At(Instant),
    /// Nothing is left to write.
    Nothing,
}

impl Outbox {
    /// The newest status, written or not.
    pub(super) fn reported(&self) -> Option<&Status> {
        self.reported.as_ref()
    }

    /// Stores a newer status. A status equal to the newest one is ignored.
    pub(super) fn report(&mut self, status: Status, now: Instant) {
        if self.reported.as_ref() == Some(&status) {
            return;
        }
        let before = self.reported.as_ref().filter(|before| before.id == status.id);
        let step = |status: &Status| {
            status.group.as_ref().map(|group| (group.prepared_at.is_some(), group.stopped_at.is_some()))
        };
        let begins = match step(&status) {
            None => {
                status.phase == Phase::Running && before.is_none_or(|before| before.phase != Phase::Running)
            }
            // The begin in a group restart is reported by its first step, so that a pod needs few writes.
            Some(now) => now != before.and_then(step).unwrap_or_default(),
        };
        let waited = self.unwritten.as_ref().is_some_and(|before| before.at_once && !before.taken);
        let at_once = status.phase.is_terminal() || begins || waited;
        let lasting = if status.group.is_some() { LASTING_IN_GROUP } else { LASTING };
        let due = if at_once { now } else { now + lasting };
        self.reported = Some(status.clone());
        self.unwritten = Some(Unwritten { status, due, at_once, taken: false });
    }

    /// Adds an event. Drops the oldest one if there are more than [`MAX_EVENTS`].
    pub(super) fn announce(&mut self, event: Announcement) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// Returns what to do at `now`. A returned status counts as being written from then on.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        match (&mut self.unwritten, self.events.front()) {
            (Some(unwritten), _) if unwritten.due <= now => {
                unwritten.taken = true;
                Next::Status(Box::new(unwritten.status.clone()))
            }
            (_, Some(event)) => Next::Event(event.clone()),
            (Some(unwritten), None) => Next::At(unwritten.due),
            (None, None) => Next::Nothing,
        }
    }

    /// Removes this status: it was written, or its write was given up.
    pub(super) fn done_with(&mut self, status: &Status) {
        if self.unwritten.as_ref().is_some_and(|unwritten| unwritten.status == *status) {
            self.unwritten = None;
        }
    }

    /// Drops everything: the pod is gone.
    pub(super) fn give_up(&mut self) {
        self.unwritten = None;
        self.events.clear();
    }

    /// True if nothing has to be written, now or later.
    pub(super) fn is_done(&self) -> bool {
        self.unwritten.is_none() && self.events.is_empty()
    }

    /// Removes this event: it was written, or its write was given up.
    pub(super) fn done_with_event(&mut self, event: &Announcement) {
        if self.events.front() == Some(event) {
            self.events.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::group::GroupProgress;
    use crate::api::status::Step;
    use crate::operation::report;

    fn status(id: &str, phase: Phase, step: Step) -> Status {
        let status = report::not_begun(id, phase, "", &"it", jiff::Timestamp::UNIX_EPOCH);
        Status { step: Some(step), ..status }
    }

    fn event(reason: &'static str) -> Announcement {
        Announcement { reason, warning: false, note: String::new(), at: jiff::Timestamp::UNIX_EPOCH }
    }

    /// Writes everything that is due, as if the API server answered at once, and returns what was written.
    fn write_all(outbox: &mut Outbox, now: Instant) -> Vec<String> {
        let mut written = Vec::new();
        loop {
            match outbox.next(now) {
                Next::Status(status) => {
                    written.push(format!("{} {} {}", status.id, status.phase, status.step.unwrap()));
                    outbox.done_with(&status);
                }
                Next::Event(event) => {
                    written.push(event.reason.to_owned());
                    outbox.done_with_event(&event);
                }
                Next::At(_) | Next::Nothing => return written,
            }
        }
    }

    #[tokio::test]
    async fn a_group_restart_has_three_writes_however_long_the_others_take() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        let at = |second| now + Duration::from_secs(second);
        let mut group = GroupProgress {
            epoch: 1,
            prepared_at: None,
            stopped_at: None,
            ended_request: String::new(),
            ended_phase: None,
        };
        let mut written = Vec::new();
        let mut report = |group: &GroupProgress, phase, step, second| {
            let status = Status { group: Some(group.clone()), ..status("a", phase, step) };
            outbox.report(status, at(second));
            written.extend(write_all(&mut outbox, at(second + 10)));
        };
        report(&group, Phase::Running, Step::PreHook, 0);
        group.prepared_at = Some(jiff::Timestamp::UNIX_EPOCH);
        report(&group, Phase::Running, Step::Swap, 10);
        report(&group, Phase::Running, Step::Verify, 20);
        group.stopped_at = Some(jiff::Timestamp::UNIX_EPOCH);
        report(&group, Phase::Running, Step::Verify, 30);
        report(&group, Phase::Succeeded, Step::Verify, 40);
        assert_eq!(written, ["a Running Swap", "a Running Verify", "a Succeeded Verify"]);
    }

    #[tokio::test]
    async fn a_quick_operation_is_a_begin_an_end_and_an_event() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        outbox.report(status("a", Phase::Running, Step::Swap), now);
        assert_eq!(write_all(&mut outbox, now), ["a Running Swap"]);
        outbox.report(status("a", Phase::Running, Step::Verify), at(50));
        assert_eq!(write_all(&mut outbox, at(60)), [""; 0]);
        outbox.report(status("a", Phase::Succeeded, Step::Verify), at(100));
        outbox.announce(event("InPlaceSucceeded"));
        assert_eq!(write_all(&mut outbox, at(100)), ["a Succeeded Verify", "InPlaceSucceeded"]);
        // The journal returns the same status for a repeated request.
        outbox.report(status("a", Phase::Succeeded, Step::Verify), at(101));
        assert_eq!(outbox.next(at(5000)), Next::Nothing);
    }

    #[tokio::test]
    async fn a_step_is_written_when_it_lasts_and_waiting_too() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        let at = |ms| now + Duration::from_millis(ms);
        outbox.report(status("a", Phase::Pending, Step::Pull), now);
        assert_eq!(outbox.next(at(1000)), Next::At(at(2000)));
        assert_eq!(write_all(&mut outbox, at(2000)), ["a Pending Pull"]);
        outbox.report(status("a", Phase::Running, Step::Pull), at(3000));
        assert_eq!(write_all(&mut outbox, at(3000)), ["a Running Pull"]);
        outbox.report(status("a", Phase::Running, Step::Drain), at(4000));
        outbox.report(status("a", Phase::Running, Step::Swap), at(5000));
        assert_eq!(outbox.next(at(6500)), Next::At(at(7000)));
        assert_eq!(write_all(&mut outbox, at(7000)), ["a Running Swap"]);
        // The begin of another request is written at once.
        outbox.report(status("b", Phase::Running, Step::Swap), at(7001));
        assert_eq!(write_all(&mut outbox, at(7001)), ["b Running Swap"]);
    }

    #[tokio::test]
    async fn what_could_not_be_written_gives_way_to_what_is_newer() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        outbox.report(status("a", Phase::Running, Step::Swap), now);
        let Next::Status(under_way) = outbox.next(now) else { panic!() };
        // This arrives while the begin is being written: one write of a begin is enough.
        outbox.report(status("a", Phase::Running, Step::Verify), now);
        assert_eq!(outbox.next(now), Next::At(now + LASTING));
        outbox.report(status("a", Phase::Succeeded, Step::Verify), now);
        outbox.done_with(&under_way);
        assert_eq!(write_all(&mut outbox, now), ["a Succeeded Verify"]);
        assert_eq!(outbox.reported().map(|reported| reported.phase), Some(Phase::Succeeded));
    }

    #[tokio::test]
    async fn what_nobody_has_begun_to_write_is_replaced() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        outbox.report(status("a", Phase::Running, Step::Swap), now);
        outbox.report(status("a", Phase::Running, Step::Verify), now);
        assert_eq!(write_all(&mut outbox, now), ["a Running Verify"]);
        outbox.announce(event("lost"));
        outbox.report(status("a", Phase::Failed, Step::Verify), now);
        outbox.give_up();
        assert!(outbox.is_done());
        assert_eq!(outbox.next(now), Next::Nothing);
    }

    #[tokio::test]
    async fn events_are_few() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        for reason in ["a", "b", "c", "d", "e"] {
            outbox.announce(event(reason));
        }
        assert_eq!(write_all(&mut outbox, now), ["b", "c", "d", "e"]);
    }
}
