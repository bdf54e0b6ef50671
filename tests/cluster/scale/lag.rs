//! Measures how long a write of a pod takes to reach a watch: from the moment before the request is sent. A watch that
//! combines several versions into one counts for each of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;

/// The versions of a pod and when each was there.
type Versions = Vec<(u64, Instant)>;

#[derive(Default)]
struct Track {
    written: Versions,
    seen: [Versions; 2],
}

/// Which watch has seen a version.
#[derive(Clone, Copy, Debug)]
pub(super) enum Watch {
    /// One of all pods of the namespace.
    All,
    /// That of the agent of the pod's node.
    Node,
}

/// All writes and when they were seen, by the name of the pod. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Ledger(Arc<Mutex<HashMap<String, Track>>>);

impl Ledger {
    pub(super) fn clear(&self) {
        self.0.lock().unwrap().clear();
    }

    pub(super) fn wrote(&self, pod: &str, version: Option<&str>, sent: Instant) {
        self.0.lock().unwrap().entry(pod.to_owned()).or_default().written.push((parsed(version), sent));
    }

    pub(super) fn saw(&self, watch: Watch, pod: &str, version: Option<&str>) {
        let now = Instant::now();
        let mut tracks = self.0.lock().unwrap();
        let track = tracks.entry(pod.to_owned()).or_default();
        track.seen[watch as usize].push((parsed(version), now));
    }

    /// The times from each write to the watch, the shortest first. A write that has not been seen has the longest.
    pub(super) fn lags(&self, watch: Watch) -> Vec<Duration> {
        let tracks = self.0.lock().unwrap();
        let of = |track: &Track| {
            let seen = &track.seen[watch as usize];
            let lag = |(version, sent): &(u64, Instant)| {
                let at = seen.iter().filter(|(later, _)| later >= version).map(|(_, at)| *at).min();
                at.map_or(Duration::MAX, |at| at.saturating_duration_since(*sent))
            };
            track.written.iter().map(lag).collect::<Vec<_>>()
        };
        let mut lags: Vec<_> = tracks.values().flat_map(of).collect();
        lags.sort();
        lags
    }
}

/// The time that this share of all times does not exceed.
pub(super) fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

fn parsed(version: Option<&str>) -> u64 {
    version.unwrap().parse().unwrap()
}
