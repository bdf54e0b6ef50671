//! The files of a release, of `make dist`: their checksums are right, the same input gives the same bytes, and what a machine lacks
//! is named. The tools of this machine unpack them. Builds no release.

mod deb;
mod oci;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::release_files::{ReleaseFiles, URL, VERSION, succeeded};

/// The files of a release with the completions and pages of this program.
fn packed() -> ReleaseFiles {
    ReleaseFiles::packed(Path::new(env!("CARGO_BIN_EXE_inplace")))
}

#[test]
fn the_same_input_gives_the_same_bytes_and_their_checksums() {
    let files = packed();
    let again = files.pack_again("again", &[("arm64", "arm64"), ("amd64", "amd64")]);
    assert!(again.status.success(), "{again:?}");
    succeeded(Command::new("diff").arg("-r").arg(files.at("out")).arg(files.at("again")));
    let check = "cd \"$1\" && sha256sum --check --quiet --strict SHA256SUMS && ls | grep -cv SHA256SUMS";
    let found = succeeded(Command::new("bash").args(["-c", check, "bash"]).arg(files.at("out")));
    let sums = fs::read_to_string(files.file("SHA256SUMS")).unwrap();
    assert_eq!(found.trim(), sums.lines().count().to_string(), "{sums}");
    // One program differs: so do the files with it, and no others.
    fs::write(files.at("program-arm64"), b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\xb7\0\0").unwrap();
    assert!(files.pack_again("other", &[("amd64", "amd64"), ("arm64", "arm64")]).status.success());
    let other = fs::read_to_string(files.at("other").join("SHA256SUMS")).unwrap();
    let changed = other.lines().filter(|line| !sums.contains(line)).map(|line| &line[66..]);
    let (image, archive) =
        (format!("inplace-{VERSION}-image.tar"), format!("inplace-{VERSION}-linux-arm64.tar.gz"));
    let expected = [image.as_str(), archive.as_str(), "inplace.yaml", "inplace_1.2.3~rc.1_arm64.deb"];
    assert_eq!(changed.collect::<Vec<_>>(), expected);
}

#[test]
fn a_program_of_another_architecture_is_refused() {
    let files = packed();
    let output = files.pack_again("wrong", &[("amd64", "arm64")]);
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("no program for amd64"), "{message}");
    assert_eq!(fs::read_dir(files.at("wrong")).unwrap().count(), 0);
}

#[test]
fn krew_finds_its_archives_and_the_files_in_them() {
    let files = packed();
    let plugin: Value =
        serde_saphyr::from_str(&fs::read_to_string(files.file("inplace.yaml")).unwrap()).unwrap();
    assert_eq!(plugin["kind"], "Plugin");
    assert_eq!(plugin["spec"]["version"], format!("v{VERSION}"));
    let sums = fs::read_to_string(files.file("SHA256SUMS")).unwrap();
    let mut architectures = Vec::new();
    for platform in plugin["spec"]["platforms"].as_array().unwrap() {
        let uri = platform["uri"].as_str().unwrap();
        let name = uri.strip_prefix(URL).and_then(|rest| rest.strip_prefix('/')).unwrap();
        let sum = platform["sha256"].as_str().unwrap();
        assert!(sums.lines().any(|line| line == format!("{sum}  {name}")), "{platform}");
        let folder = files.unpacked(name);
        for file in platform["files"].as_array().unwrap() {
            assert_eq!(file["to"], ".");
            assert!(folder.join(file["from"].as_str().unwrap()).is_file(), "{file}");
        }
        let arch = platform["selector"]["matchLabels"]["arch"].as_str().unwrap();
        let top = folder.join(name.strip_suffix(".tar.gz").unwrap());
        assert_eq!(platform["bin"], "inplace");
        let program = fs::read(files.at(&format!("program-{arch}"))).unwrap();
        assert_eq!(fs::read(top.join("inplace")).unwrap(), program);
        for file in ["man/man1/inplace-rollout-status.1", "completions/inplace.bash", "completions/_inplace"]
        {
            assert!(fs::metadata(top.join(file)).unwrap().len() > 100, "{file}");
        }
        architectures.push(arch.to_owned());
    }
    assert_eq!(architectures, ["amd64", "arm64"]);
}

/// A user who has only the files of a release installs with kustomize what a clone installs.
#[test]
fn the_manifests_of_a_release_install_what_those_of_the_sources_do() {
    let files = packed();
    let name = format!("inplace-{VERSION}-manifests");
    let folder = files.unpacked(&format!("{name}.tar.gz")).join(name);
    assert!(folder.join("LICENSE").is_file());
    let rendered = |path: &Path| succeeded(Command::new("kubectl").arg("kustomize").arg(path));
    let preset = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../daemonset/base]\n\
                  components: [../daemonset/platforms/k3s]\n";
    fs::create_dir(folder.join("overlay")).unwrap();
    fs::write(folder.join("overlay/kustomization.yaml"), preset).unwrap();
    assert!(rendered(&folder.join("overlay")).contains("/run/k3s/containerd"), "the preset of k3s");
    let mut others = Vec::new();
    for entry in fs::read_dir("daemonset").unwrap() {
        let source = entry.unwrap().path();
        let kustomization = fs::read_to_string(source.join("kustomization.yaml")).unwrap_or_default();
        if kustomization.contains("kind: Kustomization") {
            assert_eq!(rendered(&folder.join(&source)), rendered(&source), "{}", source.display());
        } else if source.is_dir() && !folder.join(&source).is_dir() {
            others.push(source.file_name().unwrap().to_owned());
        }
    }
    others.retain(|name| name != "__pycache__");
    assert_eq!(others, ["chart"], "it has files of its own");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the folder of whoever builds, which no page may name")]
fn the_manual_has_a_page_with_examples_for_every_command() {
    let files = packed();
    let pages = files.at("share/man");
    let page = |name: &str| fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
    let restart = page("inplace-restart");
    for part in ["inplace restart pod/web", "max\\-unavailable", "INPLACE_LOG"] {
        assert!(restart.contains(part), "{part}: {restart}");
    }
    let all = page("inplace");
    assert!(all.contains("inplace\\-rollout(1)") && !all.contains("inplace\\-hold"), "{all}");
    // The defaults are not those of the user who builds.
    let home = std::env::var("HOME").unwrap();
    for page in fs::read_dir(&pages).unwrap() {
        let path = page.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        assert!(home.len() < 2 || !text.contains(&home), "{}", path.display());
    }
}

/// Runs a script with a PATH of only `tools`, which are scripts.
fn with_tools(tools: &[(&str, &str)], script: &[&str]) -> String {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in tools {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/bash\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("/bin/bash");
    let output = command.args(script).env_clear().env("PATH", folder.path()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_missing_tool_is_named() {
    let missing = with_tools(&[("python3", "")], &["dist/needs.sh", "python3", "skopeo", "cargo"]);
    let lines: Vec<_> = missing.lines().collect();
    assert_eq!(lines.len(), 2, "{missing}");
    assert!(lines[0].contains("skopeo") && lines[1].contains("Rust toolchain"), "{missing}");
    assert_eq!(with_tools(&[("skopeo", "")], &["dist/needs.sh", "skopeo"]), "");
}

#[test]
fn an_architecture_that_cannot_be_built_is_named_with_what_is_missing() {
    let tools = [
        ("dirname", "/usr/bin/dirname \"$@\""),
        ("bash", "/bin/bash \"$@\""),
        ("cargo", ""),
        ("python3", ""),
        // It is not asked: a build changes no toolchain.
        ("rustup", "echo rustup $*"),
        ("rustc", "[ \"$1\" = --version ] && echo rustc 1.95.0 || echo /absent"),
    ];
    let missing = with_tools(&tools, &["dist/build.sh", "--check", "arm64"]);
    for part in
        ["aarch64-linux-gnu-gcc (Debian", "standard library for aarch64-unknown-linux-musl, of rustc 1.95.0"]
    {
        assert!(missing.contains(part), "{part}: {missing}");
    }
    assert_eq!(missing.lines().count(), 2, "{missing}");
}
