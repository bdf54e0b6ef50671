//! What `dist/pack.py` makes of programs that are built: here of two small files that look like programs. Builds nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// The version of the packed files: a pre-release, because its name differs in a Debian package.
pub(crate) const VERSION: &str = "1.2.3-rc.1";
/// Where users download, for the manifest of krew.
pub(crate) const URL: &str = "https://downloads.example/inplace";
/// The time of every file: 2026-01-02T03:04:05Z.
const TIME: &str = "1767323045";
/// The architectures, each with the value of `e_machine` in an ELF header.
const MACHINES: [(&str, u8); 2] = [("amd64", 62), ("arm64", 183)];

/// The files of a release.
pub(crate) struct ReleaseFiles {
    /// Below it are the input, which is `program-ARCH` and `share`, and the files, in `out`.
    folder: TempDir,
}

impl ReleaseFiles {
    /// Packs. The completions and the manual pages are those of `program`.
    pub(crate) fn packed(program: &Path) -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        let mut share = Command::new("bash");
        share.args(["dist/share.sh".as_ref(), program, &files.at("share")]);
        succeeded(&mut share);
        for (arch, machine) in MACHINES {
            let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0".to_vec();
            header.extend([machine, 0]);
            std::fs::write(files.at(&format!("program-{arch}")), header).unwrap();
        }
        let output = files.pack_again("out", &[("amd64", "amd64"), ("arm64", "arm64")]);
        assert!(output.status.success(), "{output:?}");
        files
    }

    /// Packs into the new folder `out`, for each architecture the program of an architecture.
    pub(crate) fn pack_again(&self, out: &str, programs: &[(&str, &str)]) -> Output {
        std::fs::create_dir(self.at(out)).unwrap();
        // The certificates of this machine must not matter.
        std::fs::write(self.at("certificates"), "").unwrap();
        let mut command = Command::new("python3");
        command.args(["-B", "dist/pack.py"]).arg(self.at(out)).arg("--share").arg(self.at("share"));
        command.args(["--version", VERSION, "--time", TIME, "--revision", "0123abc", "--url", URL]);
        command.arg("--certificates").arg(self.at("certificates"));
        for (arch, program) in programs {
            let program = self.at(&format!("program-{program}"));
            command.arg("--binary").arg(format!("{arch}={}", program.display()));
        }
        command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap()
    }

    /// A path in the folder of the input and the output.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A file of the release.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.at("out").join(name)
    }

    /// Unpacks a file of the release with `tar` into a folder of its name.
    pub(crate) fn unpacked(&self, name: &str) -> PathBuf {
        let folder = self.at("unpacked").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let mut tar = Command::new("tar");
        succeeded(tar.arg("-xf").arg(self.file(name)).arg("-C").arg(&folder));
        folder
    }
}

/// Parses a file of JSON.
pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Runs a command in the folder of the project, and returns its output.
pub(crate) fn succeeded(command: &mut Command) -> String {
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
