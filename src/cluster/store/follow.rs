//! Updates a cache of objects: list, watch, and watch again from the last version. Must not interpret the objects.
//!
//! kube's own watcher does not report when a broken watch is open again; here this decides whether the cache is
//! current.

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
use crate::failure::Class;
use crate::process::backoff::Backoff;
use crate::process::log::chain;

/// Most servers send a bookmark every minute if nothing happens. After a longer silence the connection is considered
/// dead, and the server is asked for its version: one that was restored from an older backup accepts a watch from a
/// version that it does not have yet, and sends nothing.
const SILENCE: Duration = Duration::from_secs(90);
/// After a watch that lasted this long, the next one is tried at once.
const STEADY: Duration = Duration::from_secs(5);
/// Pauses between attempts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
/// The interval at which a missing kind is looked for.
const UNTIL_INSTALLED: Duration = Duration::from_secs(60);
/// The pause before the second look for a kind. A server that is starting does not have custom kinds for a moment.
const SECOND_LOOK: Duration = Duration::from_secs(3);
/// After this many failures in a row, the version to watch from is dropped; after as many failed lists, the newest
/// version that was seen is dropped as well: a server that was restored from an older backup would refuse such a list
/// for ever.
const TRUSTED_FAILURES: u32 = 3;

/// Runs until `stop`. After that the cache is not current.
pub(super) async fn run<T: Cached>(shared: Arc<Shared<T>>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(&shared) => {}
    }
    shared.set_current(false);
}

/// The state of one follower.
struct Follower<'a, T> {
    shared: &'a Shared<T>,
    /// The objects to follow, in the API version that the server has.
    selection: Selection,
    /// The version from which a watch can continue; `None`: list first.
    version: Option<String>,
    /// The newest version that was seen.
    newest: Option<String>,
    /// Failed lists since the last successful one.
    failed_lists: u32,
    /// When the present watch was opened.
    opened: Option<Instant>,
    /// Attempts since the last watch that stayed open for [`STEADY`].
    failures: u32,
    /// Whether the log already says that the server is unreachable.
    reported: bool,
    /// How many times in a row the API server did not have the kind.
    absences: u32,
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
        absences: 0,
    };
    loop {
        let ended = follower.follow_once().await;
        shared.set_current(false);
        follower.ended(ended);
        sleep(match follower.absences {
            0 => pause(follower.failures),
            1 => SECOND_LOOK,
            _ => UNTIL_INSTALLED,
        })
        .await;
        follower.failures = follower.failures.saturating_add(1);
    }
}

impl<T: Cached> Follower<'_, T> {
    /// One watch, after a list if there is no version to continue from. Returns when the watch has ended.
    async fn follow_once(&mut self) -> Result<(), Error> {
        let server = &self.shared.server;
        if self.version.is_none() {
            let mut listed = self.list().await;
            if T::OLDER.is_some() && listed.as_ref().is_err_and(|error| error.class() == Class::Gone) {
                let group = T::group(&());
                let older = server.is_older(&group);
                server.set_older(group, !older);
                listed = self.list().await;
            }
            self.record_absence(listed.as_ref().err());
            if self.is_absent() {
                self.shared.replace(Vec::new(), Quota::default());
                return Ok(());
            }
            self.failed_lists = if listed.is_err() { self.failed_lists.saturating_add(1) } else { 0 };
            let (listed, quota) = listed?;
            self.shared.replace(listed.items, quota);
            // The list's version is used even if it is older: it is then the newest that exists.
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
                WatchEvent::Bookmark(bookmark) => self.advance(Some(bookmark.metadata.resource_version)),
                WatchEvent::Error(status) => {
                    let doing = format!("watching {}", self.selection.what);
                    return Err(Error::of(&doing, kube::Error::Api(status)));
                }
            }
        }
        self.shared.set_current(false);
        self.check_version().await
    }

    /// Lists all objects that are cached, in the API version that the server last had, and counts them.
    async fn list(&mut self) -> Result<(Listed<T>, Quota), Error> {
        let shared = self.shared;
        let server = &shared.server;
        self.selection.version = T::OLDER.filter(|_| server.is_older(&T::group(&())));
        let mut quota = Quota::default();
        let admits = |object: &T| shared.admits(object, &mut quota);
        let listed = server.list_of_age(&self.selection, &self.age(), admits).await?;
        Ok((listed, quota))
    }

    /// Drops the version to watch from if the server is not that new. A list of all objects after every silence would
    /// be too expensive: servers send no bookmarks for a kind of which nothing has changed for long.
    async fn check_version(&mut self) -> Result<(), Error> {
        let newest = self.shared.server.newest_version::<T>(&self.selection).await?;
        let number = |version: &str| version.parse::<u64>().ok();
        let from = self.version.as_deref().and_then(number);
        if from.is_none() || number(&newest) < from {
            self.version = None;
        }
        Ok(())
    }

    /// How old the next list may be. An older state than the one already seen would look like a change.
    fn age(&self) -> Age {
        if !self.selection.from_memory {
            return Age::Newest;
        }
        match self.newest.as_ref() {
            None => Age::Any,
            // Answers to writes may be newer than what the watch has delivered.
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
            tracing::info!("the watch of {} is connected again", self.shared.selection.what);
        }
    }

    /// True if the API server did not have the kind at two looks.
    fn is_absent(&self) -> bool {
        self.absences > 1
    }

    /// A kind that the API server does not have is not a failure, because its definition may be installed later.
    /// Logged once.
    fn record_absence(&mut self, error: Option<&Error>) {
        let was_absent = self.is_absent();
        let is_gone = error.is_some_and(|error| error.class() == Class::Gone);
        self.absences = if is_gone { self.absences.saturating_add(1) } else { 0 };
        if self.is_absent() != was_absent {
            let what = &self.shared.selection.what;
            if self.is_absent() {
                tracing::warn!(
                    "{what} are not watched: the API server does not have the kind {}. Install its definition (`inplace crds` prints those of this project); \
                     the API server is asked again every minute",
                    T::kind(&())
                );
            } else {
                tracing::info!("{what} are watched: the API server has their kind now");
            }
        }
    }

    fn advance(&mut self, to: Option<String>) {
        if let Some(to) = to.filter(|to| !to.is_empty()) {
            self.newest = Some(to.clone());
            self.version = Some(to);
        }
    }

    /// Updates the state for the next attempt, according to how this one ended.
    fn ended(&mut self, how: Result<(), Error>) {
        if self.opened.take().is_some_and(|at| at.elapsed() >= STEADY) {
            self.failures = 0;
        }
        let Err(error) = how else { return };
        if !error.class().is_unavailable() || self.failures >= TRUSTED_FAILURES {
            self.version = None;
        }
        // The first failure may be a server that restarts, so only a repeated failure is logged.
        if self.failures > 0 && !std::mem::replace(&mut self.reported, true) {
            let what = &self.shared.selection.what;
            tracing::warn!("the watch of {what} is not connected, retrying: {}", chain(&error));
        }
    }
}

/// Zero at first, then doubling; each pause is between half and the whole, so that many agents do not reconnect to
/// the same server at the same moment.
fn pause(failures: u32) -> Duration {
    let Some(before) = failures.checked_sub(1) else { return Duration::ZERO };
    jitter::half_at_least(BACKOFF.after(before))
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
