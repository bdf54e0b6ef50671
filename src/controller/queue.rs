//! Decides which object of a kind (workloads, rollouts) is reconciled next. Each object is in the queue at most
//! once, however many changes arrive, and is never reconciled twice at the same time. After a failed write an
//! object rests, with exponential back-off. After a conflict it is requeued soon: another client was writing, and
//! the next reconciliation observes the result.
//!
//! Must not read anything but keys and times.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

use crate::podtask::write::VersionedRef;
use crate::process::backoff::Backoff;

/// Delay between a change and the reconciliation: changes often come in bursts.
const SETTLE: Duration = Duration::from_millis(50);
/// Back-off of an object whose writes fail.
const BACKOFF: Backoff = Backoff::new(FIRST_PAUSE, MAX_PAUSE);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// The longest delay after one of the first conflicts in a row. After more than these the cause is not another
/// client's write, and the back-off is that of failures. A change ends either delay.
const MAX_PAUSE_AFTER_CONFLICT: Duration = Duration::from_secs(2);
const USUAL_CONFLICTS: u32 = 10;

/// The result of one reconciliation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// At least one write failed.
    pub(super) failed: bool,
    /// Conflict: at least one object was not in the observed state.
    pub(super) stale: bool,
    /// Requeue after this duration at the latest.
    pub(super) again: Option<Duration>,
    /// Pods whose last write has no confirmed result.
    pub(super) unconfirmed: Vec<VersionedRef>,
}

#[derive(Debug, Default)]
struct Entry {
    due: Option<Instant>,
    running: bool,
    generation: i64,
    failures: u32,
    /// Reconciliations with a conflict, one after the other.
    conflicts: u32,
    /// No reconciliation before this time (back-off).
    rest: Option<Instant>,
    unconfirmed: Vec<VersionedRef>,
}

/// The objects that are due, or are being reconciled.
#[derive(Debug)]
pub(super) struct Queue<K> {
    entries: HashMap<K, Entry>,
    /// The entries that are queued and not running, in the order in which they are due.
    line: BTreeSet<(Instant, K)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self { entries: HashMap::new(), line: BTreeSet::new() }
    }
}

impl<K: Clone + Ord + Hash> Queue<K> {
    /// Enqueues `key` after a change. Another `generation` than before means a new spec: the failure count and
    /// the back-off are reset.
    pub(super) fn enqueue(&mut self, key: &K, generation: i64, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        if std::mem::replace(&mut entry.generation, generation) != generation {
            (entry.failures, entry.rest) = (0, None);
        }
        self.set(key, now + SETTLE);
    }

    /// Takes the next key that is due, with its unconfirmed writes. The key counts as running until
    /// [`Self::end`].
    pub(super) fn take(&mut self, now: Instant) -> Option<(K, Vec<VersionedRef>)> {
        let (due, _) = self.line.first()?;
        if *due > now {
            return None;
        }
        let (_, key) = self.line.pop_first()?;
        let entry = self.entries.entry(key.clone()).or_default();
        (entry.running, entry.due) = (true, None);
        Some((key, std::mem::take(&mut entry.unconfirmed)))
    }

    /// Ends the reconciliation of `key` with `outcome`.
    pub(super) fn end(&mut self, key: &K, outcome: Outcome, now: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        entry.running = false;
        entry.unconfirmed = outcome.unconfirmed;
        let changed = entry.due.take();
        let mut again = outcome.again;
        if outcome.failed {
            let pause = BACKOFF.after(entry.failures);
            entry.failures = entry.failures.saturating_add(1);
            entry.rest = Some(now + pause);
            again = Some(pause);
        } else {
            (entry.failures, entry.rest) = (0, None);
        }
        if outcome.stale {
            let longest =
                if entry.conflicts < USUAL_CONFLICTS { MAX_PAUSE_AFTER_CONFLICT } else { MAX_PAUSE };
            let pause = BACKOFF.after(entry.conflicts).min(longest);
            entry.conflicts = entry.conflicts.saturating_add(1);
            // Not sooner either: without a change the conflict would be the same.
            again = Some(pause);
        } else {
            entry.conflicts = 0;
        }
        for due in changed.into_iter().chain(again.map(|pause| now + pause)) {
            self.set(key, due);
        }
        // An entry that is idle, or whose object is gone, is dropped: the next change creates it again.
        if self.entries.get(key).is_some_and(|entry| entry.due.is_none() && entry.unconfirmed.is_empty()) {
            self.entries.remove(key);
        }
    }

    /// When the next entry is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.line.first().map(|(due, _)| *due)
    }

    /// How many entries are due.
    pub(super) fn depth(&self, now: Instant) -> usize {
        self.line.iter().take_while(|(due, _)| *due <= now).count()
    }

    fn set(&mut self, key: &K, due: Instant) {
        let entry = self.entries.entry(key.clone()).or_default();
        let due = entry.rest.map_or(due, |rest| due.max(rest));
        match entry.due {
            Some(queued) if queued <= due => return,
            Some(queued) => drop(self.line.remove(&(queued, key.clone()))),
            None => {}
        }
        entry.due = Some(due);
        if !entry.running {
            self.line.insert((due, key.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::workloads::cache::{Key, Kind};

    fn key(name: &str) -> Key {
        Key { kind: Kind::Deployment, namespace: "shop".into(), name: name.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn many_events_are_one_reconcile_and_none_is_lost() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for _ in 0..5 {
            queue.enqueue(&key("a"), 1, now);
        }
        assert_eq!(queue.take(now), None, "it settles");
        let then = now + SETTLE;
        assert_eq!(queue.take(then).unwrap().0, key("a"));
        assert_eq!(queue.take(then), None, "once");
        queue.enqueue(&key("a"), 1, then);
        assert_eq!(queue.take(then + SETTLE), None, "never twice at once");
        queue.end(&key("a"), Outcome::default(), then);
        assert_eq!(queue.take(then + SETTLE).unwrap().0, key("a"), "what came meanwhile");
        queue.end(&key("a"), Outcome::default(), then);
        assert_eq!((queue.take(then + SETTLE * 9), queue.due()), (None, None));
        assert!(queue.entries.is_empty(), "nothing is kept of what is at rest");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_wait_longer_each_time_whatever_happens_and_success_forgets_them() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let failed = || Outcome { failed: true, ..Outcome::default() };
        queue.enqueue(&key("a"), 1, now);
        let mut pauses = Vec::new();
        for _ in 0..10 {
            now = queue.due().unwrap();
            queue.take(now).unwrap();
            queue.end(&key("a"), failed(), now);
            queue.enqueue(&key("a"), 1, now);
            pauses.push(queue.due().unwrap() - now);
        }
        assert_eq!(pauses[..3], [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]);
        assert_eq!(pauses[9], MAX_PAUSE);
        queue.enqueue(&key("a"), 2, now);
        assert_eq!(queue.due(), Some(now + SETTLE), "a new generation");
        now = queue.due().unwrap();
        queue.take(now).unwrap();
        queue.end(&key("a"), Outcome { again: Some(Duration::from_secs(9)), ..Outcome::default() }, now);
        assert_eq!(queue.due(), Some(now + Duration::from_secs(9)));
        queue.enqueue(&key("a"), 1, now);
        assert_eq!(queue.due(), Some(now + SETTLE), "sooner counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_is_requeued_soon_and_a_lasting_one_is_not_repeated_at_once() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        queue.enqueue(&key("a"), 1, now);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            now = queue.due().unwrap();
            queue.take(now).unwrap();
            let again = Some(Duration::from_secs(60));
            queue.end(&key("a"), Outcome { stale: true, again, ..Outcome::default() }, now);
            pauses.push(queue.due().unwrap() - now);
        }
        assert_eq!((pauses[0], pauses[9]), (FIRST_PAUSE, MAX_PAUSE_AFTER_CONFLICT));
        assert_eq!(pauses[11], MAX_PAUSE, "this is no other client's write");
        queue.enqueue(&key("a"), 1, now);
        assert_eq!(queue.due(), Some(now + SETTLE), "a change is not delayed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_rests_also_when_the_object_is_to_be_reconciled_at_once() {
        let (mut queue, mut now) = (Queue::default(), Instant::now());
        let at_once = |stale| Outcome { stale, again: Some(Duration::ZERO), ..Outcome::default() };
        queue.enqueue(&key("a"), 1, now);
        let mut pauses = Vec::new();
        for _ in 0..3 {
            now = queue.due().unwrap();
            queue.take(now).unwrap();
            queue.end(&key("a"), at_once(true), now);
            pauses.push(queue.due().unwrap() - now);
        }
        assert_eq!(pauses, [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]);
        now = queue.due().unwrap();
        queue.take(now).unwrap();
        queue.end(&key("a"), at_once(false), now);
        assert_eq!(queue.due(), Some(now), "there was no conflict");
    }

    #[tokio::test(start_paused = true)]
    async fn unconfirmed_writes_go_to_the_next_reconcile() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let pod = VersionedRef { name: "p".into(), uid: "u".into(), version: "1".into() };
        queue.enqueue(&key("a"), 1, now);
        queue.take(now + SETTLE).unwrap();
        queue.end(
            &key("a"),
            Outcome { failed: true, unconfirmed: vec![pod.clone()], ..Outcome::default() },
            now,
        );
        assert_eq!(queue.take(now + FIRST_PAUSE).unwrap().1, [pod]);
    }
}
