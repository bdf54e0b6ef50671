//! The presets of platforms are objects that an API server accepts: a server-side dry run of each. Needs etcd and kube-apiserver,
//! no node. The kind of `OpenShift` is left out: no API server here knows it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::api_server::ApiServer;

#[tokio::test]
async fn the_api_server_accepts_what_each_preset_installs() {
    let server = ApiServer::start().await;
    server.know_our_kinds().await;
    // The namespace has to exist: a dry run creates none.
    server.apply("daemonset/base");
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let here = folder.path().canonicalize().unwrap();
    let up = "../".repeat(here.components().count() - 1);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let root = format!("{up}{}", root.strip_prefix("/").unwrap().display());
    let mut tried = 0;
    for platform in fs::read_dir("daemonset/platforms").unwrap() {
        let platform = platform.unwrap().file_name().into_string().unwrap();
        let base = server.base();
        let overlay =
            format!("resources: [{root}/{base}]\ncomponents: [{root}/daemonset/platforms/{platform}]\n");
        fs::write(here.join("kustomization.yaml"), overlay).unwrap();
        let rendered = Command::new("kubectl").arg("kustomize").arg(&here).output().unwrap();
        assert!(rendered.status.success(), "{platform}: {}", String::from_utf8_lossy(&rendered.stderr));
        let rendered = String::from_utf8(rendered.stdout).unwrap();
        let known =
            rendered.split("\n---\n").filter(|object| !object.contains("kind: SecurityContextConstraints"));
        let known = known.collect::<Vec<_>>().join("\n---\n");
        let output = server.kubectl(&["apply", "--dry-run=server", "-f", "-"], &known);
        let said = [&output.stdout[..], &output.stderr[..]].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{platform}: {said}");
        // Compared with the stored objects: the preset changes the DaemonSet, or adds objects.
        let changes = said.lines().filter(|line| line.contains("configured") || line.contains("created"));
        assert!(changes.count() > 0, "{platform}: {said}");
        tried += 1;
    }
    assert_eq!(tried, 7);
}
