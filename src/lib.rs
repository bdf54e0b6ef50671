//! `inplace` restarts or updates one container of a running pod, on its node, without losing the pod.
//!
//! # The map
//!
//! ```text
//!  annotation ──▶ api::Request ──▶ operation::preflight ──▶ Plan ──▶ Operation
//!                                         │ Refusal                    │
//!                                         ▼                            ▼
//!  api::Status ◀── operation::report ◀── Outcome ◀──────── next(operation, snapshot, now)
//!                                                             │ Effect        ▲ Snapshot
//!                                                             ▼               │
//!                                        node: journal ──▶ execute ──▶ cri ──▶ observe
//! ```
//!
//! | module | is | may import |
//! |---|---|---|
//! | [`api`] | the contract: annotations, request, status, manifests. Pure | - |
//! | [`operation`] | the decisions. Pure: no async, no clock, no I/O | api |
//! | [`workload`] | the decisions of workloads. Pure | api |
//! | [`rollout`] | the decisions of rollouts over anybody's pods. Pure | api workload |
//! | [`cri`] | the container runtime: endpoint, client, clone, conversion | api operation process |
//! | [`hook`] | the gates: template, condition, schedule, verdict (pure); `provider`, `engine` (I/O) | api cri cluster process |
//! | [`cluster`] | the API server: client, pods, workloads, patches, events | api operation workload rollout process |
//! | [`process`] | the plumbing of a process: time, logs, signals, files, admin | - |
//! | [`node`] | the engine on a node: journal, loop, effects | api operation hook cri cluster process |
//! | [`agent`] | role: carries out what annotations ask for | api operation hook node cri cluster process |
//! | [`controller`] | role: brings about what workloads and rollouts want; runs the hooks that no agent runs | api workload rollout hook cluster process |
//! | [`cli`] | role: a person's commands | api operation workload hook node cri cluster process |
//!
//! The roles never import each other; `main.rs` picks one. A test holds the code against this table.

pub mod agent;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod controller;
pub mod cri;
pub mod hook;
pub mod node;
pub mod operation;
pub mod process;
pub mod rollout;
pub mod workload;
