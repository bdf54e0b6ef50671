//! `inplace hold SECONDS`: the process of a fence. It runs and does nothing.

use std::time::Duration;

use crate::process::shutdown;
/// Sleep for the given number of seconds or until SIGTERM: the process of a fence
#[derive(Debug, clap::Args)]
pub struct HoldCommand {
    /// Maximum number of seconds, in case no process removes the fence
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
