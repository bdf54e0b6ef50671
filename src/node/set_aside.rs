//! Sets an operation aside: an operation that this program cannot continue ends as it is, with a reason. Its fences
//! are removed; its containers are left to their kubelet.
//!
//! This concerns an operation in which the process has panicked twice, which would end the process repeatedly
//! together with all other operations, and an operation that another release has begun and this release cannot
//! parse.

use crate::api::pod_ref::PodRef;
use crate::api::status::{Phase, Status, Step};
use crate::node::drive::{self, ControlHandle, Observer, OperationEvent};
use crate::node::journal::{Entry, File, Foreign, Journal, JournalError};
use crate::node::journal_writer::JournalWriter;
use crate::node::time_limits;
use crate::node::{Node, sweep};
use crate::operation::effect::GateAction;
use crate::operation::outcome::{Failure, Outcome};
use crate::operation::report;
use crate::process::clock;
use crate::process::log::chain;

/// How many panics in one operation may end the process.
const MAX_PANICS: usize = 2;

impl Node {
    /// Whether the work on the request `id` has ended the process too often.
    pub(super) async fn panics_too_often(&self, pod: &PodRef, id: &str) -> Result<bool, JournalError> {
        let (of, id) = (pod.clone(), id.to_owned());
        let count = move |journal: &Journal| Ok(journal.panics(&of, &id));
        Ok(self.journal.run_blocking(File::Panics, &pod.uid, count).await? >= MAX_PANICS)
    }

    /// Sets aside the open operation in which the process has panicked.
    pub(super) async fn set_operation_aside(
        &self,
        mut entry: Entry,
        control: &ControlHandle,
        observer: &Observer,
    ) -> Status {
        let Some(mut operation) = entry.open.take() else {
            let id = entry.last.as_ref().map(|last| last.id.clone()).unwrap_or_default();
            return Box::pin(self.set_request_aside(entry, &id, control, observer)).await;
        };
        let failure = Failure::SetAside { panics: MAX_PANICS };
        let touched = operation.touched();
        let outcome = match operation.rollback_cause.clone() {
            Some(first) => Outcome::Failed { failure: first, then: Some(failure), touched: true },
            None => Outcome::Failed { failure, then: None, touched },
        };
        operation.finish(outcome, clock::now());
        entry.owed_gate = operation.owed_gate(entry.owed_gate);
        self.end_aside(entry, report::status(&operation), control, observer).await
    }

    /// Sets aside a request in which the process has panicked before an operation began.
    pub(super) async fn set_request_aside(
        &self,
        entry: Entry,
        id: &str,
        control: &ControlHandle,
        observer: &Observer,
    ) -> Status {
        let failure = Failure::SetAside { panics: MAX_PANICS };
        let status = report::not_begun(id, Phase::Failed, failure.reason(), &failure, clock::now());
        self.end_aside(entry, status, control, observer).await
    }

    /// Sets aside the open operation of another release.
    pub(super) async fn set_foreign_aside(
        &self,
        mut entry: Entry,
        foreign: &Foreign,
        control: &ControlHandle,
        observer: &Observer,
    ) -> Status {
        let message = format!(
            "another release of inplace started this operation, and this release cannot continue it ({}): the \
             containers were left in their current state; check the pod, then make a new request",
            foreign.why
        );
        let status = Status {
            id: foreign.id.clone(),
            phase: Phase::Failed,
            step: foreign.touched.then_some(Step::Swap),
            reason: Failure::SetAside { panics: 0 }.reason().to_owned(),
            message,
            started_at: None,
            finished_at: Some(clock::now()),
            group: None,
            containers: Vec::new(),
        };
        // A pod whose container it touched may not take traffic as it is.
        if foreign.touched {
            entry.owed_gate = Some(GateAction::Failed);
        }
        self.end_aside(entry, status, control, observer).await
    }

    /// Ends an operation that is open in the journal although its end was published: the disk did not accept the
    /// final write.
    pub(super) async fn conclude_answered(
        &self,
        mut entry: Entry,
        status: Status,
        control: &ControlHandle,
    ) -> Status {
        let pod = entry.pod.clone();
        tracing::warn!(
            %pod,
            id = status.id,
            "the end of this operation was published but is not in the journal: the operation is not continued"
        );
        if let Some(operation) = entry.open.take() {
            entry.owed_gate = operation.owed_gate_after(status.phase, entry.owed_gate);
        }
        entry.conclude(status.clone());
        self.write_end(&entry, control).await;
        status
    }

    async fn end_aside(
        &self,
        mut entry: Entry,
        status: Status,
        control: &ControlHandle,
        observer: &Observer,
    ) -> Status {
        tracing::error!(
            pod = %entry.pod,
            id = status.id,
            message = status.message,
            "operation set aside: it is not continued"
        );
        entry.conclude(status.clone());
        observer(OperationEvent::Status(&status));
        self.write_end(&entry, control).await;
        status
    }

    /// Writes the end of an operation that is not continued, and removes what it has left behind.
    async fn write_end(&self, entry: &Entry, control: &ControlHandle) {
        let pod = &entry.pod;
        let mut journal = JournalWriter::new(self.journal.clone());
        if let Err(error) = journal.write(entry, time_limits::JOURNAL_LIMIT).await {
            drive::persist(self, &mut journal, entry, error, &control.shutdown).await;
        }
        self.forget_panics(pod).await;
        if let Err(error) = sweep::sweep(&self.client, &self.journal, Some(pod)).await {
            tracing::warn!(
                %pod,
                error = chain(&error),
                "the fences of the pod cannot be removed now: a later sweep removes them"
            );
        }
    }
}
