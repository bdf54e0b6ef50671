//! Wishes and answers through the API server: the annotations of the node's own pods.
//!
//! What is read comes from a watch that may lag or break; what is written is retried until it is there or the pod is
//! gone. No operation waits for either.

mod answers;
pub(super) mod confined;
mod gate;
mod gates;
mod hooks;
mod metrics;
mod outbox;
mod recall;
mod requests;

pub(super) use crate::agent::cluster::answers::Answers;
pub(super) use crate::agent::cluster::hooks::runner;
pub(super) use crate::agent::cluster::metrics::{Writes, register_cache};
pub(super) use crate::agent::cluster::requests::Watched;
