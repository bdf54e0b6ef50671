//! The contract: what people and programs write on a pod, and what is written back.
//!
//! Types and total parsers only. Nothing here performs I/O, reads a clock, or knows a runtime.

pub mod annotation;
pub mod hook_manifest;
pub mod hook_run;
pub mod hook_template;
pub mod image;
pub mod manifest;
pub mod request;
pub mod status;
