//! Bounds what the guard tells: whoever reaches the port has it look at a pod as often as they like, and each time it would
//! write an event and a log line.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Of one pod for one reason: so many at once, and one more after each of these.
const OF_POD: (u32, Duration) = (3, Duration::from_secs(60));
/// Of all: a node with many guarded pods is drained, and each is told of.
const OF_ALL: (u32, Duration) = (100, Duration::from_secs(1));
/// Pods and reasons that are remembered.
const PODS: usize = 4096;
/// What was left out is told of this often.
const PAUSE: Duration = Duration::from_secs(60);

/// What may be told still. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Limit(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    all: Bucket,
    pods: HashMap<(String, String), Bucket>,
    left_out: u64,
    reported: Option<Instant>,
}

/// How much of a burst is used up, and when that was so.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket(Option<(Duration, Instant)>);

impl Bucket {
    /// What is used up still, as the time after which nothing is.
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
    /// True when something about the pod with this uid may be told for this reason; then it counts.
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
                tracing::warn!(left_out, "events of guarded pods are left out: there are too many");
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
    async fn one_pod_and_all_pods_are_told_of_so_often() {
        let limit = Limit::default();
        let admitted = |uid: &str, times: u32| (0..times).filter(|_| limit.admits(uid, "Passed")).count();
        assert_eq!(admitted("a", 50), 3);
        assert!(limit.admits("a", "Expired"), "one reason hides another");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(admitted("a", 50), 1);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(admitted("a", 50), 3);
        // Another pod is another one, up to what is told of all.
        assert_eq!((0..500).filter(|number| limit.admits(&format!("b-{number}"), "Passed")).count(), 97);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!((0..500).filter(|number| limit.admits(&format!("c-{number}"), "Passed")).count(), 10);
        // What is remembered is bounded, and is forgotten.
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
