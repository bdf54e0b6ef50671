//! File system calls for the files of containers: logs, links, termination messages. Every call is bounded: a folder
//! that hangs must not delay a container that is down, nor another pod.

use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use crate::process::disk::Disk;

/// Time limit of one call: a container may be down meanwhile.
const LIMIT: Duration = Duration::from_millis(500);
/// Maximum number of calls that hang at once, in the whole process.
const MAX_CALLS: usize = 3;

static CALLS: LazyLock<Disk> = LazyLock::new(|| Disk::new(MAX_CALLS));

/// Runs `call`, which concerns `file`, in a thread outside the executor.
///
/// # Errors
/// The error of the call, or that it did not end in time.
pub(super) async fn run_blocking<T: Send + 'static>(
    file: &str,
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    CALLS.run(file, LIMIT, call).await.unwrap_or_else(|late| Err(late.into()))
}

/// Removes a log that no other component removes. A missing file counts as removed.
pub(super) async fn remove(log: PathBuf) {
    let path = log.clone();
    let removed =
        run_blocking(&format!("remove {}", log.display()), move || std::fs::remove_file(path)).await;
    if let Err(error) = removed
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(log = %log.display(), %error, "a log file cannot be removed");
    }
}
