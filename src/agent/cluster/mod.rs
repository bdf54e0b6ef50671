//! Requests and statuses through the API server: the annotations of the node's own pods.
//!
//! Requests come from a watch that may lag or break. Statuses are retried until they are written or the pod is
//! gone. Operations wait for neither.

mod answers;
pub(super) mod confined;
mod failures;
mod gate;
mod gates;
mod hooks;
mod metrics;
mod outbox;
mod prefetch;
mod requests;
mod unwritten;

pub(super) use crate::agent::cluster::answers::Answers;
pub(super) use crate::agent::cluster::failures::Failures;
pub(super) use crate::agent::cluster::hooks::runner;
pub(super) use crate::agent::cluster::metrics::{Writes, register_cache};
pub(super) use crate::agent::cluster::prefetch::Prefetches;
pub(super) use crate::agent::cluster::requests::Watched;
