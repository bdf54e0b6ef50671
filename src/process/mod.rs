//! Services of a process: time, random numbers, logs, signals, files, health and metrics over HTTP, fault points.
//!
//! Contains nothing about pods, and imports no other module of this crate.

#[cfg(target_os = "linux")]
pub mod admin;
pub mod backoff;
pub mod cause;
pub mod clock;
pub mod color;
#[cfg(target_os = "linux")]
pub(crate) mod connections;
pub mod disk;
pub mod fault;
pub mod file;
pub mod hold;
pub mod listen;
pub mod log;
pub mod metrics;
#[cfg(target_os = "linux")]
pub mod panics;
pub(crate) mod permits;
pub mod random;
pub mod shutdown;
pub mod signals;
#[cfg(target_os = "linux")]
pub mod sockets;
