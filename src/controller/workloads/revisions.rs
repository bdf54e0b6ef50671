//! Reads the `ControllerRevision`s of a workload, with the templates of those that are needed, and reports those
//! that are not adopted.
//!
//! Must not write or adopt a revision.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::cluster::error::Error;
use crate::controller::workloads::Context;
use crate::controller::workloads::cache::{Key, PodEntry, Workload};
use crate::podtask::write::{Event, VersionedRef};
use crate::workload::revision::{self, Record, Revision};

/// The most bytes of templates, as text, that one reconciliation loads. A revision beyond this limit counts as
/// missing.
const MAX_BYTES: usize = 3 << 20;
/// How many reported revisions are remembered, so that each is reported once.
const REMEMBERED: usize = 4096;
/// How many revisions are reported in one reconciliation.
const AT_ONCE: usize = 10;

/// The revision history of a workload.
pub(super) struct History {
    /// All revisions, without their templates.
    pub(super) records: Vec<Record>,
    /// The revisions whose templates the decision needs.
    pub(super) needed: Vec<Revision>,
}

/// Reads the history. The template of a revision is read only if a pod is at that revision, or is on its way to
/// it.
pub(super) async fn history(
    context: &Context,
    workload: &Workload,
    own: &[PodEntry],
) -> Result<History, Error> {
    let spec = &workload.spec;
    let records = context.cache.revisions(spec);
    let pods = own.iter().filter_map(|pod| pod.value.pod.as_deref());
    let names = revision::needed(pods, [&workload.report.current_revision, &workload.report.stable_revision]);
    let newest = revision::digest(&spec.template);
    let mut needed = Vec::new();
    let mut left = MAX_BYTES;
    for (uid, record) in records.iter().filter(|(_, record)| names.contains(record.name.as_str())) {
        let template = if record.digest == newest {
            Some((spec.template.clone(), 0))
        } else if let Some(cached) = context.contents.get(uid) {
            Some(cached)
        } else {
            let read = context.server.revision_template(&spec.namespace, &record.name, uid).await?;
            read.map(|template| {
                let bytes = context.contents.put(&spec.namespace, uid, &template);
                (template, bytes)
            })
        };
        let Some((template, bytes)) = template.filter(|(_, bytes)| *bytes <= left) else { continue };
        left -= bytes;
        needed.push(Revision { name: record.name.clone(), number: record.number, template });
    }
    Ok(History { records: records.into_iter().map(|(_, record)| record).collect(), needed })
}

/// The revisions that were reported on workloads, by the uids of both.
#[derive(Debug, Default)]
pub(super) struct ReportedRevisions(Mutex<BTreeSet<(String, String)>>);

impl ReportedRevisions {
    fn is_new(&self, workload: &str, revision: &str) -> bool {
        let mut reported = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() >= REMEMBERED {
            reported.clear();
        }
        reported.insert((workload.to_owned(), revision.to_owned()))
    }
}

/// Reports each revision that looks like one of the workload's but is not adopted, once.
pub(super) async fn report_unadopted(context: &Context, key: &Key, workload: &Workload) {
    let uid = &workload.spec.uid;
    let unadopted = context.cache.unadopted_revisions(&workload.spec);
    let is_new = |revision: &&VersionedRef| context.reported_revisions.is_new(uid, &revision.uid);
    for revision in unadopted.iter().filter(is_new).take(AT_ONCE) {
        let message = format!(
            "ControllerRevision {} has no owner and has the name and labels of a revision of this workload, but its content \
             does not match the hash in its name: it is not adopted",
            revision.name
        );
        context.events.report(key.reference(uid), &Event::warning("RevisionNotAdopted", message)).await;
    }
}
