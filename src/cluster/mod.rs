//! Access to the API server: the connection, the watched caches, leases, events, and the reads and writes of pods,
//! hooks and certificates. The controller keeps the caches of its own kinds.
//!
//! Every call has a deadline and is made once; [`error`] classifies its failures. Must not decide anything about
//! operations. Must not log content of objects: pods contain environment values, and secrets contain passwords.

pub mod access;
pub mod agents;
pub mod annotations;
pub mod client;
pub mod confinement;
pub mod credentials;
mod discovery;
pub mod error;
pub mod event;
pub mod groups;
pub mod hooks;
mod items;
mod jitter;
pub mod lease;
mod lenient;
pub mod overrides;
pub(crate) mod patch;
pub mod pod;
pub mod pods;
pub mod server;
pub mod slices;
pub(crate) mod store;
pub(crate) mod trim;
pub mod version;
pub mod webhook;
