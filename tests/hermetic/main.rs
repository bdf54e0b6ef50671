//! Tests that need only this machine: no runtime, no cluster, no network. They must not download or start
//! anything (tools of this machine render and pack the manifests, run the example of the documentation, and open the page of
//! the dashboard).
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "all of it is tests: a panic is their verdict")]

mod admission;
mod agent;
mod api_server;
mod architecture;
mod argocd;
mod bench_client;
mod changes;
mod cli;
mod cluster;
mod crds;
mod cri_proto;
mod dashboard;
mod dist;
mod docs;
mod engine;
#[cfg(feature = "faults")]
mod fuzz_seeds;
mod hook;
mod hook_runs;
mod in_place;
mod kube_script;
mod lessons;
mod manifests;
mod model;
mod monitoring;
mod parts;
mod policy;
mod recreate_requests;
mod reference;
mod rollout;
mod rollouts;
mod runtime;
mod sources;
#[path = "../support/mod.rs"]
mod support;
mod workloads;
