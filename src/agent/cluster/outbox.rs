//! What is still to be written of one pod, and when: the newest status, and a few events.
//!
//! Pure; the time is an argument. A begin and an end are written at once, what lies between only when it lasts: a
//! restart is over before its steps would have been read, and each write costs the API server.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::agent::announce::Announcement;
use crate::api::status::{Phase, Status};

/// How long a step lasts before it is worth a write.
const LASTING: Duration = Duration::from_secs(2);
/// Events kept while they cannot be written: a begin and an end of the last two requests.
const MAX_EVENTS: usize = 4;

/// What is to be written of one pod.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The newest answer, written or not.
    reported: Option<Status>,
    unwritten: Option<Unwritten>,
    events: VecDeque<Announcement>,
}

#[derive(Debug)]
struct Unwritten {
    status: Status,
    due: Instant,
    /// True for a begin or an end, and for what took the place of one that nobody has begun to write.
    at_once: bool,
    /// True once somebody has begun to write it.
    taken: bool,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Write this status.
    Status(Box<Status>),
    /// Write this event.
    Event(Announcement),
    /// Come again then, or when something is told.
    At(Instant),
    /// Everything is written.
    Nothing,
}

impl Outbox {
    /// The newest answer.
    pub(super) fn reported(&self) -> Option<&Status> {
        self.reported.as_ref()
    }

    /// Takes a newer answer in. The same one again is nothing new.
    pub(super) fn report(&mut self, status: Status, now: Instant) {
        if self.reported.as_ref() == Some(&status) {
            return;
        }
        let same_run = |reported: &Status| reported.id == status.id && reported.phase == Phase::Running;
        let begins = status.phase == Phase::Running && !self.reported.as_ref().is_some_and(same_run);
        let waited = self.unwritten.as_ref().is_some_and(|before| before.at_once && !before.taken);
        let at_once = status.phase.is_terminal() || begins || waited;
        let due = if at_once { now } else { now + LASTING };
        self.reported = Some(status.clone());
        self.unwritten = Some(Unwritten { status, due, at_once, taken: false });
    }

    /// Takes an event in; the oldest goes when there are too many.
    pub(super) fn announce(&mut self, event: Announcement) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// What to do at `now`, by whoever asks.
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

    /// This status has been written, or given up.
    pub(super) fn done_with(&mut self, status: &Status) {
        if self.unwritten.as_ref().is_some_and(|unwritten| unwritten.status == *status) {
            self.unwritten = None;
        }
    }

    /// Nobody is there to be told anything.
    pub(super) fn give_up(&mut self) {
        self.unwritten = None;
        self.events.clear();
    }

    /// True when nothing is to be written, now or later.
    pub(super) fn is_done(&self) -> bool {
        self.unwritten.is_none() && self.events.is_empty()
    }

    /// This event has been written, or given up.
    pub(super) fn done_with_event(&mut self, event: &Announcement) {
        if self.events.front() == Some(event) {
            self.events.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status::Step;
    use crate::operation::report;

    fn status(id: &str, phase: Phase, step: Step) -> Status {
        let status = report::not_begun(id, phase, "", &"it", jiff::Timestamp::UNIX_EPOCH);
        Status { step: Some(step), ..status }
    }

    fn event(reason: &'static str) -> Announcement {
        Announcement { reason, warning: false, note: String::new(), at: jiff::Timestamp::UNIX_EPOCH }
    }

    /// Writes what is due, as fast as the API server could, and tells what it was.
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
        // The journal's answer to the same request.
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
        // Another request begins at once.
        outbox.report(status("b", Phase::Running, Step::Swap), at(7001));
        assert_eq!(write_all(&mut outbox, at(7001)), ["b Running Swap"]);
    }

    #[tokio::test]
    async fn what_could_not_be_written_gives_way_to_what_is_newer() {
        let (mut outbox, now) = (Outbox::default(), Instant::now());
        outbox.report(status("a", Phase::Running, Step::Swap), now);
        let Next::Status(under_way) = outbox.next(now) else { panic!() };
        // While that is being written: one write of a begin is enough.
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
