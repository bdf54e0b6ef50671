//! The decisions of rollouts over anybody's pods: what an `InPlaceRollout` does next. Pure: no async, no clock, no I/O.
//!
//! ```text
//!  InPlaceRollout ─▶ Wish ──┐             ┌─▶ writes on pods: a request, its withdrawal, its end
//!  its target, its pods,    ├─▶ decide() ─┼─▶ status, events
//!  PodDisruptionBudgets ────┘             └─▶ when to look again
//!
//!  decide: view     where each pod stands (mark, the agent's answer, somebody else's work)
//!        → halt     why nothing more is begun, if so
//!        → order    who goes first
//!        → budget   how many more may be begun; disruption: whom the budgets of its pods let go
//!        → report   counts, conditions, one line for people
//! ```
//!
//! What is being done with a pod stands on it ([`record::PodRecord`], an annotation written together with the request), so that
//! whoever decides next goes on where the last one stopped. The id of the request is the uid of the rollout: an agent carries
//! it out once, however often it is written.
//!
//! What the controller that uses this owes: it looks only once what it sees includes its own last writes; it writes with the
//! uid and the version that a write names; it claims at the budgets that a write names before it carries it out.

pub mod budget;
pub mod check;
pub mod decide;
pub mod desired;
pub mod disruption;
mod order;
pub mod orphan;
pub mod pod;
pub mod reach;
pub mod record;
mod report;
mod stop_reason;
pub mod target;
mod view;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
