//! Restarts or updates one container of a running pod, on its node.
pub mod api;
pub mod cri;
pub mod node;
pub mod operation;
