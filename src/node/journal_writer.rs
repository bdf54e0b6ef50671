//! Writes the journal of one operation, one write after the other, each in a thread that a slow disk may hold up.
//!
//! A write that takes longer than its limit goes on by itself; what comes after it is written when it has ended. The newest
//! entry is always the last one written.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::node::journal::{Entry, Journal, JournalError};

/// The first pause after a write that failed; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between two attempts to write.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The journal of one operation.
#[derive(Debug)]
pub(super) struct JournalWriter {
    journal: Journal,
    /// The write under way.
    under_way: Option<JoinHandle<Result<(), JournalError>>>,
    /// What is to be written after it.
    next: Option<Entry>,
}

impl JournalWriter {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, under_way: None, next: None }
    }

    /// Writes `entry`, and waits for that no longer than `limit`; not at all behind a write that is late already.
    pub(super) async fn write(&mut self, entry: &Entry, limit: Duration) -> Result<(), JournalError> {
        let behind = self.under_way.as_ref().is_some_and(|write| !write.is_finished());
        self.next = Some(entry.clone());
        let limit = if behind { Duration::ZERO } else { limit };
        let late = || JournalError::Late { path: self.journal.path(&entry.pod.uid) };
        let late = late();
        timeout(limit, self.finish()).await.unwrap_or(Err(late))
    }

    /// Waits until everything is written. May be dropped at any time.
    pub(super) async fn finish(&mut self) -> Result<(), JournalError> {
        let mut last = Ok(());
        loop {
            if let Some(write) = &mut self.under_way {
                last = write.await.unwrap_or_else(|error| {
                    let source = std::io::Error::other(error);
                    Err(JournalError::Io { path: self.journal.path(""), doing: "written", source })
                });
                self.under_way = None;
            }
            let Some(entry) = self.next.take() else { return last };
            self.under_way = Some(tokio::spawn(self.journal.clone().write_beside(entry)));
        }
    }

    /// Writes `entry`, whose write has just failed with `error`, until the disk takes it. May be dropped at any time.
    pub(super) async fn persist(&mut self, entry: &Entry, mut error: JournalError) {
        let mut pause = FIRST_PAUSE;
        loop {
            // A late one is still being written.
            if !matches!(error, JournalError::Late { .. }) {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                self.next = Some(entry.clone());
            }
            match self.finish().await {
                Ok(()) => return,
                Err(again) => error = again,
            }
        }
    }

    /// Writes what a late write has held up, while nothing else is to be done; never ends.
    pub(super) async fn catch_up(&mut self) {
        if self.under_way.is_some()
            && let Err(error) = self.finish().await
        {
            tracing::error!(%error, "the journal lags behind");
        }
        std::future::pending::<()>().await;
    }
}
