//! `InPlaceRollout`s of a person: made by `restart` and `swap` of a workload, followed, held, gone on with and cancelled.
//!
//! Writes `InPlaceRollout`s and nothing else; the controller does the rest.

pub(super) mod change;
mod draft;
pub(super) mod flags;
mod follow;
pub(super) mod make;
pub(super) mod names;
mod server;
pub(super) mod status;
mod table;
mod verdict;
