//! Decides what a `GameDeployment` or a `GameStatefulSet` does next. Pure: no async, no clock, no I/O.
//!
//! ```text
//!  GameDeployment ──┐                              ┌─▶ actions: create, delete, patch pods; hooks; revisions
//!  GameStatefulSet ─┴▶ WorkloadSpec ─┐             │
//!  previous status ──▶ Report ───────┼─▶ decide() ─┼─▶ Report ─▶ status
//!  pods, hooks, … ─▶ CachedObjects ──┘             └─▶ when to reconcile again
//!
//!  decide: abort      whether the update is aborted: then the pods go back to the stable revision
//!          revision   which revision the template is, and which one a partition holds pods back at
//!        → canary     the current step, its partition, paused or not
//!        → survey     how each pod gets to the newest revision (diff), how many pods are held back
//!        → scale      which pods are created and which are removed (GameDeployment)
//!          stateful   the same with ordinals                       (GameStatefulSet)
//!        → update     which pods get a task, within partition and budget (order, amount)
//!          replacement  how many pods may be deleted for an update, and which one of an ordered set
//!          resize     what of cpu and memory the kubelets change, before the request to the agent
//!        → prefetch   which pods name images for their agents to pull in advance
//!        → act        from tasks to writes: gates (hooks), requests (request), ends, labels, new pods (new_pod)
//!        → status     counters and conditions (health: Ready, Reconciling, Stalled)
//! ```
//!
//! All state is in the API objects: what the controller does with a pod is its [`PodTask`](crate::podtask::task::PodTask), an annotation. The
//! same input gives the same decision on every replica of the controller. A decision that was applied only in part is
//! made again for the rest.
//!
//! The caller has three duties. It reconciles a workload only when its cache includes its own last writes for that
//! workload. It makes each write conditional on the uid and the resource version that the action names. It applies
//! the actions in order and then writes the [`report::Report`], or [`report::Report::after_failure`]. No state of the
//! caller has to survive a restart.
//!
//! An update in place is a `Request` on the pod, which the agent of the node carries out and answers. The revision
//! label changes when the agent reports Succeeded, never before: the counters count what pods report. The hook before
//! the update is a `HookRun` of the workload, with the name and in the list that users expect. The hook after it is
//! part of the request, because it has to end before the pod takes traffic again.

pub mod abort;
pub mod act;
pub mod action;
pub mod adoption;
pub mod canary;
pub mod check;
pub mod claims;
pub mod deadline;
pub mod decide;
pub mod diff;
pub mod environment;
pub mod failed_hook;
pub mod health;
pub mod hooks;
pub mod input;
pub mod meaning;
pub(crate) mod name;
pub mod new_pod;
pub mod order;
pub mod other_controller;
pub mod planned;
pub mod prefetch;
pub mod replacement;
pub mod report;
pub mod request;
pub mod resize;
pub mod revision;
pub mod scale;
pub mod spec;
pub mod stateful;
pub mod status;
pub mod survey;
pub mod unknown_fields;
pub mod update;
pub mod view;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod model;
