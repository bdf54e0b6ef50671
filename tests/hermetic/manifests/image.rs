//! The image: everything is of one version, the same binary gives the same digest, and the list of its parts is complete.

use std::process::Command;

use serde_json::{Value, json};

use super::{chart, key, kustomize, read};

#[test]
fn all_of_it_is_of_one_version() {
    let version = env!("CARGO_PKG_VERSION");
    let about: Value = serde_saphyr::from_str(&read("daemonset/chart/Chart.yaml")).unwrap();
    assert_eq!((&about["version"], &about["appVersion"]), (&json!(version), &json!(version)));
    for made in [kustomize(&["base"]), chart(&json!({}))] {
        for (kind, name) in [("DaemonSet", "inplace-agent"), ("Deployment", "inplace-controller")] {
            let spec = &made[&key(kind, "inplace-system", name)]["spec"];
            let template = &spec["template"];
            assert_eq!(template["spec"]["containers"][0]["image"], format!("inplace:{version}"), "{name}");
            // `inplace version` reads the label; a selector must not have it, because a release could not change it.
            let label = "app.kubernetes.io/version";
            assert_eq!(template["metadata"]["labels"][label], version, "{name}");
            assert_eq!(spec["selector"]["matchLabels"].get(label), None, "{name}");
        }
    }
}

/// The chart does not know the version of another image, and its next release must not restart the pods of a pinned one.
#[test]
fn another_image_does_not_have_the_version_of_the_chart() {
    for image in [json!({"tag": "dev"}), json!({"digest": format!("sha256:{}", "a".repeat(64))})] {
        let made = chart(&json!({"image": image}));
        for (kind, name) in [("DaemonSet", "inplace-agent"), ("Deployment", "inplace-controller")] {
            let labels = &made[&key(kind, "inplace-system", name)]["spec"]["template"]["metadata"]["labels"];
            assert_eq!(labels["app.kubernetes.io/name"], "inplace", "{name}");
            assert_eq!(labels.get("app.kubernetes.io/version"), None, "{image}: {name}");
        }
    }
}

#[test]
fn the_same_binary_makes_the_same_image() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // The fields that image.py reads: the magic number and the machine, here x86-64.
    let mut program = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0".to_vec();
    // A certificate that is in no public list, for example that of a proxy.
    let own = rcgen::generate_simple_self_signed(["proxy".to_owned()]).unwrap().cert.pem();
    std::fs::write(at("certificates"), &own).unwrap();
    let pack = |out: &str, program: &[u8], arch: &str| {
        std::fs::write(at("program"), program).unwrap();
        let output = Command::new("python3")
            .args(["-B", "daemonset/image.py"])
            .args([at(out), at("program")])
            .args(["--version", "1.2.3", "--arch", arch, "--certificates"])
            .arg(at("certificates"))
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        if output.status.success() {
            Ok(text.trim().to_owned())
        } else {
            Err(String::from_utf8(output.stderr).unwrap())
        }
    };
    let first = pack("one.tar", &program, "amd64").unwrap();
    assert!(first.starts_with("sha256:") && first.len() == 71, "{first}");
    assert_eq!(pack("two.tar", &program, "amd64").unwrap(), first);
    assert_eq!(std::fs::read(at("one.tar")).unwrap(), std::fs::read(at("two.tar")).unwrap());
    // The image does not trust the certificates of the build machine.
    std::fs::write(at("certificates"), "").unwrap();
    assert_eq!(
        pack("three.tar", &program, "amd64").unwrap(),
        first,
        "a certificate of the build host is in the image"
    );
    assert!(pack("wrong.tar", &program, "arm64").unwrap_err().contains("no program for arm64"));
    program.push(0);
    assert_ne!(pack("four.tar", &program, "amd64").unwrap(), first);
    assert!(pack("five.tar", b"#!/bin/sh\nexit 0 # and so on", "amd64").unwrap_err().contains("no program"));
}

#[test]
fn what_the_binary_is_made_of_is_written_down() {
    let output = Command::new("python3")
        .args(["-B", "daemonset/sbom.py", "--target", "x86_64-unknown-linux-musl"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let bom: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(bom["metadata"]["component"]["name"], "inplace");
    let parts = bom["components"].as_array().unwrap();
    let part = |name: &str| parts.iter().find(|part| part["name"] == name);
    let tokio = part("tokio").unwrap();
    assert!(tokio["version"].is_string() && tokio["licenses"][0]["expression"].is_string(), "{tokio}");
    assert_eq!(tokio["hashes"][0]["content"].as_str().unwrap().len(), 64);
    // Only tests use this crate.
    assert!(part("proptest").is_none());
}
