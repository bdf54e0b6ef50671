//! The answers of the standalone agent: one JSON file per pod in `<state-dir>/status`, the object of the contract.
//!
//! Also remembers which request a file answers, so that an ended one is not taken up again.

use std::path::{Path, PathBuf};

use crate::api::status::Status;
use crate::process::file::{self, Durability};

/// The folder of all answers.
#[derive(Clone, Debug)]
pub(super) struct Results {
    folder: PathBuf,
}

impl Results {
    /// Opens the folder below `state`, making it.
    pub(super) fn open(state: &Path) -> std::io::Result<Self> {
        let folder = state.join("status");
        std::fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// Answers under `name`: `NAMESPACE_POD`, or a file's name when no pod could be read from it.
    pub(super) fn write(&self, name: &str, status: &Status) {
        let path = self.path(name);
        let written = serde_json::to_vec_pretty(status)
            .map_err(std::io::Error::other)
            .and_then(|text| file::replace(&path, &text, Durability::Whole));
        if let Err(error) = written {
            tracing::error!(path = %path.display(), %error, "the status cannot be written");
        }
    }

    /// The answer under `name`, when there is one that can be read.
    pub(super) fn read(&self, name: &str) -> Option<Status> {
        serde_json::from_slice(&std::fs::read(self.path(name)).ok()?).ok()
    }

    /// Takes the answer under `name` away.
    pub(super) fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.path(name));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}
