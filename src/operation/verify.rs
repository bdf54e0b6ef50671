//! Whether what was started deserves to be called running: it stays up, long enough, alone.

use jiff::{SignedDuration, Timestamp};

use crate::api::status::Action;
use crate::operation::answer::{Next, Waiting};
use crate::operation::outcome::Failure;
use crate::operation::replace::{ended, unclear_state};
use crate::operation::snapshot::{Snapshot, State};
use crate::operation::state::{Note, Operation, Target, later};

/// How long a swapped container is watched even when `minReadySeconds` asks for less: an image that dies at once
/// must not count as a success.
pub(super) const SWAP_SETTLES: SignedDuration = SignedDuration::from_millis(1000);
/// The same for a restart, whose image has run before.
const RESTART_SETTLES: SignedDuration = SignedDuration::from_millis(250);
/// How soon to look again while watching.
const WATCH: SignedDuration = SignedDuration::from_millis(50);

/// Whether the new lives have proven themselves.
pub(super) enum Verdict {
    /// Something is to be noted or awaited.
    Next(Next),
    /// One of them has not.
    Failed(Failure),
    /// All of them have.
    Proven,
}

pub(super) fn verify<'a>(
    operation: &Operation,
    targets: impl Iterator<Item = &'a Target>,
    snapshot: &Snapshot,
    now: Timestamp,
) -> Verdict {
    let mut wait: Option<Waiting> = None;
    for target in targets {
        let Some(reached) = &target.reached else { continue };
        let running = snapshot.running(&target.name);
        if running.len() > 1 {
            return Verdict::Failed(Failure::Duplicate {
                container: target.name.clone(),
                count: running.len(),
            });
        }
        let life = snapshot.by_id(&reached.to.container_id);
        match life {
            Some(life) if life.state == State::Running => {
                let least = if target.action == Action::Swap { SWAP_SETTLES } else { RESTART_SETTLES };
                // What ran before has nothing left to prove on the way back.
                let asked =
                    if operation.turned_back.is_some() { 0 } else { operation.request.min_ready_seconds };
                let settles = least.max(SignedDuration::from_secs(i64::from(asked)));
                let proven_at = later(life.started_at.unwrap_or(life.created_at), settles);
                if reached.ready_at.is_none() && now >= proven_at {
                    return Verdict::Next(Next::Note(Note::Proven(target.name.clone(), now)));
                }
                if reached.ready_at.is_none() {
                    let until = proven_at.min(later(now, WATCH));
                    wait.get_or_insert(Waiting { until, on: format!("{} to stay up", target.name) });
                }
            }
            Some(life) if life.state == State::Unknown => {
                wait.get_or_insert(unclear_state(target, now));
            }
            Some(life) => return Verdict::Failed(ended(operation, target, life)),
            None => {
                let what = "the new one was removed by somebody else".to_owned();
                return Verdict::Failed(Failure::Changed { container: target.name.clone(), what });
            }
        }
    }
    wait.map_or(Verdict::Proven, |waiting| Verdict::Next(Next::Wait(waiting)))
}
