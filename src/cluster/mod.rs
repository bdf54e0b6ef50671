//! The API server: how to reach it, what is read and written there: pods, hooks, certificates.
//!
//! Every call is bounded and made once; what a failure means is told by [`error`]. Must not decide anything about
//! operations, and log nothing of an object: there are environment values in pods and passwords in secrets.

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
