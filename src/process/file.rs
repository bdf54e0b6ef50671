//! Writing a file so that a reader sees the old one or the new one, whole, whatever happens in between.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Whether the new content must have reached the disk before `replace` returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// File and folder are synced: it survives a power cut.
    Durable,
    /// Whole at any time, but a power cut may bring the old one back.
    Whole,
}

/// Puts `content` in the place of the file at `path`, through a new file beside it.
///
/// # Errors
/// Whatever the file system says; the old file is then as it was, and no half-written one is left.
pub fn replace(path: &Path, content: &[u8], durability: Durability) -> io::Result<()> {
    let folder = path.parent().ok_or_else(|| io::Error::other("a file needs a folder"))?;
    let name = path.file_name().ok_or_else(|| io::Error::other("a file needs a name"))?;
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
