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

/// The request source of a standalone agent: a folder of manifests.
#[derive(Debug)]
pub(super) struct Manifests {
    pods: PodsDir,
    results: Results,
    templates: TemplateCache,
    /// Files that could not be used in the last scan: name and reason.
    problems: BTreeMap<String, String>,
}

impl Manifests {
    /// Watches `folder`, which must exist. A faulty file gets a status in `results`. Hook templates are stored in
    /// `templates`.
    pub(super) fn watch(folder: &Path, results: Results, templates: TemplateCache) -> io::Result<Self> {
        Ok(Self { pods: PodsDir::watch(folder)?, results, templates, problems: BTreeMap::new() })
    }

    fn report(&mut self, problems: BTreeMap<String, String>) {
        for (file, problem) in &problems {
            if self.problems.get(file) != Some(problem) {
                tracing::error!(file, problem, "a manifest cannot be used");
                let why = format!("{file}: {problem}");
                let status = report::not_begun("", Phase::Refused, "InvalidManifest", &why, clock::now());
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
