//! Ensures that either one agent or only commands work on a runtime. Commands can work concurrently.
//!
//! The lock is a file lock on the folder of the runtime's socket: it is the same for every process on the node, whatever its
//! state folder or mount namespace, and the kernel releases it when its holder ends. It does not protect a single pod; the
//! lock of a pod is in `journal`.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

/// Held while this process may change containers.
#[derive(Debug)]
pub struct NodeLock(#[expect(dead_code, reason = "held for its drop")] Flock<File>);

/// Why the lock cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{holder} is running on this node (it holds the lock on {folder}): {advice}")]
    Held {
        /// The locked folder.
        folder: PathBuf,
        /// The probable holder.
        holder: &'static str,
        /// What the user can do.
        advice: &'static str,
    },
    /// The folder does not exist, so there is no runtime.
    #[error(
        "folder {0} does not exist: check that the runtime runs, or name another socket with --runtime-endpoint"
    )]
    NoFolder(PathBuf),
    /// The folder cannot be opened or locked.
    #[error("the folder {folder} of the runtime's socket cannot be locked (root is required): {source}")]
    Io {
        /// The folder of the runtime's socket.
        folder: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl NodeLock {
    /// The lock of an agent: exclusive, so that no other process may change containers of the runtime behind
    /// `socket`.
    pub fn for_agent(socket: &Path) -> Result<Self, LockError> {
        let advice = "stop it, or wait for the command to end";
        Self::take(socket, FlockArg::LockExclusiveNonblock, "another inplace agent or command", advice)
    }

    /// The lock of a command: shared, so that other commands may work on other pods, but no agent.
    pub fn for_command(socket: &Path) -> Result<Self, LockError> {
        let advice = "write the request into the pod's annotation, or stop the agent first";
        Self::take(socket, FlockArg::LockSharedNonblock, "an inplace agent", advice)
    }

    fn take(
        socket: &Path,
        how: FlockArg,
        holder: &'static str,
        advice: &'static str,
    ) -> Result<Self, LockError> {
        let folder = socket.parent().unwrap_or(Path::new("/")).to_owned();
        let io = |source| LockError::Io { folder: folder.clone(), source };
        let file = match File::open(&folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(LockError::NoFolder(folder)),
            opened => opened.map_err(io)?,
        };
        Flock::lock(file, how).map(Self).map_err(|(_, errno)| match errno {
            Errno::EWOULDBLOCK => LockError::Held { folder: folder.clone(), holder, advice },
            errno => io(errno.into()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_alone_and_commands_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("runtime.sock");
        let first = NodeLock::for_command(&socket).unwrap();
        let second = NodeLock::for_command(&socket).unwrap();
        assert!(matches!(NodeLock::for_agent(&socket), Err(LockError::Held { .. })));
        drop((first, second));
        let agent = NodeLock::for_agent(&socket).unwrap();
        assert!(matches!(NodeLock::for_agent(&socket), Err(LockError::Held { .. })));
        let error = NodeLock::for_command(&socket).unwrap_err().to_string();
        assert!(error.contains("annotation"), "{error}");
        drop(agent);
        NodeLock::for_command(&socket).unwrap();
    }
}
