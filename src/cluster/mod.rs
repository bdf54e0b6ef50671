//! Access to the API server: the connection, and the reads and writes of pods, hooks, workloads, rollouts and
//! certificates.
//!
//! Every call has a deadline and is made once; [`error`] classifies its failures. Must not decide anything about
//! operations. Must not log content of objects: pods contain environment values, and secrets contain passwords.

pub mod access;
pub mod agents;
pub mod annotations;
pub mod changes;
pub mod client;
pub mod confinement;
pub mod credentials;
pub mod error;
pub mod event;
pub mod guard;
mod guarded;
pub mod hooks;
mod items;
mod jitter;
pub mod lease;
pub mod pod;
pub mod pods;
pub mod rollouts;
pub mod server;
pub mod slices;
mod store;
pub mod version;
pub mod webhook;
pub mod workloads;
