//! The task of a controller on one pod, shared by workloads and rollouts: record, request, answer, end. Pure: no async,
//! no clock, no I/O.
//!
//! ```text
//!  pod as read ──▶ pod::Pod ──┐
//!  record on the pod ─────────┼──▶ state::TaskState ──▶ the controller's decision ──▶ write::PodPatch
//!  agent's answer on the pod ─┘            ▲                                               │
//!                                          └── the agent answers ◀── record and request ───┘
//! ```
//!
//! A controller records its task on the pod in the same write as the request, so that another replica continues where
//! the last one stopped. Each write is conditional on the version of the pod that was read.

pub mod amount;
pub mod budget;
pub mod disruption;
pub mod foreign;
pub mod node_load;
pub mod pod;
pub mod prefetch;
pub mod priority;
pub mod resources;
pub mod start_first;
pub mod state;
pub mod task;
pub mod time;
pub mod write;
