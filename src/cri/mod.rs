//! The container runtime, spoken to over its own socket.
//!
//! Nothing in here decides anything: it asks, tells, and reports what it heard.
pub mod client;
pub mod clone;
pub mod convert;
pub mod endpoint;
pub mod error;
pub mod identity;
pub mod log_path;
pub mod proto;
