//! Slots limit how many operations of this node create and start containers at the same moment: as many as the
//! node has processors, and at least two. With more, no operation would end earlier, and each container would be down for
//! as long as all of them take together.
//!
//! An operation that has a container down acquires a slot before all operations that have none down. A slot that is held
//! for longer than a second no longer counts, so a call that hangs does not delay other pods for longer. Does not
//! decide which effects need a slot; see `concurrency`.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// How long a slot counts, and how long an operation with a container down waits for one.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// The least number of slots: one operation waits for the disk while another one uses a processor.
const FEWEST: usize = 2;

/// Whether an operation has a container down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// A container is down until the operation continues.
    Down,
    /// All containers run.
    Up,
}

/// All slots of the node. Clones share them.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    count: usize,
    state: Mutex<State>,
    changed: Notify,
}

/// Operations are identified by the number of their [`Slot`].
#[derive(Debug, Default)]
struct State {
    last_number: u64,
    /// The slots in use, and until when each of them counts.
    held: Vec<(u64, Instant)>,
    waiting_down: VecDeque<u64>,
    waiting_up: VecDeque<u64>,
}

/// The slot of one operation, which acquires and releases it many times. Without a limit it is always held.
#[derive(Clone, Debug, Default)]
pub struct Slot(Option<Arc<Numbered>>);

#[derive(Debug)]
struct Numbered {
    shared: Arc<Shared>,
    number: u64,
}

impl Slots {
    /// As many slots as this node has processors. The limit on the processor time of this process does not matter: the
    /// runtime does the work.
    pub fn of_node() -> Self {
        let processors = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or_default();
        Self::new(usize::try_from(processors).unwrap_or_default().max(FEWEST))
    }

    fn new(count: usize) -> Self {
        Self(Arc::new(Shared { count, state: Mutex::default(), changed: Notify::new() }))
    }

    /// The slot for another operation. It is not acquired yet.
    pub fn slot(&self) -> Slot {
        let shared = Arc::clone(&self.0);
        let number = {
            let mut state = shared.state();
            state.last_number += 1;
            state.last_number
        };
        Slot(Some(Arc::new(Numbered { shared, number })))
    }
}

impl Slot {
    /// Acquires the slot if it is free and no other operation goes first. True if it is held now.
    pub(super) fn try_acquire(&self, urgency: Urgency) -> bool {
        let Some(own) = &self.0 else { return true };
        own.shared.state().acquire(own.number, urgency, own.shared.count, Instant::now())
    }

    /// Waits for the slot, in first-come order among the operations of the same urgency. With a container down, waits no
    /// longer than [`LONGEST`] and then continues as if the slot were held. Cancel-safe; the place in the order is then lost.
    pub(super) async fn acquire(&self, urgency: Urgency) {
        let Some(own) = &self.0 else { return };
        let place = Place::take(own, urgency);
        match urgency {
            Urgency::Up => own.wait(urgency).await,
            Urgency::Down => {
                if timeout(LONGEST, own.wait(urgency)).await.is_err() {
                    own.shared.state().held.push((own.number, Instant::now() + LONGEST));
                }
            }
        }
        drop(place);
    }

    /// Releases the slot if it is held.
    pub(super) fn release(&self) {
        if let Some(own) = &self.0 {
            own.release();
        }
    }

    /// Releases the slot after `time`, unless it is released or acquired before.
    pub(super) fn release_after(&self, time: Duration) {
        let Some(own) = &self.0 else { return };
        let end = Instant::now() + time;
        for (number, until) in &mut own.shared.state().held {
            if *number == own.number {
                *until = end.min(*until);
            }
        }
        own.shared.changed.notify_waiters();
    }
}

impl Numbered {
    async fn wait(&self, urgency: Urgency) {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            // From here on no notification is missed.
            changed.as_mut().enable();
            let next_end = {
                let mut state = self.shared.state();
                if state.acquire(self.number, urgency, self.shared.count, Instant::now()) {
                    return;
                }
                state.held.iter().map(|(_, until)| *until).min()
            };
            match next_end {
                Some(end) => drop(timeout(end.saturating_duration_since(Instant::now()), changed).await),
                None => changed.await,
            }
        }
    }

    fn release(&self) {
        let mut state = self.shared.state();
        let before = state.held.len();
        state.held.retain(|(number, _)| *number != self.number);
        if state.held.len() < before {
            self.shared.changed.notify_waiters();
        }
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        self.release();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Acquires a slot for operation `number` if it is its turn. True if it holds one now.
    fn acquire(&mut self, number: u64, urgency: Urgency, count: usize, now: Instant) -> bool {
        self.held.retain(|(_, until)| *until > now);
        if self.held.iter().any(|(holder, _)| *holder == number) {
            return true;
        }
        let is_first = |waiting: &VecDeque<u64>| waiting.front().is_none_or(|first| *first == number);
        let goes_first = match urgency {
            Urgency::Down => is_first(&self.waiting_down),
            Urgency::Up => self.waiting_down.is_empty() && is_first(&self.waiting_up),
        };
        let acquires = goes_first && self.held.len() < count;
        if acquires {
            self.held.push((number, now + LONGEST));
        }
        acquires
    }

    fn waiting(&mut self, urgency: Urgency) -> &mut VecDeque<u64> {
        match urgency {
            Urgency::Down => &mut self.waiting_down,
            Urgency::Up => &mut self.waiting_up,
        }
    }
}

/// The place of an operation in the order, until it is dropped.
struct Place<'a> {
    own: &'a Numbered,
    urgency: Urgency,
}

impl<'a> Place<'a> {
    fn take(own: &'a Numbered, urgency: Urgency) -> Self {
        own.shared.state().waiting(urgency).push_back(own.number);
        Self { own, urgency }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.own.shared.state().waiting(self.urgency).retain(|number| *number != self.own.number);
        self.own.shared.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_operation_with_a_container_down_goes_first() {
        let slots = Slots::new(1);
        let (first, up, down) = (slots.slot(), slots.slot(), slots.slot());
        assert!(first.try_acquire(Urgency::Up) && first.try_acquire(Urgency::Down));
        let (tx, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (slot, urgency) in [(up, Urgency::Up), (down, Urgency::Down)] {
            let tx = tx.clone();
            tokio::spawn(async move {
                slot.acquire(urgency).await;
                tx.send(urgency).unwrap();
                slot.release();
            });
            tokio::task::yield_now().await;
        }
        let late = slots.slot();
        first.release();
        assert!(!late.try_acquire(Urgency::Up), "it would overtake those that wait");
        assert_eq!(order.recv().await, Some(Urgency::Down));
        assert_eq!(order.recv().await, Some(Urgency::Up));
        assert!(late.try_acquire(Urgency::Up));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_that_is_not_released_counts_for_a_second() {
        let slots = Slots::new(1);
        let (hangs, waits, shortened) = (slots.slot(), slots.slot(), slots.slot());
        assert!(hangs.try_acquire(Urgency::Up));
        let began = Instant::now();
        waits.acquire(Urgency::Up).await;
        assert_eq!(began.elapsed().as_secs(), LONGEST.as_secs());
        waits.release_after(Duration::from_millis(100));
        shortened.acquire(Urgency::Up).await;
        assert!(began.elapsed() < LONGEST + Duration::from_millis(110), "{:?}", began.elapsed());
        assert!(!waits.try_acquire(Urgency::Down));
    }

    #[tokio::test(start_paused = true)]
    async fn a_container_that_is_down_waits_for_a_second_at_most() {
        let slots = Slots::new(1);
        let others: Vec<_> = (0..3).map(|_| slots.slot()).collect();
        // They are ahead, and each one holds the slot until it no longer counts.
        let ahead: Vec<_> = others
            .iter()
            .cloned()
            .map(|slot| tokio::spawn(async move { slot.acquire(Urgency::Down).await }))
            .collect();
        tokio::task::yield_now().await;
        let (last, began) = (slots.slot(), Instant::now());
        last.acquire(Urgency::Down).await;
        assert!(began.elapsed() <= LONGEST + Duration::from_millis(10), "{:?}", began.elapsed());
        assert!(last.try_acquire(Urgency::Down));
        for task in ahead {
            task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_given_up_with_the_wait_and_a_slot_with_its_operation() {
        let slots = Slots::new(1);
        let (first, second, third) = (slots.slot(), slots.slot(), slots.slot());
        assert!(first.try_acquire(Urgency::Up));
        assert!(timeout(Duration::from_millis(10), second.acquire(Urgency::Down)).await.is_err());
        drop(first);
        assert!(third.try_acquire(Urgency::Up));
        third.release();
        assert!(Slot::default().try_acquire(Urgency::Up));
    }
}
