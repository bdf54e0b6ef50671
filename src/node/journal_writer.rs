//! Writes the journal of one operation. Writes are sequential, and each runs in a thread that a slow disk may block.
//!
//! A write that exceeds its limit continues in the background; the next entry is written after it ends. The newest
//! entry is always the last one written. Does not decide whether an operation waits for a write that is late.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::node::journal::{Entry, Journal, JournalError};
use crate::node::time_limits::JOURNAL_LIMIT;
use crate::process::backoff::Backoff;

/// The pauses after writes that failed.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// The journal of one operation.
#[derive(Debug)]
pub(super) struct JournalWriter {
    journal: Journal,
    /// The write in progress.
    under_way: Option<JoinHandle<Result<(), JournalError>>>,
    /// The entry to write after it.
    next: Option<Entry>,
}

impl JournalWriter {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, under_way: None, next: None }
    }

    /// Writes `entry`, and waits for it no longer than `limit`. If an earlier write is late, that one has used up
    /// [`JOURNAL_LIMIT`] of it.
    pub(super) async fn write(&mut self, entry: &Entry, limit: Duration) -> Result<(), JournalError> {
        let behind = self.under_way.as_ref().is_some_and(|write| !write.is_finished());
        self.next = Some(entry.clone());
        let limit = if behind { limit.saturating_sub(JOURNAL_LIMIT) } else { limit };
        let late = || JournalError::Late { path: self.journal.path(&entry.pod.uid) };
        let late = late();
        timeout(limit, self.finish()).await.unwrap_or(Err(late))
    }

    /// Waits until everything is written. Cancel-safe.
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
            self.under_way = Some(tokio::spawn(self.journal.clone().write_async(entry)));
        }
    }

    /// Repeats the write of `entry`, which has just failed with `error`, until the disk accepts it. Cancel-safe.
    pub(super) async fn persist(&mut self, entry: &Entry, mut error: JournalError) {
        let mut backoff = BACKOFF;
        loop {
            // A late write is still in progress, so it is not repeated.
            if !matches!(error, JournalError::Late { .. }) {
                sleep(backoff.pause()).await;
                self.next = Some(entry.clone());
            }
            match self.finish().await {
                Ok(()) => return,
                Err(again) => error = again,
            }
        }
    }

    /// Completes a write that was late, while the operation waits. Never returns.
    pub(super) async fn catch_up(&mut self) {
        if self.under_way.is_some()
            && let Err(error) = self.finish().await
        {
            tracing::error!(%error, "a delayed write of the journal failed");
        }
        std::future::pending::<()>().await;
    }
}
