//! The Debian package, unpacked by `dpkg-deb`: its checksums are right, and systemd accepts the unit of the agent.

use std::fs;
use std::process::Command;

use super::packed;
use crate::support::release_files::succeeded;

#[test]
fn the_package_contains_the_program_its_pages_and_a_valid_unit() {
    let files = packed();
    let package = files.file("inplace_1.2.3~rc.1_arm64.deb");
    let fields = succeeded(Command::new("dpkg-deb").arg("--field").arg(&package));
    for field in ["Package: inplace", "Version: 1.2.3~rc.1", "Architecture: arm64"] {
        assert!(fields.lines().any(|line| line == field), "{field}: {fields}");
    }
    let (root, control) = (files.at("root"), files.at("control"));
    succeeded(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root));
    succeeded(Command::new("dpkg-deb").arg("-e").arg(&package).arg(&control));
    let listed = succeeded(Command::new("dpkg-deb").arg("--contents").arg(&package));
    assert!(listed.lines().all(|line| line.contains(" root/root ")), "{listed}");

    let check = "cd \"$1\" && md5sum --check --quiet --strict \"$2\"/md5sums";
    succeeded(Command::new("bash").args(["-c", check, "bash"]).args([&root, &control]));
    for script in ["postinst", "prerm", "postrm"] {
        succeeded(Command::new("sh").arg("-n").arg(control.join(script)));
    }
    let program = root.join("usr/bin/inplace");
    assert_eq!(fs::read(&program).unwrap(), fs::read(files.at("program-arm64")).unwrap());
    assert_eq!(fs::read_link(root.join("usr/bin/kubectl-inplace")).unwrap().to_str(), Some("inplace"));
    let page = "zcat \"$1/usr/share/man/man1/inplace-agent.1.gz\"";
    let page = succeeded(Command::new("bash").args(["-c", page, "bash"]).arg(&root));
    assert!(page.contains("standalone"), "{page}");
    for conffile in fs::read_to_string(control.join("conffiles")).unwrap().lines() {
        assert!(root.join(&conffile[1..]).is_file(), "{conffile}");
    }

    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/inplace-agent.service")).unwrap();
    for (key, path) in
        [("EnvironmentFile=-", "etc/default/inplace-agent"), ("INPLACE_PODS_DIR=", "etc/inplace/pods")]
    {
        assert!(unit.contains(&format!("{key}/{path}\n")) && root.join(path).exists(), "{path}: {unit}");
    }
    // systemd looks for the program where it would be installed.
    let unit = unit.replace("/usr/bin/inplace", program.to_str().unwrap());
    let path = files.at("inplace-agent.service");
    fs::write(&path, unit).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&path).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn the_command_of_the_unit_is_one_of_this_program() {
    let unit = fs::read_to_string("dist/debian/inplace-agent.service").unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/inplace ")).unwrap();
    let mut agent = Command::new(env!("CARGO_BIN_EXE_inplace"));
    // The flags before --help are parsed; an unknown one is an error.
    let output = agent.args(command.split(' ')).arg("--help").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
