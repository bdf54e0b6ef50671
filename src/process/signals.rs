//! The signals that end a process, by one name on every system. Decides nothing about them.

#[cfg(unix)]
pub use self::unix::{Interrupt, interrupt, terminate};
#[cfg(windows)]
pub use tokio::signal::windows::{CtrlC as Interrupt, ctrl_break as terminate, ctrl_c as interrupt};

#[cfg(unix)]
mod unix {
    use std::io;

    use tokio::signal::unix::{SignalKind, signal};

    /// The signals of Ctrl-C, from the call of [`interrupt`] on.
    pub use tokio::signal::unix::Signal as Interrupt;

    /// Handles SIGINT from now on: it no longer ends the process.
    ///
    /// # Errors
    /// When signal handlers cannot be installed.
    pub fn interrupt() -> io::Result<Interrupt> {
        signal(SignalKind::interrupt())
    }

    /// The same for SIGTERM, which is Ctrl-Break on Windows.
    ///
    /// # Errors
    /// When signal handlers cannot be installed.
    pub fn terminate() -> io::Result<Interrupt> {
        signal(SignalKind::terminate())
    }
}
