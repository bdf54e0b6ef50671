//! The role of a person's tool: commands, what they print, and how they exit.
//!
//! Changes nothing itself: the engine in `node` does, or, through the API server, an agent.

mod cluster;
pub mod crds;
pub mod exit;
pub mod hook;
mod in_place;
mod named_value;
pub mod node;
mod output;
pub mod pod;
pub mod rollout;
mod span;
