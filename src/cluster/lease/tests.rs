//! Tests the decision about a lease, and that two processes that follow it never lead at the same time.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn seen(holder: &str, changed: u64) -> ObservedLease {
    ObservedLease {
        holder: holder.into(),
        duration: DURATION,
        changed: SECOND * u32::try_from(changed).unwrap(),
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn nobodys_lease_is_taken_and_somebodys_is_waited_for() {
    assert_eq!(next_action(None, "a", None, at(0)), LeaseAction::Acquire);
    assert_eq!(next_action(Some(&seen("", 0)), "a", None, at(0)), LeaseAction::Acquire);
    let others = seen("b", 100);
    assert!(matches!(next_action(Some(&others), "a", None, at(100)), LeaseAction::Wait(_)));
    assert_eq!(next_action(Some(&others), "a", None, at(114)), LeaseAction::Wait(SECOND));
    assert_eq!(next_action(Some(&others), "a", None, at(115)), LeaseAction::Acquire);
    // The identity is ours, but the lease is not held: an earlier process had it.
    assert!(matches!(next_action(Some(&seen("a", 100)), "a", None, at(101)), LeaseAction::Wait(_)));
    // A holder that writes a shorter duration is given the full duration.
    let hasty = ObservedLease { duration: SECOND, ..seen("b", 100) };
    assert!(matches!(next_action(Some(&hasty), "a", None, at(105)), LeaseAction::Wait(_)));
}

#[test]
fn what_is_held_is_renewed_and_lost_in_time() {
    let mine = seen("a", 100);
    assert_eq!(next_action(Some(&mine), "a", Some(at(100)), at(101)), LeaseAction::Wait(SECOND));
    assert_eq!(next_action(Some(&mine), "a", Some(at(100)), at(102)), LeaseAction::Renew);
    assert_eq!(next_action(Some(&mine), "a", Some(at(100)), at(109)), LeaseAction::Renew);
    assert_eq!(next_action(Some(&mine), "a", Some(at(100)), at(110)), LeaseAction::Lost);
    assert_eq!(next_action(Some(&seen("b", 101)), "a", Some(at(100)), at(101)), LeaseAction::Lost);
    assert_eq!(next_action(None, "a", Some(at(100)), at(101)), LeaseAction::Lost);
}

/// The lease at the API server: its holder, and the number of writes.
#[derive(Clone, Default)]
struct FakeServer {
    holder: String,
    version: u64,
}

/// A candidate with its own clock, which started at another moment.
struct Candidate {
    name: &'static str,
    skew: Duration,
    observed: u64,
    seen: Option<ObservedLease>,
    held: Option<Duration>,
}

impl Candidate {
    fn read(&mut self, server: &FakeServer, now: Duration) {
        if server.version == 0 {
            self.seen = None;
        } else if self.seen.is_none() || self.observed != server.version {
            self.observed = server.version;
            self.seen = Some(ObservedLease {
                holder: server.holder.clone(),
                duration: DURATION,
                changed: now + self.skew,
            });
        }
    }

    /// True while the candidate considers itself the leader.
    fn leads(&self, now: Duration) -> bool {
        self.held.is_some()
            && !matches!(
                next_action(self.seen.as_ref(), self.name, self.held, now + self.skew),
                LeaseAction::Lost
            )
    }

    /// One step. `reaches`: whether the candidate reaches the API server.
    fn step(&mut self, server: &mut FakeServer, now: Duration, reaches: bool) {
        match next_action(self.seen.as_ref(), self.name, self.held, now + self.skew) {
            LeaseAction::Lost => self.held = None,
            LeaseAction::Wait(_) | LeaseAction::Acquire | LeaseAction::Renew if !reaches => {}
            LeaseAction::Wait(_) => self.read(server, now),
            LeaseAction::Acquire | LeaseAction::Renew => {
                let is_observed = self.observed == server.version;
                if is_observed {
                    server.holder = self.name.to_owned();
                    server.version += 1;
                    self.held = Some(now + self.skew);
                }
                self.read(server, now);
            }
        }
    }
}

proptest! {
    /// Whichever candidates are cut off, and however much their clocks differ, two never lead at once.
    #[test]
    fn never_two_lead(
        skews in prop::array::uniform3(0u64..1_000_000),
        cuts in prop::collection::vec(prop::array::uniform3(prop::bool::weighted(0.6)), 10..60),
    ) {
        let candidate = |(name, skew)| Candidate { name, skew: at(skew), observed: 0, seen: None, held: None };
        let mut all: Vec<_> = ["a", "b", "c"].into_iter().zip(skews).map(candidate).collect();
        let mut server = FakeServer::default();
        let mut led = false;
        // Each part lasts three seconds, in steps of half a second.
        for (part, reach) in cuts.iter().enumerate() {
            for step in 0..6u32 {
                let now = SECOND * 3 * u32::try_from(part).unwrap() + SECOND / 2 * step;
                for (candidate, reaches) in all.iter_mut().zip(reach) {
                    candidate.step(&mut server, now, *reaches);
                }
                let leaders = all.iter().filter(|candidate| candidate.leads(now)).count();
                prop_assert!(leaders <= 1, "{leaders} lead at {now:?}");
                led |= leaders == 1;
            }
        }
        prop_assert!(led || cuts.iter().all(|reach| !reach.contains(&true)));
    }
}
