//! The files of a release in a real registry, which has no referrers API: they are read back as clients find them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::lab::Lab;
use crate::support::release_files::{ReleaseFiles, VERSION, json, succeeded};

/// Pushes, and returns the pushed references.
fn push(lab: &Lab, files: &ReleaseFiles) -> String {
    let mut command = Command::new("bash");
    command.arg("dist/push.sh").arg(files.at("out")).env("INSECURE_REGISTRY", "1");
    command.env("IMAGE", format!("{}/release/inplace", lab.registry));
    command.env("CHART", format!("{}/release/charts", lab.registry));
    succeeded(&mut command)
}

/// The digest and the content of a manifest.
fn manifest(lab: &Lab, repository: &str, reference: &str) -> (String, Value) {
    let mut command = Command::new("curl");
    command.args(["-sSf", "-D", "/dev/stderr", "-H"]);
    command
        .arg("Accept: application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json");
    command.arg(format!("http://{}/v2/release/{repository}/manifests/{reference}", lab.registry));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let headers = String::from_utf8(output.stderr).unwrap().to_lowercase();
    let digest = headers.lines().find_map(|line| line.strip_prefix("docker-content-digest: ")).unwrap();
    (digest.trim().to_owned(), serde_json::from_slice(&output.stdout).unwrap())
}

/// A blob, as text.
fn blob(lab: &Lab, repository: &str, descriptor: &Value) -> String {
    let digest = descriptor["digest"].as_str().unwrap();
    let url = format!("http://{}/v2/release/{repository}/blobs/{digest}", lab.registry);
    succeeded(Command::new("curl").args(["-sSf", &url]))
}

#[test]
fn a_registry_has_the_index_its_components_and_the_chart() {
    let lab = Lab::shared();
    let files = ReleaseFiles::packed(Path::new(env!("CARGO_BIN_EXE_inplace")));
    let pushed = push(lab, &files);

    // Each image has the digest that it has in the file.
    let layout = files.unpacked(&format!("inplace-{VERSION}-image.tar"));
    let entries = json(&layout.join("index.json"))["manifests"].clone();
    let (digest, index) = manifest(lab, "inplace", VERSION);
    assert_eq!(entries[0]["digest"], digest);
    assert!(pushed.contains(&format!("release/inplace:{VERSION}@{digest}\n")), "{pushed}");
    for (image, arch) in index["manifests"].as_array().unwrap().iter().zip(["amd64", "arm64"]) {
        assert_eq!(image["platform"]["architecture"], arch);
        let (_, image) = manifest(lab, "inplace", image["digest"].as_str().unwrap());
        assert!(blob(lab, "inplace", &image["config"]).contains(arch));
    }

    // The components are found by the digest of the index.
    let (_, attached) = manifest(lab, "inplace", &digest.replace(':', "-"));
    for (entry, target) in attached["manifests"].as_array().unwrap().iter().zip(["x86_64", "aarch64"]) {
        let (_, artefact) = manifest(lab, "inplace", entry["digest"].as_str().unwrap());
        assert_eq!(artefact["artifactType"], "application/spdx+json");
        assert_eq!(artefact["subject"]["digest"], digest);
        let document: Value = serde_json::from_str(&blob(lab, "inplace", &artefact["layers"][0])).unwrap();
        assert!(document["name"].as_str().unwrap().contains(target), "{}", document["name"]);
    }

    // What `helm pull oci://HOST/release/charts/inplace` reads.
    let (_, chart) = manifest(lab, "charts/inplace", VERSION);
    assert_eq!(chart["config"]["mediaType"], "application/vnd.cncf.helm.config.v1+json");
    assert_eq!(chart["layers"][0]["mediaType"], "application/vnd.cncf.helm.chart.content.v1.tar+gzip");
    let about: Value = serde_json::from_str(&blob(lab, "charts/inplace", &chart["config"])).unwrap();
    assert_eq!(about["name"], "inplace");

    // Once more changes nothing: the list may have attachments of others.
    let again = push(lab, &files);
    assert!(again.contains(&format!("{} exists, and is not changed", digest.replace(':', "-"))), "{again}");
}

#[test]
fn a_damaged_file_is_not_pushed() {
    let lab = Lab::shared();
    let files = ReleaseFiles::packed(Path::new(env!("CARGO_BIN_EXE_inplace")));
    std::fs::write(files.file("inplace.yaml"), "damaged").unwrap();
    let mut command = Command::new("bash");
    command.arg("dist/push.sh").arg(files.at("out")).env("INSECURE_REGISTRY", "1");
    let output = command.env("IMAGE", format!("{}/damaged/inplace", lab.registry)).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let url = format!("http://{}/v2/damaged/inplace/tags/list", lab.registry);
    let answer = succeeded(Command::new("curl").args(["-sS", &url]));
    assert!(answer.contains("NAME_UNKNOWN"), "{answer}");
}

#[test]
fn a_push_that_fails_is_reported() {
    let files = ReleaseFiles::packed(Path::new(env!("CARGO_BIN_EXE_inplace")));
    let mut command = Command::new("bash");
    command.arg("dist/push.sh").arg(files.at("out")).env("INSECURE_REGISTRY", "1");
    // Nothing listens on this port.
    let output = command.env("IMAGE", "127.0.0.1:1/inplace").output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}
