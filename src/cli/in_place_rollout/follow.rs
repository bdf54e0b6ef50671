//! Follows a rollout until it has ended or waits for a person. Reads only; never changes the rollout.
//!
//! The loop reads the events of the watch itself and not kube's `watch_object`, which reports a deletion without the
//! object: the last state of a deleted rollout says whether the rollout had ended, and so decides the exit code.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::pending;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use tokio::time::{Instant, sleep_until};

use crate::api::in_place_rollout::InPlaceRollout;
use crate::cli::cluster::Failed;
use crate::cli::exit::Exit;
use crate::cli::in_place_rollout::names::RolloutName;
use crate::cli::in_place_rollout::server::RolloutClient;
use crate::cli::in_place_rollout::table::{ProgressView, Row, Rows};
use crate::cli::in_place_rollout::verdict::verdict;
use crate::process::clock;
use crate::process::signals::Interrupt;

/// A running controller reconciles a new rollout within this time.
const LOOK: Duration = Duration::from_secs(15);
/// Interval at which a terminal is redrawn when only the time has changed.
const FRAME: Duration = Duration::from_millis(250);
/// The time limit that is used if there is none.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Result of following a rollout.
pub(super) struct End {
    pub(super) rollout: InPlaceRollout,
    pub(super) exit: Exit,
    /// The reason, where the rollout's status does not contain it.
    pub(super) note: Option<String>,
}

/// Follows the rollout until it has ended, waits for a person, is deleted, the time is over, or Ctrl-C is
/// pressed.
pub(super) async fn follow(
    server: &RolloutClient,
    first: InPlaceRollout,
    wait_limit: Option<Duration>,
    interrupt: &mut Interrupt,
) -> Result<End, Failed> {
    let name = RolloutName(first.metadata.name.clone().unwrap_or_default());
    let uid = first.metadata.uid.clone().unwrap_or_default();
    let begun = Instant::now();
    let until = begun + wait_limit.unwrap_or(FOREVER);
    let mut hint_at = Some(begun + LOOK);
    let mut changes = pin!(server.watch(&name));
    let mut progress_view = ProgressView::new(name.clone(), server.flags.clone());
    // The rollout is followed without a table of its pods as well.
    let mut pods = server.watch_pods(&first).await.unwrap_or_else(|failed| {
        progress_view.remark(&format!("inplace: the pods are not shown: {failed}"));
        pending().boxed()
    });
    let (mut latest, mut listed, mut away, mut blind) = (first, false, false, false);
    let (mut rows, mut coming) = (Rows::new(), Rows::new());
    let end = |rollout, exit, note: Option<String>| Ok(End { rollout, exit, note });
    loop {
        progress_view.show(&latest, &rows, clock::now());
        if let Some(exit) = verdict(&latest, &server.flags).end {
            return end(latest, exit, None);
        }
        let frame = if progress_view.is_live() { Instant::now() + FRAME } else { until };
        let event = tokio::select! {
            event = changes.next() => event,
            Some(event) = pods.next() => {
                match event {
                    Ok(event) => {
                        blind = false;
                        take_in(&mut rows, &mut coming, event, &uid);
                    }
                    Err(error) => {
                        if !blind {
                            progress_view.remark(&format!("inplace: the watch of the pods failed, retrying: {error}"));
                        }
                        blind = true;
                    }
                }
                continue;
            }
            () = sleep_until(frame), if frame < until => continue,
            () = sleep_until(hint_at.unwrap_or(until)), if hint_at.is_some() => {
                hint_at = None;
                if latest.status.as_ref().is_none_or(|status| status.observed_generation == 0) {
                    progress_view.remark(&format!(
                        "{name}: the controller has not observed it for {} s: check that the inplace controller is \
                         running",
                        LOOK.as_secs()
                    ));
                }
                continue;
            }
            () = sleep_until(until) => {
                return end(latest, Exit::TimedOut, Some("has not ended within the given time; it continues".to_owned()));
            }
            _ = interrupt.recv() => {
                let note = format!(
                    "stopped waiting; the rollout continues. Run `inplace rollout status ipr/{}{1}` to see the \
                     current state, `inplace cancel ipr/{0}{1}` to end it",
                    name.0, server.flags
                );
                return end(latest, Exit::Interrupted, Some(note));
            }
        };
        let gone = "was deleted; no further pod is started";
        let (next, deleted) = match event {
            Some(Err(error)) => {
                if !away {
                    progress_view
                        .remark(&format!("inplace: the watch of the rollout failed, retrying: {error}"));
                }
                away = true;
                continue;
            }
            Some(Ok(Event::Init)) => {
                listed = false;
                continue;
            }
            Some(Ok(Event::InitDone)) if listed => continue,
            // The complete list does not contain the rollout.
            None | Some(Ok(Event::InitDone)) => return end(latest, Exit::Interrupted, Some(gone.to_owned())),
            Some(Ok(Event::Apply(next) | Event::InitApply(next))) => (next, false),
            Some(Ok(Event::Delete(next))) => (next, true),
        };
        (listed, away) = (true, false);
        if next.metadata.uid.as_deref() != Some(uid.as_str()) {
            return end(latest, Exit::Interrupted, Some(gone.to_owned()));
        }
        latest = next;
        // A rollout that has ended may be deleted at once; that is not an error.
        if deleted && verdict(&latest, &server.flags).end.is_none() {
            return end(latest, Exit::Interrupted, Some(gone.to_owned()));
        }
    }
}

/// Applies an event of the pods' watch to the rows.
fn take_in(rows: &mut Rows, coming: &mut Rows, event: Event<Pod>, uid: &str) {
    let keyed = |pod: Pod| Row::of(&pod, uid).map(|row| (pod.metadata.name.unwrap_or_default(), row));
    match event {
        Event::Init => coming.clear(),
        Event::InitApply(pod) => coming.extend(keyed(pod)),
        Event::InitDone => *rows = std::mem::take(coming),
        Event::Apply(pod) => rows.extend(keyed(pod)),
        Event::Delete(pod) => drop(rows.remove(pod.metadata.name.as_deref().unwrap_or_default())),
    }
}
