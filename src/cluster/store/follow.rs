//! Keeps a view of objects up to date: list, watch, and again from where it broke off.
//!
//! kube's own watcher does not tell when a broken watch is open again; here that decides whether the view is current.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::core::WatchEvent;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::cluster::error::Error;
use crate::cluster::jitter;
use crate::cluster::server::{Age, Listed, Selection};
use crate::cluster::store::quota::Quota;
use crate::cluster::store::{Cached, Shared};
use crate::operation::effect::Class;
use crate::process::log::chain;

/// The server sends a bookmark every minute where nothing happens. Silence for longer is a connection that is dead.
const SILENCE: Duration = Duration::from_secs(90);
/// A watch that ran this long was a good one: the next one is tried at once.
const STEADY: Duration = Duration::from_secs(5);
/// Pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How soon a kind that the API server does not know is looked for again.
const UNTIL_INSTALLED: Duration = Duration::from_secs(60);
/// So many failures in a row, and the place in the history is given up, and after as many again the newest version that was
/// seen: a server that was set back in time would refuse both for ever.
const TRUSTED_FAILURES: u32 = 3;

/// Runs until told to stop. From then on nothing is current any more.
pub(super) async fn run<T: Cached>(shared: Arc<Shared<T>>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(&shared) => {}
    }
    shared.set_current(false);
}

/// Where the following stands.
struct Follower<'a, T> {
    shared: &'a Shared<T>,
    /// What is followed, in the version that the API server has.
    selection: Selection,
    /// Where a watch can go on; `None`: nowhere, list first.
    version: Option<String>,
    /// The newest version that was seen.
    newest: Option<String>,
    /// Lists that failed since the last good one.
    failed_lists: u32,
    /// When the present watch was opened.
    opened: Option<Instant>,
    /// Attempts since the last good one.
    failures: u32,
    /// Whether the log holds that the server is not heard.
    reported: bool,
    /// Whether the API server did not know the kind at all when it was last asked.
    absent: bool,
}

async fn follow<T: Cached>(shared: &Shared<T>) {
    let selection = shared.selection.clone();
    let mut follower = Follower {
        shared,
        selection,
        version: None,
        newest: None,
        failed_lists: 0,
        opened: None,
        failures: 0,
        reported: false,
        absent: false,
    };
    loop {
        let ended = follower.hear().await;
        shared.set_current(false);
        follower.ended(ended);
        sleep(if follower.absent { UNTIL_INSTALLED } else { pause(follower.failures) }).await;
        follower.failures = follower.failures.saturating_add(1);
    }
}

impl<T: Cached> Follower<'_, T> {
    /// One watch, after a list where there is no version to go on from. Returns when it has ended.
    async fn hear(&mut self) -> Result<(), Error> {
        let server = &self.shared.server;
        if self.version.is_none() {
            let mut listed = self.list().await;
            if T::OLDER.is_some() && listed.as_ref().is_err_and(|error| error.class() == Class::Gone) {
                let group = T::group(&());
                let older = server.is_older(&group);
                server.set_older(group, !older);
                listed = self.list().await;
            }
            self.learn_absence(listed.as_ref().err());
            if self.absent {
                self.shared.replace(Vec::new());
                return Ok(());
            }
            self.failed_lists = if listed.is_err() { self.failed_lists.saturating_add(1) } else { 0 };
            let listed = listed?;
            self.shared.replace(listed.items);
            // It is believed also where it is older: then it is the newest that there is.
            self.newest = Some(listed.version.clone());
            self.version = Some(listed.version);
        }
        let from = self.version.clone().unwrap_or_default();
        let mut events = pin!(server.watch::<T>(&self.selection, &from).await?);
        self.open();
        while let Ok(event) = timeout(SILENCE, events.try_next()).await {
            let Some(event) = event? else { return Ok(()) };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    self.advance(object.resource_version());
                    self.shared.put(object);
                }
                WatchEvent::Deleted(object) => {
                    self.advance(object.resource_version());
                    self.shared.remove(&object.key(), object.uid().as_deref());
                }
                WatchEvent::Bookmark(mark) => self.advance(Some(mark.metadata.resource_version)),
                WatchEvent::Error(status) => {
                    let doing = format!("watching {}", self.selection.what);
                    return Err(Error::of(&doing, kube::Error::Api(status)));
                }
            }
        }
        Ok(())
    }

    /// All of them, in the version that the server had last.
    async fn list(&mut self) -> Result<Listed<T>, Error> {
        let server = &self.shared.server;
        self.selection.version = T::OLDER.filter(|_| server.is_older(&T::group(&())));
        let mut quota = Quota::default();
        let kept = |object: &T| quota.admits(&T::kind(&()), object.share());
        server.list_of_age(&self.selection, &self.age(), kept).await
    }

    /// How old the next list may be: one that took back what was seen would look like somebody's change.
    fn age(&self) -> Age {
        if !self.selection.from_memory {
            return Age::Newest;
        }
        match self.newest.as_ref() {
            None => Age::Any,
            // Answers to writes may be newer than what the watch has brought.
            Some(newest) if self.failed_lists < TRUSTED_FAILURES => {
                Age::NotOlderThan(self.shared.newest_after(newest))
            }
            Some(_) => Age::Newest,
        }
    }

    fn open(&mut self) {
        self.opened = Some(Instant::now());
        self.shared.set_current(true);
        if std::mem::take(&mut self.reported) {
            tracing::info!("the API server is heard again about {}", self.shared.selection.what);
        }
    }

    /// A kind that the API server does not know is nobody's failure: its definition may come later. Told once.
    fn learn_absence(&mut self, error: Option<&Error>) {
        let absent = error.is_some_and(|error| error.class() == Class::Gone);
        if absent != std::mem::replace(&mut self.absent, absent) {
            let what = &self.shared.selection.what;
            if absent {
                tracing::warn!(
                    "there can be no {what}: the API server does not know the kind {}. Apply what `inplace crds` prints; \
                     it is looked for every minute",
                    T::kind(&())
                );
            } else {
                tracing::info!("there can be {what} now");
            }
        }
    }

    fn advance(&mut self, to: Option<String>) {
        if let Some(to) = to.filter(|to| !to.is_empty()) {
            self.newest = Some(to.clone());
            self.version = Some(to);
        }
    }

    /// What the end of an attempt means for the next one.
    fn ended(&mut self, how: Result<(), Error>) {
        if self.opened.take().is_some_and(|at| at.elapsed() >= STEADY) {
            self.failures = 0;
        }
        let Err(error) = how else { return };
        if !error.class().is_away() || self.failures >= TRUSTED_FAILURES {
            self.version = None;
        }
        // The first failure may be a server that restarts: told is what trying again did not help.
        if self.failures > 0 && !std::mem::replace(&mut self.reported, true) {
            let what = &self.shared.selection.what;
            tracing::warn!("the API server is not heard about {what}: {}", chain(&error));
        }
    }
}

/// None at first, then doubling, each between half and whole: agents that lost the same server must not come back as
/// one.
fn pause(failures: u32) -> Duration {
    let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
    let whole = FIRST_PAUSE.saturating_mul(1 << doublings.min(10)).min(LONGEST_PAUSE);
    jitter::half_at_least(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_limit_and_differ() {
        assert_eq!(pause(0), Duration::ZERO);
        for (failures, longest) in [(1, 200), (2, 400), (4, 1600), (7, 10_000), (u32::MAX, 10_000)] {
            let longest = Duration::from_millis(longest);
            let pauses: Vec<_> = (0..50).map(|_| pause(failures)).collect();
            assert!(pauses.iter().all(|pause| (longest / 2..=longest).contains(pause)), "{pauses:?}");
            assert!(pauses.iter().any(|pause| *pause != pauses[0]));
        }
    }
}
