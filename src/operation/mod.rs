//! The decisions about one in-place operation on one pod.
//!
//! ```text
//! Request -> preflight -> Plan -> Operation -> next(operation, snapshot, now) -> Effect -> EffectOutput -> ... -> Status
//! ```
//! Pure: no async, no clock, no I/O. Observations come in as a [`snapshot::Snapshot`] and the time as an argument.
//! Everything that must be done goes out as an [`effect::Effect`].

mod decision;
mod drain;
mod duplicate;
pub mod effect;
pub mod end;
pub mod engine;
pub mod fence;
#[cfg(test)]
mod fixtures;
pub mod group;
pub mod hook;
pub mod last_failure;
pub mod memory;
pub mod next;
pub mod note;
pub mod outcome;
pub mod plan;
pub mod port;
pub mod preflight;
mod probe;
pub mod replace;
mod replacement;
pub mod report;
mod respec;
mod rollback;
mod sandbox_lost;
pub mod snapshot;
pub mod spec_hash;
pub mod standby;
pub mod startup;
pub mod state;
pub mod unclear;
mod verify;
