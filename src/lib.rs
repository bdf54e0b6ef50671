//! map
pub mod api;
pub mod operation;
