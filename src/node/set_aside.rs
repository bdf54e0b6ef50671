//! Setting an operation aside: what this program cannot carry on ends as it is, with a reason. Its fences are removed, its
//! containers are left to their kubelet.
//!
//! That is an operation in which the process has panicked twice, which would end it again and again with all others, and
//! one that another release has begun and this one does not understand.

use crate::api::status::{Phase, Status};
use crate::node::drive::{Audience, Happening};
use crate::node::journal::{Entry, Foreign};
use crate::node::{Node, sweep};
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::report;
use crate::operation::snapshot::PodRef;
use crate::process::clock;
use crate::process::log::chain;

/// How often the process may end by a panic in one operation.
const MOST_PANICS: usize = 2;

impl Node {
    /// Whether the work on the request `id` has ended the process too often.
    pub(super) fn panics_too_often(&self, pod: &PodRef, id: &str) -> bool {
        self.journal.panics(pod, id) >= MOST_PANICS
    }

    /// The open operation in which the process has panicked.
    pub(super) async fn set_operation_aside(&self, mut entry: Entry, audience: &Audience) -> Status {
        let Some(mut operation) = entry.open.take() else {
            let id = entry.last.as_ref().map(|last| last.id.clone()).unwrap_or_default();
            return Box::pin(self.set_request_aside(entry, &id, audience)).await;
        };
        let failure = Failure::SetAside { panics: MOST_PANICS };
        let touched = operation.touched();
        let outcome = match operation.turned_back.clone() {
            Some(first) => Outcome::Failed { failure: first, then: Some(failure), touched: true },
            None => Outcome::Failed { failure, then: None, touched },
        };
        operation.finish(outcome, clock::now());
        entry.owed_gate = operation.owed_gate();
        self.end_aside(entry, report::status(&operation), audience).await
    }

    /// A request in which the process has panicked before it was an operation.
    pub(super) async fn set_request_aside(&self, entry: Entry, id: &str, audience: &Audience) -> Status {
        let failure = Failure::SetAside { panics: MOST_PANICS };
        let status = report::not_begun(id, Phase::Failed, failure.reason(), &failure, clock::now());
        self.end_aside(entry, status, audience).await
    }

    /// The open operation of another release.
    pub(super) async fn set_foreign_aside(
        &self,
        entry: Entry,
        foreign: &Foreign,
        audience: &Audience,
    ) -> Status {
        let message = format!(
            "another release of inplace has begun this, and this one cannot carry it on ({}): the containers were left as \
             they are; look at the pod, then make another request",
            foreign.why
        );
        let status = Status {
            id: foreign.id.clone(),
            phase: Phase::Failed,
            step: None,
            reason: Failure::SetAside { panics: 0 }.reason().to_owned(),
            message,
            started_at: None,
            finished_at: Some(clock::now()),
            containers: Vec::new(),
        };
        self.end_aside(entry, status, audience).await
    }

    async fn end_aside(&self, mut entry: Entry, status: Status, audience: &Audience) -> Status {
        let pod = entry.pod.clone();
        tracing::error!(%pod, id = status.id, message = status.message, "set aside");
        entry.conclude(status.clone());
        if let Err(error) = self.journal.write(&entry) {
            tracing::error!(%pod, error = chain(&error), "the end of the operation is not in the journal");
        }
        self.journal.forget_panics(&pod);
        if let Err(error) = sweep::sweep(&self.client, &self.journal, Some(&pod)).await {
            tracing::warn!(%pod, error = chain(&error), "its fences are removed later");
        }
        audience(Happening::Status(&status));
        status
    }
}
