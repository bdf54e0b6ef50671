//! The plumbing of a process: time, logs, signals, health and metrics over HTTP, fault points.
//!
//! Knows nothing of pods; imports nothing of ours.

pub mod admin;
pub mod cause;
pub mod clock;
pub mod disk;
pub mod fault;
pub mod file;
pub mod hold;
pub mod log;
pub mod panics;
pub mod shutdown;
