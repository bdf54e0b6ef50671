//! Requests and statuses without an API server: manifests in one folder, statuses as files in another.
//!
//! Must not change the manifests.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::agent::request_source::{CurrentRequests, Key, RequestSource, StatusSink};
use crate::agent::standalone::pods_dir::PodsDir;
use crate::api::pod_ref::PodRef;
use crate::api::status::{Phase, Status};
use crate::node::hook::TemplateCache;
use crate::operation::report;
use crate::process::clock;

mod pods_dir;
mod results;

pub(super) use crate::agent::standalone::results::Results;

/// The reason in the status of a file that cannot be used.
const INVALID: &str = "InvalidManifest";

/// The request source of a standalone agent: a folder of manifests.
#[derive(Debug)]
pub(super) struct Manifests {
    pods: PodsDir,
    results: Results,
    templates: TemplateCache,
    /// Files that could not be used in the last scan: name and reason. Before the first scan, those of an earlier process,
    /// without a reason.
    problems: BTreeMap<String, String>,
}

impl Manifests {
    /// Watches `folder`, which must exist. A faulty file gets a status in `results`. Hook templates are stored in
    /// `templates`.
    pub(super) fn watch(folder: &Path, results: Results, templates: TemplateCache) -> io::Result<Self> {
        let problems = results.of_files().into_iter().map(|file| (file, String::new())).collect();
        Ok(Self { pods: PodsDir::watch(folder)?, results, templates, problems })
    }

    fn report(&mut self, problems: BTreeMap<String, String>) {
        for (file, problem) in &problems {
            if self.problems.get(file) != Some(problem) {
                tracing::error!(file, problem, "a manifest cannot be used");
                let why = format!("{file}: {problem}");
                let status = report::not_begun("", Phase::Refused, INVALID, &why, clock::now());
                self.results.write(file, &status);
            }
        }
        for file in self.problems.keys().filter(|file| !problems.contains_key(*file)) {
            self.results.remove(file);
        }
        self.problems = problems;
    }
}

impl RequestSource for Manifests {
    fn current(&mut self) -> Option<CurrentRequests> {
        match self.pods.scan() {
            Ok(scan) => {
                self.results.catch_up();
                self.templates.fill(scan.templates);
                self.report(scan.problems);
                Some(CurrentRequests {
                    requests: scan.requests,
                    current: true,
                    unreadable: self.problems.len(),
                })
            }
            Err(error) => {
                tracing::error!(%error, "the folder of manifests cannot be read");
                None
            }
        }
    }

    async fn changed(&mut self) {
        self.pods.changed().await;
    }

    /// A manifest identifies a pod by name, so the key has no uid.
    fn key(&self, pod: &PodRef) -> Key {
        Key { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: None }
    }
}

impl StatusSink for Results {
    fn reported(&self, key: &Key) -> Option<Status> {
        self.read(&file_name(key))
    }

    fn report(&self, key: &Key, status: &Status) {
        self.write(&file_name(key), status);
    }

    fn asked(&self, key: &Key, id: &str) -> Option<bool> {
        Some(self.reported(key).is_some_and(|reported| reported.id == id))
    }
}

/// The name of a pod's result file, without its extension.
fn file_name(key: &Key) -> String {
    format!("{}_{}", key.namespace, key.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_of_a_file_that_was_mended_or_deleted_between_two_processes_is_removed() {
        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let scan = || {
            let results = Results::open(state.path()).unwrap();
            Manifests::watch(folder.path(), results, TemplateCache::default()).unwrap().current().unwrap()
        };
        let path = |name: &str| folder.path().join(name);
        for name in ["mended.yaml", "deleted.yml", "bad.json"] {
            std::fs::write(path(name), "kind: [\n").unwrap();
        }
        assert_eq!(scan().unreadable, 3);
        // A pod whose name ends as that of a file does.
        let results = Results::open(state.path()).unwrap();
        let of_pod = report::not_begun("r", Phase::Refused, "PodNotFound", &"none", clock::now());
        results.write("shop_web.yaml", &of_pod);
        let files = ["mended.yaml", "deleted.yml", "bad.json", "shop_web.yaml"];
        assert_eq!(files.map(|file| results.read(file).is_some()), [true; 4]);
        std::fs::write(path("mended.yaml"), "kind: Pod\nmetadata: {name: web}\n").unwrap();
        std::fs::remove_file(path("deleted.yml")).unwrap();
        assert_eq!(scan().unreadable, 1);
        assert_eq!(files.map(|file| results.read(file).is_some()), [false, false, true, true]);
    }
}
