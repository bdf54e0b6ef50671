//! Tests that need a real container runtime: each one runs against a private containerd (see `tests/lab/lab.sh`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod agent;
mod agent_crash;
mod agent_lifecycle;
mod agent_order;
mod agent_process;
mod alerts;
mod bad_input;
mod bad_manifest;
mod blackhole;
mod clone;
mod crash;
mod dist;
mod fence;
mod fixture;
mod gated;
mod hook;
mod image;
mod pod;
mod pre_stop;
mod prometheus;
mod resized;
mod restart;
mod runtime;
mod smoke;
#[path = "../support/mod.rs"]
mod support;
mod swap;
