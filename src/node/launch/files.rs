//! The files of a pod: the claim on its name, its volumes, its logs.
//!
//! Must not create or remove anything outside the state directory, except what a hostPath requests to create.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::Dirs;
use crate::api::manifest::{HostPathKind, Manifest, Volume, VolumeSource};

/// For a memory volume: the folder inside the tmpfs that containers receive.
const MEMORY: &str = "memory";
/// The target of the [`MEMORY`] link, which is visible only to a process that does not see the tmpfs: a link to a
/// missing path, which no runtime mounts.
const NOWHERE: &str = "this-volume-in-memory-was-mounted-where-the-runtime-does-not-see-it";

/// Why a file or folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadFile {
    /// A file system call failed.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// The affected path.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path of a hostPath is missing or has another type.
    #[error("volume {volume}: {path} is not {wanted}: create it, or change the type of the hostPath")]
    HostPath {
        /// The name of the volume.
        volume: String,
        /// The path of the hostPath.
        path: String,
        /// The required file type.
        wanted: &'static str,
    },
}

fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, BadFile> {
    result.map_err(|source| BadFile::Io { path: path.to_owned(), source })
}

fn folder(path: &Path, mode: u32) -> Result<(), BadFile> {
    at(path, DirBuilder::new().recursive(true).mode(mode).create(path))
}

/// Claims the name of a pod; returns false if the name is claimed already.
pub(super) fn claim(dirs: &Dirs, namespace: &str, name: &str, uid: &str) -> Result<bool, BadFile> {
    let link = dirs.claim(namespace, name);
    if let Some(above) = link.parent() {
        folder(above, 0o700)?;
    }
    match symlink(uid, &link) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        result => at(&link, result.map(|()| true)),
    }
}

/// The uid of the pod that has claimed the name.
pub(super) fn claimed(dirs: &Dirs, namespace: &str, name: &str) -> Result<Option<String>, BadFile> {
    let link = dirs.claim(namespace, name);
    match fs::read_link(&link) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => at(&link, result.map(|uid| uid.to_str().map(str::to_owned))),
    }
}

/// Releases the claim on the name.
pub(super) fn release(dirs: &Dirs, namespace: &str, name: &str) -> Result<(), BadFile> {
    let link = dirs.claim(namespace, name);
    gone(&link, fs::remove_file(&link))
}

/// The path on the host of a volume.
pub(super) fn host_path(volume: &Volume, uid: &str, dirs: &Dirs) -> PathBuf {
    match &volume.source {
        VolumeSource::Directory => dirs.volumes(uid).join(&volume.name),
        VolumeSource::Memory => dirs.volumes(uid).join(&volume.name).join(MEMORY),
        VolumeSource::Host { path, .. } => PathBuf::from(path),
    }
}

/// Creates the log folders and all volumes.
pub(super) fn make(manifest: &Manifest, uid: &str, dirs: &Dirs) -> Result<(), BadFile> {
    let logs = dirs.logs(&manifest.namespace, &manifest.name, uid);
    for container in &manifest.containers {
        folder(&logs.join(&container.name), 0o755)?;
    }
    for volume in &manifest.volumes {
        let base = dirs.volumes(uid);
        let path = host_path(volume, uid, dirs);
        match &volume.source {
            VolumeSource::Directory => {
                folder(&base, 0o700)?;
                open_folder(&path)?;
            }
            VolumeSource::Memory => {
                folder(&base.join(&volume.name), 0o700)?;
                at(&path, symlink(NOWHERE, &path))?;
                let on = base.join(&volume.name);
                let mounted = mount(Some("tmpfs"), &on, Some("tmpfs"), MsFlags::empty(), Some("mode=0700"));
                at(&on, mounted.map_err(io::Error::from))?;
                open_folder(&path)?;
            }
            VolumeSource::Host { kind, .. } => host(&volume.name, &path, *kind)?,
        }
    }
    Ok(())
}

/// Creates a folder that any user in a container may write to, like an emptyDir.
fn open_folder(path: &Path) -> Result<(), BadFile> {
    folder(path, 0o777)?;
    // The umask has reduced the mode at creation.
    at(path, fs::set_permissions(path, Permissions::from_mode(0o777)))
}

fn host(volume: &str, path: &Path, kind: HostPathKind) -> Result<(), BadFile> {
    let found = match fs::metadata(path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(source) => return Err(BadFile::Io { path: path.to_owned(), source }),
    };
    let (right, wanted) = match (kind, found) {
        (HostPathKind::Any, _) => return Ok(()),
        (HostPathKind::DirectoryOrCreate, None) => return folder(path, 0o755),
        (HostPathKind::FileOrCreate, None) => return at(path, File::create_new(path).map(drop)),
        (HostPathKind::DirectoryOrCreate | HostPathKind::Directory, found) => {
            (found.is_some_and(|found| found.is_dir()), "a folder")
        }
        (HostPathKind::FileOrCreate | HostPathKind::File, found) => {
            (found.is_some_and(|found| found.is_file()), "a file")
        }
        (HostPathKind::Socket, found) => (found.is_some_and(|found| found.is_socket()), "a socket"),
        (HostPathKind::CharDevice, found) => {
            (found.is_some_and(|found| found.is_char_device()), "a character device")
        }
        (HostPathKind::BlockDevice, found) => {
            (found.is_some_and(|found| found.is_block_device()), "a block device")
        }
    };
    if right {
        return Ok(());
    }
    Err(BadFile::HostPath { volume: volume.to_owned(), path: path.display().to_string(), wanted })
}

/// Removes volumes and logs; missing files are ignored.
pub(super) fn remove(dirs: &Dirs, namespace: &str, name: &str, uid: &str) -> Result<(), BadFile> {
    let volumes = dirs.volumes(uid);
    match fs::read_dir(&volumes) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        entries => {
            for entry in at(&volumes, entries)? {
                unmount(&at(&volumes, entry)?.path())?;
            }
        }
    }
    gone(&volumes, fs::remove_dir_all(&volumes))?;
    let logs = dirs.logs(namespace, name, uid);
    gone(&logs, fs::remove_dir_all(&logs))
}

fn unmount(path: &Path) -> Result<(), BadFile> {
    loop {
        match umount2(path, MntFlags::UMOUNT_NOFOLLOW) {
            // The path is no mount point, or this process lacks the right to mount, so it cannot have mounted there.
            Err(Errno::EINVAL | Errno::ENOENT | Errno::EPERM) => return Ok(()),
            result => at(path, result.map_err(io::Error::from))?,
        }
    }
}

fn gone(path: &Path, removed: io::Result<()>) -> Result<(), BadFile> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => at(path, result),
    }
}
