//! The answers of the standalone agent: one JSON file per pod in `<state-dir>/status`, the object of the contract.
//!
//! Also remembers which request a file answers, so that an ended one is not taken up again, and keeps what a full disk
//! did not take until it does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::status::Status;
use crate::process::file::{self, Durability};

/// The folder of all answers.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Results {
    folder: PathBuf,
    unwritten: Arc<Mutex<BTreeMap<String, Status>>>,
}

impl Results {
    /// Opens the folder below `state`, making it.
    pub(in crate::agent) fn open(state: &Path) -> std::io::Result<Self> {
        let folder = state.join("status");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder, unwritten: Arc::default() })
    }

    /// Answers under `name`: `NAMESPACE_POD`, or a file's name when no pod could be read from it.
    pub(super) fn write(&self, name: &str, status: &Status) {
        match self.try_write(name, status) {
            Ok(()) => {
                self.unwritten().remove(name);
            }
            Err(error) => {
                let path = self.path(name);
                tracing::error!(path = %path.display(), %error, "the status cannot be written, it is kept until it can");
                self.unwritten().insert(name.to_owned(), status.clone());
            }
        }
    }

    /// Writes what could not be written before, as far as it can be now.
    pub(super) fn catch_up(&self) {
        self.unwritten().retain(|name, status| self.try_write(name, status).is_err());
    }

    /// The answer under `name`, when there is one that can be read.
    pub(super) fn read(&self, name: &str) -> Option<Status> {
        if let Some(status) = self.unwritten().get(name) {
            return Some(status.clone());
        }
        serde_json::from_slice(&std::fs::read(self.path(name)).ok()?).ok()
    }

    /// Takes the answer under `name` away.
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
