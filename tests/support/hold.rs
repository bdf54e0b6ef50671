//! Stops the work on one pod at a fault point for as long as a test needs (see `process::fault` in the program).

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folder that agents check at each fault point.
pub(crate) struct Holds(PathBuf);

impl Holds {
    pub(crate) fn below(dir: &Path) -> Self {
        let folder = dir.join("holds");
        // An earlier test on the cluster may have left it.
        fs::create_dir_all(&folder).unwrap();
        let holds = Self(folder);
        holds.release();
        holds
    }

    /// The value of `INPLACE_FAULT_HOLD`.
    pub(crate) fn folder(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Stops the work on this pod at a point: given by name, or by the number of points from now.
    pub(crate) fn set(&self, uid: &str, point: &str) {
        let new = self.0.join(format!("{uid}.new"));
        fs::write(&new, point).unwrap();
        fs::rename(new, self.0.join(uid)).unwrap();
    }

    /// The name of the point at which the work on this pod is stopped now.
    pub(crate) fn held(&self, uid: &str) -> Option<String> {
        fs::read_to_string(self.0.join(format!("{uid}.held"))).ok()
    }

    /// Lets all work continue, and removes all holds.
    pub(crate) fn release(&self) {
        for file in fs::read_dir(&self.0).unwrap() {
            // An agent may be about to rename the file.
            let _ = fs::remove_file(file.unwrap().path());
        }
    }
}
