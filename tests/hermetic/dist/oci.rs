//! The image index, its lists of components and the chart, as OCI archives: every blob is what its descriptor says.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::packed;
use crate::support::release_files::{VERSION, json, succeeded};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const REFERENCE: &str = "org.opencontainers.image.ref.name";

/// The path of a blob, whose digest and size are checked.
fn blob(layout: &Path, descriptor: &Value) -> std::path::PathBuf {
    let digest = descriptor["digest"].as_str().unwrap();
    let path = layout.join("blobs").join(digest.replace(':', "/"));
    let content = fs::read(&path).unwrap_or_else(|error| panic!("{descriptor}: {error}"));
    assert_eq!(descriptor["size"], content.len(), "{descriptor}");
    let sum = ring::digest::digest(&ring::digest::SHA256, &content);
    let hex: Vec<_> = sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(digest, format!("sha256:{}", hex.concat()));
    path
}

/// Checks everything below a descriptor, and counts the blobs.
fn check(layout: &Path, descriptor: &Value) -> usize {
    let path = blob(layout, descriptor);
    let kind = descriptor["mediaType"].as_str().unwrap();
    if !(kind == INDEX || kind.ends_with(".image.manifest.v1+json")) {
        return 1;
    }
    let document = json(&path);
    assert_eq!(document["mediaType"], kind);
    let lists = ["manifests", "layers"].into_iter().filter_map(|list| document[list].as_array()).flatten();
    let single = ["config", "subject"].into_iter().filter_map(|field| document.get(field));
    1 + lists.chain(single).map(|below| check(layout, below)).sum::<usize>()
}

#[test]
fn the_index_has_both_architectures_and_a_list_of_components_of_each() {
    let files = packed();
    let layout = files.unpacked(&format!("inplace-{VERSION}-image.tar"));
    assert_eq!(json(&layout.join("oci-layout")), json!({"imageLayoutVersion": "1.0.0"}));
    let entries = json(&layout.join("index.json"))["manifests"].as_array().unwrap().clone();
    let [index, attached] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((&index["mediaType"], &index["annotations"][REFERENCE]), (&json!(INDEX), &json!(VERSION)));
    // The index; two manifests, each with configuration and two layers.
    assert_eq!(check(&layout, index), 1 + 2 * 4);
    let images = json(&blob(&layout, index))["manifests"].as_array().unwrap().clone();
    for (image, arch) in images.iter().zip(["amd64", "arm64"]) {
        assert_eq!(image["platform"], json!({"architecture": arch, "os": "linux"}));
        let config = json(&blob(&layout, &json(&blob(&layout, image))["config"]));
        assert_eq!(config["architecture"], arch);
    }

    let tag = index["digest"].as_str().unwrap().replace(':', "-");
    assert_eq!(attached["annotations"][REFERENCE], tag);
    check(&layout, attached);
    let documents = json(&blob(&layout, attached))["manifests"].as_array().unwrap().clone();
    assert_eq!(documents.len(), images.len());
    for (entry, target) in documents.iter().zip(["x86_64", "aarch64"]) {
        let manifest = json(&blob(&layout, entry));
        assert_eq!(manifest["artifactType"], "application/spdx+json");
        assert_eq!(entry["artifactType"], manifest["artifactType"]);
        for field in ["digest", "size", "mediaType"] {
            assert_eq!(manifest["subject"][field], index[field]);
        }
        let path = blob(&layout, &manifest["layers"][0]);
        let name = entry["annotations"]["org.opencontainers.image.title"].as_str().unwrap();
        assert_eq!(fs::read(&path).unwrap(), fs::read(files.file(name)).unwrap());
        components(&json(&path), target);
    }
}

/// Checks an SPDX document.
fn components(document: &Value, target: &str) {
    assert_eq!((&document["spdxVersion"], &document["dataLicense"]), (&json!("SPDX-2.3"), &json!("CC0-1.0")));
    assert!(document["name"].as_str().unwrap().contains(target), "{}", document["name"]);
    assert_eq!(document["creationInfo"]["created"], "2026-01-02T03:04:05Z");
    let packages = document["packages"].as_array().unwrap();
    let package = |name: &str| packages.iter().find(|package| package["name"] == name);
    let tokio = package("tokio").unwrap();
    assert_eq!(tokio["checksums"][0]["checksumValue"].as_str().unwrap().len(), 64);
    assert_eq!(tokio["licenseDeclared"], "MIT");
    // Only tests use this crate.
    assert!(package("proptest").is_none());
    let identifiers: std::collections::BTreeSet<_> =
        packages.iter().map(|package| &package["SPDXID"]).map(Value::to_string).collect();
    assert_eq!(identifiers.len(), packages.len(), "every identifier is unique");
    let relations = document["relationships"].as_array().unwrap();
    let own = &package("inplace").unwrap()["SPDXID"];
    assert!(relations.contains(
        &json!({"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": own})
    ));
    assert!(relations.contains(
        &json!({"spdxElementId": own, "relationshipType": "DEPENDS_ON", "relatedSpdxElement": tokio["SPDXID"]})
    ));
    for relation in relations {
        assert!(identifiers.contains(&relation["relatedSpdxElement"].to_string()), "{relation}");
    }
}

#[test]
fn the_chart_is_an_artefact_as_helm_makes_it() {
    let files = packed();
    let layout = files.unpacked(&format!("inplace-{VERSION}-chart.tar"));
    let entry = json(&layout.join("index.json"))["manifests"][0].clone();
    assert_eq!(check(&layout, &entry), 3);
    let manifest = json(&blob(&layout, &entry));
    assert_eq!(manifest["config"]["mediaType"], "application/vnd.cncf.helm.config.v1+json");
    let about: Value =
        serde_saphyr::from_str(&fs::read_to_string("daemonset/chart/Chart.yaml").unwrap()).unwrap();
    assert_eq!(json(&blob(&layout, &manifest["config"])), about);
    let layer = &manifest["layers"][0];
    assert_eq!(layer["mediaType"], "application/vnd.cncf.helm.chart.content.v1.tar+gzip");
    let name = format!("inplace-{VERSION}.tgz");
    assert_eq!(fs::read(blob(&layout, layer)).unwrap(), fs::read(files.file(&name)).unwrap());
    let listed = succeeded(Command::new("tar").arg("-tzf").arg(files.file(&name)));
    assert_eq!(listed.lines().next(), Some("inplace/Chart.yaml"));
    let unpacked = files.unpacked(&name).join("inplace");
    succeeded(Command::new("diff").args(["-r", "daemonset/chart"]).arg(unpacked));
}
