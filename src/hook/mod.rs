//! Hooks: checks templates, schedules and makes the measurements, and computes the verdicts.
//!
//! Four modules use clock or network: [`executor`] executes a run, `provider` makes a measurement, [`address_policy`]
//! resolves names and decides which addresses are allowed, [`runner`] runs HookRun objects. All other modules are pure. Must not depend on
//! operations or workloads: they request a run and read its phase.
//!
//! [`check::prepare`] builds the spec of a run from a template. [`program::Program`] decides when each metric is
//! measured, and computes the verdict from the results.

pub mod address_policy;
pub mod args;
pub(crate) mod assess;
pub mod check;
mod check_provider;
pub mod condition;
pub mod executor;
pub mod json;
pub mod json_path;
pub mod measured;
pub mod place;
pub mod problems;
pub mod program;
mod provider;
pub mod runner;
pub mod schedule;
pub mod settings;
pub mod template;
pub mod value;
