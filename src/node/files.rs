//! File system calls for the files of containers: logs, links, termination messages. Every call is bounded: a folder
//! that hangs must not delay a container that is down, nor another pod.
//!
//! Must not remove or overwrite files that it did not create. Works only on directories that this process sees under
//! the same path as the runtime; all others are left alone.

use std::fs::{DirEntry, OpenOptions, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use crate::cri::clone::{TerminationLog, fresh_termination_log};
use crate::process::disk::Disk;

/// Time limit of one call: a container may be down meanwhile.
const LIMIT: Duration = Duration::from_millis(500);
/// Maximum number of calls that hang at once, in the whole process.
const MAX_CALLS: usize = 3;
/// Writable by everyone, as with the kubelet: the process inside may run as any user.
const TERMINATION_LOG_MODE: u32 = 0o666;

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

/// Removes a log that no other component removes, with what was rotated from it. A missing file counts as removed.
pub(super) async fn remove(log: PathBuf) {
    let path = log.clone();
    let removed =
        run_blocking(&format!("remove {}", log.display()), move || remove_with_rotated(&path)).await;
    if let Err(error) = removed {
        tracing::warn!(log = %log.display(), %error, "a log file cannot be removed");
    }
}

/// Removes `log` and the plain files beside it that are named after it, as a kubelet names what it rotates: `4.log.20261120`,
/// `4.log.20261120.gz`. Follows no link. Blocks on the disk.
fn remove_with_rotated(log: &Path) -> io::Result<()> {
    remove_present(log)?;
    let (Some(folder), Some(name)) = (log.parent(), log.file_name()) else { return Ok(()) };
    let prefix = [name.as_bytes(), b"."].concat();
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // This is the type of the entry itself, not of what a link refers to.
        if entry.file_name().as_bytes().starts_with(&prefix) && entry.file_type()?.is_file() {
            remove_present(&entry.path())?;
        }
    }
    Ok(())
}

fn remove_present(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Creates an empty file for `attempt`, to be mounted instead of the old one, and returns its path. Creates nothing if this
/// process does not see the directory; the container then shares the file of its predecessor. Idempotent. Blocks on the
/// disk.
///
/// # Errors
/// The error of the file system.
pub(super) fn make_termination_log(log: &TerminationLog, attempt: u32) -> io::Result<Option<String>> {
    let fresh = fresh_termination_log(&log.old, attempt);
    let (Some(path), true) = (fresh.to_str(), log.is_visible()) else { return Ok(None) };
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(&fresh)?;
    // Not set at creation, since the umask would reduce it.
    file.set_permissions(Permissions::from_mode(TERMINATION_LOG_MODE))?;
    Ok(Some(path.to_owned()))
}

/// Creates `link`, pointing to `target`, if `like` is a link: only then does a log shipper read such links. A kubelet may have
/// removed `like` with its container; in its pods any other link in the folder is enough (`by_kubelet`), because it creates
/// one for each container. Returns whether the link exists now. Blocks on the disk.
///
/// # Errors
/// The error of the file system.
pub(super) fn link_like(like: &Path, link: &Path, target: &Path, by_kubelet: bool) -> io::Result<bool> {
    let is_link = |entry: io::Result<DirEntry>| entry.is_ok_and(|entry| entry.path().is_symlink());
    let has_others =
        || like.parent().and_then(|folder| folder.read_dir().ok()).is_some_and(|mut all| all.any(is_link));
    if !(like.is_symlink() || by_kubelet && has_others()) {
        return Ok(false);
    }
    match symlink(target, link) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(true),
        made => made.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_termination_log_is_empty_and_the_old_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("0a1b2c3d");
        std::fs::write(&old, "text").unwrap();
        let log = TerminationLog { old: old.clone() };
        let fresh = make_termination_log(&log, 4).unwrap().unwrap();
        assert_eq!(Path::new(&fresh), fresh_termination_log(&old, 4));
        let meta = std::fs::metadata(&fresh).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.len()), (0o666, 0));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "text");

        let unseen = TerminationLog { old: PathBuf::from("/nowhere/0a1b2c3d") };
        assert!(make_termination_log(&unseen, 4).unwrap().is_none());
    }

    /// They count for the ephemeral storage of the pod.
    #[test]
    fn a_log_goes_with_what_was_rotated_from_it_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let (folder, outside) = (root.path().join("app"), root.path().join("outside"));
        std::fs::create_dir_all(folder.join("inplace-standby-4.log.d")).unwrap();
        std::fs::write(&outside, "").unwrap();
        symlink(&outside, folder.join("inplace-standby-4.log.link")).unwrap();
        let log = folder.join("inplace-standby-4.log");
        let own = ["inplace-standby-4.log", "inplace-standby-4.log.20261120-100000.gz"];
        let others = ["4.log", "4.log.20261120-100000", "inplace-standby-4.logs", "inplace-standby-40.log"];
        for name in own.iter().chain(&others) {
            std::fs::write(folder.join(name), "").unwrap();
        }
        remove_with_rotated(&log).unwrap();
        assert!(own.iter().all(|name| !folder.join(name).exists()));
        assert!(others.iter().all(|name| folder.join(name).exists()) && outside.exists());
        assert!(folder.join("inplace-standby-4.log.link").is_symlink());
        assert!(folder.join("inplace-standby-4.log.d").is_dir());

        // What was rotated is removed although the log itself is gone.
        std::fs::write(folder.join(own[1]), "").unwrap();
        remove_with_rotated(&log).unwrap();
        assert!(!folder.join(own[1]).exists());
        remove_with_rotated(&root.path().join("gone/4.log")).unwrap();
    }

    #[test]
    fn a_link_is_made_only_where_there_was_one() {
        let folder = tempfile::tempdir().unwrap();
        let (like, new) = (folder.path().join("old.log"), folder.path().join("new.log"));
        let link = |by_kubelet| link_like(&like, &new, Path::new("/t"), by_kubelet).unwrap();
        assert!(!link(false) && !link(true) && !new.is_symlink());
        symlink("/gone", &like).unwrap();
        assert!(link(false) && link(true));
        assert_eq!(std::fs::read_link(&new).unwrap(), Path::new("/t"));
        // The kubelet has removed that of the old container.
        std::fs::rename(&like, folder.path().join("other.log")).unwrap();
        std::fs::remove_file(&new).unwrap();
        assert!(!link(false) && link(true) && new.is_symlink());
    }
}
