//! `inplace` restarts or updates one container of a running pod, on its node, without losing the pod.
//!
//! # Map of the modules
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
//! | [`failure`] | the classes of failed calls. Pure | - |
//! | [`operation`] | decisions of an operation on one pod. Pure: no async, no clock, no I/O | api failure |
//! | [`podtask`] | the task of a controller on one pod: record, request, answer, end, budget. Pure | api |
//! | [`workload`] | decisions of `GameDeployment` and `GameStatefulSet`. Pure | api podtask |
//! | [`rollout`] | decisions of InPlaceRollout, over the pods of any workload. Pure | api podtask |
//! | [`guard`] | decisions of the delete guard. Pure | api podtask workload |
//! | [`config_restart`] | decisions of the restart after a change of configuration. Pure | api |
//! | [`group_restart`] | decisions of the group restart after a failure. Pure | api podtask |
//! | [`recreate_request`] | decisions of ContainerRecreateRequest, the interface of OpenKruise. Pure | api podtask |
//! | [`cri`] | the container runtime: endpoint, client, clone, conversion | api operation process failure |
//! | [`hook`] | hooks: template, condition, schedule, verdict (pure); `provider`, `executor` (I/O) | api cri cluster process |
//! | [`cluster`] | the API server: client, caches, leases, pods, hooks, events; no workloads or rollouts | api failure operation process |
//! | [`process`] | services of a process: clock, logs, signals, files, admin endpoints | - |
//! | [`node`] | operations on a node: journal, loop, effects | api operation hook cri cluster process failure |
//! | [`agent`] | role: carries out the requests in pod annotations | api operation hook node cri cluster process failure |
//! | [`controller`] | role: reconciles workloads and rollouts; runs the hooks that no agent runs | api podtask workload rollout guard `config_restart` `group_restart` `recreate_request` hook cluster process failure |
//! | [`cli`] | role: the command line tool | api operation podtask workload hook node cri cluster process failure |
//!
//! The roles never import each other; `main.rs` selects one. A test checks the imports against this table.
//!
//! The command line tool, without `inplace node`, is for macOS and Windows too. The modules `agent`, `controller` and `node`
//! are for Linux only, as is what has a `cfg` because only they use it.

#[cfg(target_os = "linux")]
pub mod agent;
pub mod api;
pub mod cli;
pub mod cluster;
pub mod config_restart;
#[cfg(target_os = "linux")]
pub mod controller;
pub mod cri;
pub mod failure;
pub mod group_restart;
pub mod guard;
pub mod hook;
#[cfg(target_os = "linux")]
pub mod node;
pub mod operation;
pub mod podtask;
pub mod process;
pub mod recreate_request;
pub mod rollout;
pub mod workload;
