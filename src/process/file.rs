//! Replaces a file atomically: a reader sees either the old or the new content in full, whatever happens in between.
//! Creates no folder.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Whether the new content must have reached the disk before `replace` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// File and folder are synced: the new content survives a power failure.
    Durable,
    /// The content is complete at any time, but a power failure may restore the old content.
    Whole,
}

/// Replaces the file at `path` by `content`, through a new file beside it.
///
/// # Errors
/// Any error of the file system. The old file is then unchanged, and no partial file is left.
pub fn replace(path: &Path, content: &[u8], durability: Durability) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("the path has no folder"))?;
    let name = path.file_name().ok_or_else(|| io::Error::other("the path has no file name"))?;
    let fresh = folder.join(format!(".{}.new", name.to_string_lossy()));
    let written = write(&fresh, content, durability).and_then(|()| std::fs::rename(&fresh, path));
    if let Err(error) = written {
        let _ = std::fs::remove_file(&fresh);
        return Err(error);
    }
    if durability == Durability::Durable {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn write(path: &Path, content: &[u8], durability: Durability) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    if durability == Durability::Durable {
        file.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"one", Durability::Durable).unwrap();
        replace(&path, b"two", Durability::Whole).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"one", Durability::Durable).unwrap();
        std::fs::create_dir(folder.path().join(".a.json.new")).unwrap();
        assert!(replace(&path, b"two", Durability::Durable).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
    }
}
