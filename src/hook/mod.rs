//! The gates: what a hook measures, when, and what follows from it.
//!
//! Pure: what stands in its own file here, and knows neither clock nor network. I/O: [`provider`](self) and the engine that
//! drives a run. Must not know operations or workloads: they ask for a run and read its phase.
//!
//! [`check::prepare`] makes a run of a template, [`program::Program`] says what to measure when and judges what was measured.

pub mod args;
pub(crate) mod assess;
pub mod check;
pub mod condition;
pub mod json;
pub mod json_path;
pub mod program;
pub mod schedule;
pub mod template;
pub mod value;
