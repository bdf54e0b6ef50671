//! `inplace hold SECONDS`: the process of a fence. It runs and does nothing.

use std::time::Duration;

use crate::process::shutdown;

/// Do nothing for so many seconds, or until SIGTERM: what runs where a container's name is to be held.
#[derive(Debug, clap::Args)]
pub struct HoldCommand {
    /// How long at most: nobody may be left to take it away.
    seconds: u64,
}

impl HoldCommand {
    /// Returns after the time has passed or SIGTERM arrives.
    ///
    /// # Errors
    /// When signal handlers cannot be installed.
    pub async fn run(self) -> std::io::Result<()> {
        let stop = shutdown::on_signal()?;
        stop.run_until_cancelled(tokio::time::sleep(Duration::from_secs(self.seconds))).await;
        Ok(())
    }
}
