//! Converts SIGTERM and SIGINT into a token that all long-running tasks watch. Ends no task itself.

use tokio_util::sync::CancellationToken;

use crate::process::signals::{interrupt, terminate};

/// A token that is cancelled by the first SIGTERM or SIGINT. Later signals have no effect: work in progress ends by
/// its own deadlines, and the journal makes it safe to send SIGKILL.
///
/// # Errors
/// When signal handlers cannot be installed.
pub fn on_signal() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut terminate = terminate()?;
    let mut interrupt = interrupt()?;
    let cancel = token.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            cancel.cancel();
        }
    });
    Ok(token)
}
