//! The contract: the annotations, the request, the status, the manifests and the custom resources, as users and programs
//! read and write them.
//!
//! Types and total parsers only. Nothing here performs I/O, reads a clock, or depends on a runtime.

pub mod annotation;
pub mod container_recreate_request;
pub mod crd;
pub mod crd_fields;
pub mod game_deployment;
pub mod game_stateful_set;
pub mod group;
pub mod group_failure;
pub mod hook_manifest;
pub mod hook_run;
pub mod hook_template;
pub mod image;
pub mod in_place_rollout;
pub mod kstatus;
pub mod manifest;
pub mod pod_ref;
pub mod pod_template;
pub mod priority;
pub mod quantity;
pub mod request;
pub mod rollout_request;
pub mod selector;
mod serde_default;
pub mod status;
pub mod workload;
pub mod workload_key;
pub mod workload_kind;
pub mod workload_manifest;
