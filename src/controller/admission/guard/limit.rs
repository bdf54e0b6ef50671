//! Limits the rate of the guard's events and log lines: a client that can reach the port can cause any number of
//! reviews of a pod, and each of them would write an event and a log line. Must not affect a verdict.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// For one pod and one reason: a burst, and the time after which one more is admitted.
const OF_POD: (u32, Duration) = (3, Duration::from_secs(60));
/// For all pods together: when a node with many guarded pods is drained, each pod gets its events.
const OF_ALL: (u32, Duration) = (100, Duration::from_secs(1));
/// Pairs of pod and reason that are remembered.
const PODS: usize = 4096;
/// Interval of the log line about omitted reports.
const PAUSE: Duration = Duration::from_secs(60);

/// The budget for reports. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Limit(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    all: Bucket,
    pods: HashMap<(String, String), Bucket>,
    left_out: u64,
    reported: Option<Instant>,
}

/// The used part of a burst, and when it was computed.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Option<(Duration, Instant)>);

impl Bucket {
    /// The part that is still used, as the time until the bucket is empty.
    fn used(self) -> Duration {
        self.0.map(|(used, at)| used.saturating_sub(at.elapsed())).unwrap_or_default()
    }

    fn is_full(self, (burst, each): (u32, Duration)) -> bool {
        self.used() + each > each * burst
    }

    fn take(&mut self, (_, each): (u32, Duration)) {
        self.0 = Some((self.used() + each, Instant::now()));
    }
}

impl Limit {
    /// True if a report about the pod with this uid and reason is admitted; it is then counted.
    pub(super) fn admits(&self, uid: &str, reason: &str) -> bool {
        let key = (uid.to_owned(), reason.to_owned());
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.pods.len() >= PODS {
            state.pods.retain(|_, bucket| bucket.used() > Duration::ZERO);
        }
        let of_pod = state.pods.get(&key).copied();
        let is_new = of_pod.is_none() && state.pods.len() >= PODS;
        if is_new || of_pod.unwrap_or_default().is_full(OF_POD) || state.all.is_full(OF_ALL) {
            state.left_out += 1;
            if state.reported.is_none_or(|at| at.elapsed() >= PAUSE) {
                state.reported = Some(Instant::now());
                let left_out = std::mem::take(&mut state.left_out);
                tracing::warn!(left_out, "too many events of guarded pods: some were not written");
            }
            return false;
        }
        state.all.take(OF_ALL);
        state.pods.entry(key).or_default().take(OF_POD);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_pod_and_all_pods_are_reported_of_so_often() {
        let limit = Limit::default();
        let admitted = |uid: &str, times: u32| (0..times).filter(|_| limit.admits(uid, "Passed")).count();
        assert_eq!(admitted("a", 50), 3);
        assert!(limit.admits("a", "Expired"), "one reason hides another");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(admitted("a", 50), 1);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(admitted("a", 50), 3);
        // Pods are independent of each other, up to the limit for all.
        assert_eq!((0..500).filter(|number| limit.admits(&format!("b-{number}"), "Passed")).count(), 97);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((0..500).filter(|number| limit.admits(&format!("c-{number}"), "Passed")).count(), 10);
        // The memory is bounded, and entries expire.
        for _ in 0..50 {
            tokio::time::advance(Duration::from_secs(100)).await;
            for number in 0..200 {
                limit.admits(&format!("{:?}-{number}", Instant::now()), "Passed");
            }
        }
        assert!(limit.0.lock().unwrap().pods.len() <= PODS);
        tokio::time::advance(Duration::from_secs(200)).await;
        assert_eq!(admitted("a", 50), 3);
    }
}
