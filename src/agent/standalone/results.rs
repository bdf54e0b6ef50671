//! Writes the statuses of the standalone agent: one JSON file per pod in `<state-dir>/status`, with the same object
//! as the status annotation.
//!
//! The id in a file also prevents a finished request from running again. A status that cannot be written, for
//! example because the disk is full, is held in memory until it can.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::agent::standalone::INVALID;
use crate::api::status::Status;
use crate::process::file::{self, Durability};

/// The folder of all result files, and the statuses that are not written yet.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Results {
    folder: PathBuf,
    unwritten: Arc<Mutex<BTreeMap<String, Status>>>,
}

impl Results {
    /// Creates and opens the folder `status` in `state`.
    pub(in crate::agent) fn open(state: &Path) -> std::io::Result<Self> {
        let folder = state.join("status");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder, unwritten: Arc::default() })
    }

    /// Writes a status under `name`: `NAMESPACE_POD`, or the name of a manifest from which no pod could be read.
    pub(super) fn write(&self, name: &str, status: &Status) {
        match self.try_write(name, status) {
            Ok(()) => {
                self.unwritten().remove(name);
            }
            Err(error) => {
                let path = self.path(name);
                tracing::error!(path = %path.display(), %error, "the status cannot be written: retrying later");
                self.unwritten().insert(name.to_owned(), status.clone());
            }
        }
    }

    /// Tries again to write the statuses that could not be written.
    pub(super) fn catch_up(&self) {
        self.unwritten().retain(|name, status| self.try_write(name, status).is_err());
    }

    /// The status under `name`, if it exists and can be read.
    pub(super) fn read(&self, name: &str) -> Option<Status> {
        if let Some(status) = self.unwritten().get(name) {
            return Some(status.clone());
        }
        serde_json::from_slice(&std::fs::read(self.path(name)).ok()?).ok()
    }

    /// The files of which a status says that they cannot be used. No pod has a status with this reason.
    pub(super) fn of_files(&self) -> Vec<String> {
        let results = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = results.filter_map(|result| {
            let name = result.file_name().into_string().ok()?;
            name.strip_suffix(".json").map(str::to_owned)
        });
        names.filter(|name| self.read(name).is_some_and(|status| status.reason == INVALID)).collect()
    }

    pub(super) fn remove(&self, name: &str) {
        self.unwritten().remove(name);
        let _ = std::fs::remove_file(self.path(name));
    }

    fn try_write(&self, name: &str, status: &Status) -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(status).map_err(std::io::Error::other)?;
        file::replace(&self.path(name), &text, Durability::Whole)
    }

    fn unwritten(&self) -> MutexGuard<'_, BTreeMap<String, Status>> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}
