//! The decisions of workloads: what a `GameDeployment` or a `GameStatefulSet` does next. Pure: no async, no clock, no I/O.
//!
//! ```text
//!  GameDeployment ──┐                      ┌─▶ actions: pods to make, delete, patch; hooks; revisions
//!  GameStatefulSet ─┴▶ Wish ─┐             │
//!  status so far ──▶ Report ─┼─▶ decide() ─┼─▶ Report ─▶ status
//!  pods, hooks, … ──▶ Seen ──┘             └─▶ when to look again
//!
//!  decide: revision   which revision is the template, which one is held back
//!        → canary     which step, which partition, paused or not
//!        → survey     the way of each pod to the newest revision (diff), how many are held back
//!        → scale      which pods come and which ones leave  (GameDeployment)
//!          stateful   the same with ordinals                 (GameStatefulSet)
//!        → update     who has a turn, within partition and budget (order, amount)
//!        → act        from turns to writes: gates (hooks), requests (request), ends, labels, new pods (birth)
//!        → status     counters and conditions
//! ```
//!
//! Everything is in the objects: what is being done with a pod is its [`task::PodTask`], an annotation. The same look gives the
//! same decision, whoever looks, and a decision that was carried out in part is made again for the rest.
//!
//! What the controller that uses this owes: it looks at a workload only once what it has seen includes its own last writes on
//! it; it writes with the uid and the version that the action names; it carries the actions out in their order and tells the
//! [`report::Report`] afterwards, or [`report::Report::after_failure`]. Nothing of this has to survive it.
//!
//! An update in place is a `Request` on the pod, carried out and answered by the agent of its node. The label of the revision
//! moves when the agent says Succeeded, never before: what pods report is what is counted. The hook before it is a `HookRun` of
//! the workload, named and listed as users know it; the one after it is part of the request, because it has to be over before
//! the pod takes traffic again.

pub mod act;
pub mod action;
pub mod adoption;
pub mod amount;
pub mod canary;
pub mod changes;
pub mod check;
pub mod decide;
pub mod diff;
pub mod guard;
pub mod hooks;
pub mod input;
mod name;
pub mod new_pod;
pub mod order;
pub mod pods;
pub mod report;
pub mod request;
pub mod revision;
pub mod scale;
pub mod selector;
pub mod spec;
pub mod stateful;
pub mod status;
pub mod survey;
pub mod task;
pub mod update;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod model;
