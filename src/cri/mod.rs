//! The client of the container runtime, over its socket.
//!
//! Decides nothing: it queries the runtime, makes the calls, and reports the results.
pub mod client;
pub mod clone;
pub mod convert;
pub mod endpoint;
pub mod error;
pub mod identity;
pub mod log_path;
pub mod proto;
