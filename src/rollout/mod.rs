//! Decides what an `InPlaceRollout` does next with the pods of any workload. Pure: no async, no clock, no I/O.
//!
//! ```text
//!  InPlaceRollout ─▶ Rollout ─┐             ┌─▶ writes on pods: a request, its withdrawal, its end
//!  its target, its pods,      ├─▶ decide() ─┼─▶ status, events
//!  PodDisruptionBudgets ──────┘             └─▶ when to reconcile again
//!
//!  decide: view         the state of each pod (record, the agent's answer, requests of other clients)
//!        → stop_reason  why no more pods are begun, if so
//!        → abort, back  whether its pods go back to their images from before, and with which request
//!        → order        which pods go first
//!        → budget       how many more may be begun; podtask::disruption: which ones their PodDisruptionBudgets allow
//!        → report       counts, conditions, one line for people
//! ```
//!
//! What the rollout does with a pod is recorded on the pod ([`record::PodRecord`], an annotation written together
//! with the request), so that another replica of the controller continues where the last one stopped. The id of the
//! request is the uid of the rollout: an agent carries it out once, however often it is written. The request of the way
//! back has an id of its own.
//!
//! The caller has three duties. It decides only when its cache includes its own last writes. It makes each write
//! conditional on the uid and the resource version that the write names. It claims at the budgets that a write names
//! before it carries it out.

mod abort;
mod back;
pub mod budget;
pub mod check;
pub mod decide;
pub mod desired;
pub mod failed_write;
mod order;
pub mod orphan;
pub mod pod;
pub mod prefetch;
pub mod reach;
pub mod record;
mod report;
mod stop_reason;
pub mod target;
mod together;
mod view;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
