//! Traces of operations for a collector of OpenTelemetry: a span per operation, and below it a span per effect and per
//! downtime. Without the address of a collector nothing is recorded. Must never delay an operation: what cannot be sent is
//! dropped and counted.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::agent::request_source::Key;
use crate::agent::traces::span::{Effects, OperationSpans};
use crate::api::status::Status;
use crate::failure::Class;
use crate::operation::effect::Verb;
use crate::process::clock;

mod export;
mod otlp;
mod span;

pub(super) use export::{Exporter, TraceArgs, Traces};

/// Records one operation.
#[derive(Debug)]
pub(super) struct Recorder {
    traces: Traces,
    effects: Mutex<Effects>,
}

impl Recorder {
    pub(super) fn new(traces: Traces) -> Self {
        Self { traces, effects: Mutex::default() }
    }

    /// Records an effect that has just ended.
    pub(super) fn effect(&self, verb: Verb, container: &str, took: Duration, error: Option<Class>) {
        if self.traces.is_enabled() {
            let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
            effects.add(verb, container, took, error, clock::now());
        }
    }

    /// Sends the trace of the operation, if `status` says that it has ended.
    pub(super) fn ended(&self, pod: &Key, status: &Status) {
        if self.traces.is_enabled() {
            let mut effects = self.effects.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(spans) = OperationSpans::of(pod, status, &mut effects) {
                self.traces.send(spans);
            }
        }
    }
}
