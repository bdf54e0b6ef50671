//! Hooks: what they measure, when, and what follows from it.
//!
//! Pure, without clock or network: all modules except those named next. With I/O: [`engine`], which drives a run;
//! `provider`, which measures; [`reach`], which decides which addresses are allowed; [`runner`], which runs
//! HookRun objects. Must not know operations or workloads: they request a run and read its phase.
//!
//! [`check::prepare`] makes a run of a template. [`program::Program`] decides what to measure when, and judges
//! the results.

pub mod args;
pub(crate) mod assess;
pub mod check;
pub mod condition;
pub mod engine;
pub mod json;
pub mod json_path;
pub mod measured;
pub(crate) mod permits;
pub mod place;
pub mod program;
mod provider;
pub mod reach;
pub mod runner;
pub mod schedule;
pub mod settings;
pub mod template;
pub mod value;
