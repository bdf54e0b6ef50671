//! The role of the command line tool: the commands, their output and their exit codes.
//! Changes nothing itself: the engine in `node` does, or an agent or the controller through the API server.

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
