//! The gates: what a hook measures, when, and what follows from it.
//!
//! Pure: what stands in its own file here, and knows neither clock nor network. I/O: [`engine`] that drives a run, `provider`
//! that measures, [`reach`] that says where to, [`runner`] that runs HookRun objects. Must not know operations or workloads: they ask for a run and read its phase.
//!
//! [`check::prepare`] makes a run of a template, [`program::Program`] says what to measure when and judges what was measured.

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
