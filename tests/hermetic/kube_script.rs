//! `tests/lab/kube.sh` builds Kubernetes completely or not at all, and reports its progress. Every program that
//! it runs is replaced by a script here, and one of them fails.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// The commands that `install.sh build-kube` looks for and `kube.sh` runs, with their replacements.
const COMMANDS: [(&str, &str); 6] = [
    (
        "apt-get",
        r#"case " $* " in
        *" source "*) mkdir -p kubernetes-1.20.2/vendor/github.com/modern-go/reflect2
           tar -czf kubernetes_1.20.2.orig.tar.gz kubernetes-1.20.2 && rm -r kubernetes-1.20.2 ;;
        *" download "*) touch golang-github-modern-go-reflect2-dev_1.deb ;;
        esac"#,
    ),
    ("dpkg-deb", "mkdir -p library/usr/share/gocode/src/github.com/modern-go/reflect2"),
    ("rsync", ":"),
    ("dpkg-source", ":"),
    ("make", ":"),
    (
        "go",
        r#"while [ "$1" != -o ]; do shift; done
        case $2 in */"$BROKEN") echo "cannot compile" >&2; exit 1 ;; esac
        echo '#!/bin/sh' >"$2" && chmod +x "$2""#,
    ),
];

/// Runs the script with everything below `folder`; the compiler fails for the program `broken`.
fn build(folder: &Path, broken: &str) -> Output {
    let commands = folder.join("commands");
    fs::create_dir_all(&commands).unwrap();
    for (name, text) in COMMANDS {
        let file = commands.join(name);
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", commands.display());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/kube.sh");
    let mut command = Command::new("bash");
    command.arg(script).env_clear().env("PATH", path).env("HOME", folder).env("BROKEN", broken);
    command.env("INPLACE_CACHE", folder.join("cache"));
    command.output().unwrap()
}

#[test]
fn a_program_that_cannot_be_compiled_fails_the_build() {
    for broken in ["kube-apiserver", "kube-scheduler", "kubelet"] {
        let folder = tempfile::tempdir().unwrap();
        let output = build(folder.path(), broken);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{broken}: {said}");
        assert!(said.contains("cannot compile") && said.contains("could not be built"), "{broken}: {said}");
        assert!(
            !folder.path().join("cache/kube/v1.20.2").exists(),
            "{broken} is missing, and the folder is there"
        );
    }
}

#[test]
fn a_whole_build_is_put_in_place_and_its_steps_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let output = build(folder.path(), "none");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let built = folder.path().join("cache/kube/v1.20.2");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), built.display().to_string(), "{said}");
    for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"] {
        assert!(built.join(name).exists() && said.contains(&format!("compiles {name}")), "{name}: {said}");
    }
}
