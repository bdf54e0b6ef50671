//! Measures the time during which an operation could not progress: the runtime was unreachable, or this process did
//! not run.
//!
//! Must not use the wall clock: only the monotonic clock shows this time. A process that was suspended sees a gap
//! between two beats after it resumes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::SignedDuration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The interval at which a task records that this process runs.
const BEAT: Duration = Duration::from_millis(500);
/// How late a beat may be on a busy node without counting as lost time.
const LATE: Duration = Duration::from_secs(2);

/// Counts the lost time of one operation.
#[derive(Debug)]
pub(super) struct LostTime {
    beats: Arc<Mutex<Beats>>,
    task: JoinHandle<()>,
    /// The time since which the runtime has not answered.
    away_since: Option<Instant>,
}

#[derive(Debug)]
struct Beats {
    last: Instant,
    lost: Duration,
}

impl Beats {
    fn beat(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.last);
        if passed > BEAT + LATE {
            self.lost = self.lost.saturating_add(passed.saturating_sub(BEAT));
        }
        self.last = now;
    }
}

impl LostTime {
    pub(super) fn begin() -> Self {
        let beats = Arc::new(Mutex::new(Beats { last: Instant::now(), lost: Duration::ZERO }));
        let noted = Arc::clone(&beats);
        let task = tokio::spawn(async move {
            loop {
                sleep(BEAT).await;
                locked(&noted).beat(Instant::now());
            }
        });
        Self { beats, task, away_since: None }
    }

    /// Records that the runtime did not answer a request made at `asked`.
    pub(super) fn not_seen(&mut self, asked: Instant) {
        self.away_since.get_or_insert(asked);
    }

    /// Records that the runtime has answered; returns the time lost since its previous answer.
    pub(super) fn take(&mut self) -> Option<SignedDuration> {
        let away = self.away_since.take().map_or(Duration::ZERO, |since| since.elapsed());
        let mut beats = locked(&self.beats);
        beats.beat(Instant::now());
        let lost = std::mem::take(&mut beats.lost).max(away);
        SignedDuration::try_from(lost).ok().filter(SignedDuration::is_positive)
    }
}

fn locked(beats: &Mutex<Beats>) -> std::sync::MutexGuard<'_, Beats> {
    beats.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for LostTime {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_between_beats_is_lost_and_a_late_beat_is_not() {
        let begun = Instant::now();
        let mut beats = Beats { last: begun, lost: Duration::ZERO };
        beats.beat(begun + BEAT);
        beats.beat(begun + BEAT * 2 + LATE);
        assert_eq!(beats.lost, Duration::ZERO);
        beats.beat(begun + BEAT * 3 + LATE + Duration::from_secs(3600));
        assert_eq!(beats.lost, Duration::from_secs(3600));
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_lost_from_the_first_question_without_an_answer() {
        let mut lost = LostTime::begin();
        let asked = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        lost.not_seen(asked);
        lost.not_seen(Instant::now());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(lost.take(), Some(SignedDuration::from_secs(2)));
        assert_eq!(lost.take(), None);
    }
}
