//! Tests that need nothing but this machine: no runtime, no cluster, no network.
//! They must not fetch or start anything.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of it is tests: a panic is their verdict")]

mod architecture;
mod cri_proto;
mod engine;
mod model;
mod runtime;
