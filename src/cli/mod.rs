//! The role of the command line tool: the commands, their output and their exit codes.
//! Changes no container itself: `crate::node` does, or an agent or the controller after a write to the API server.
//!
//! | folder | commands |
//! |---|---|
//! | `pod` | `restart`, `swap`, `plan`, `status`, `history` and `cancel` for pods |
//! | `in_place_rollout` | for an `InPlaceRollout`: `restart` and `swap` of a workload, `cancel` and `rollout` of `ipr/NAME` |
//! | `workload_rollout` | `rollout` for a `GameDeployment` or a `GameStatefulSet` |
//! | `hook` | `hook`: tries and explains hooks |
//! | `migrate` | `migrate check`: what a takeover from a bk-bcs operator would change |
//! | `top` | `top`: operations, downtime and failures by workload or node |
//! | `dashboard` | `dashboard`: the same as a page in a browser |
//! | `completion` | `completion`: the names that a shell completes |
//! | `man` | `man`: the manual pages, for packages |
//! | `node` | `node`: on a node, without an API server; only on Linux |

mod cluster;
pub mod completion;
mod connection;
pub mod crds;
pub mod dashboard;
mod dry_run;
mod escape;
pub mod examples;
pub mod exit;
mod flag_help;
mod form;
pub mod hook;
mod in_place_rollout;
mod json_path;
pub mod man;
pub mod migrate;
mod named_value;
#[cfg(target_os = "linux")]
pub mod node;
mod output;
mod paint;
pub mod pod;
mod span;
pub mod top;
pub mod version;
pub mod workload_rollout;
