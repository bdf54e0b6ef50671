//! The node engine: what is done on a node with nothing but the runtime's socket.
//!
//! Must not know an API server.

pub mod launch;
