//! The decisions: the life of one in-place operation on one pod.
//!
//! ```text
//! Request -> preflight -> Plan -> Operation -> next(operation, snapshot, now) -> Effect -> Fact -> ... -> Status
//! ```
//! Pure: no async, no clock, no I/O. What is seen comes in as a [`snapshot::Snapshot`], time as an argument, and
//! everything that must be done goes out as an [`effect::Effect`].

mod answer;
mod back;
pub mod effect;
mod end;
#[cfg(test)]
mod fixtures;
pub mod next;
pub mod outcome;
pub mod plan;
pub mod preflight;
mod replace;
pub mod report;
pub mod snapshot;
pub mod state;
mod verify;
