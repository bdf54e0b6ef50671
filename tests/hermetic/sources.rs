//! The sources of the program as text. Must not know what is in them.

use std::fs;
use std::path::PathBuf;

/// Path and text of every source below `src`, in the order of the paths.
pub(crate) fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                sources.push((path, text));
            }
        }
    }
    assert!(sources.len() > 20, "the sources were not found");
    sources.sort();
    sources
}
