//! The container runtime, spoken to over its own socket.
//!
//! Nothing in here decides anything: it asks, tells, and reports what it heard.
pub mod proto;
