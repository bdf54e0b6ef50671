//! The commands for `InPlaceRollout`s: `restart` and `swap` of a workload create them; others follow, pause,
//! resume and cancel them.
//! Writes `InPlaceRollout`s and nothing else; the controller carries them out.

pub(super) mod change;
mod draft;
pub(super) mod flags;
mod follow;
pub(super) mod make;
pub(super) mod names;
mod server;
pub(super) mod status;
mod table;
pub(super) mod verdict;
