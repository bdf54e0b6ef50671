//! Which fault explains an end that is not the expected one: a table of the reasons that each kind of fault can cause. No fault
//! explains a success, or an end for a reason that is not its own. No I/O.

use inplace::api::status::Phase;

use super::{
    history::{Ended, FaultSpan, SECOND},
    plan::{Fault, Part},
};

/// Calls to the runtime fail, and what was being started is lost.
const RUNTIME: &[&str] = &[
    "PullFailed",
    "CannotCreate",
    "StopFailed",
    "CreateFailed",
    "StartFailed",
    "Exited",
    "NotStartedBeside",
    "ContainerChanged",
];
/// Writes to the API server are refused while it starts, or its controllers are late.
const API: &[&str] = &["GateFailed", "DrainNotConfirmed", "RespecFailed"];
/// The only reason that needs time: see [`explanation`].
const DEADLINE: &str = "DeadlineExceeded";

/// The reasons that a fault can cause. After a crash or a pause of an agent, a controller or a kubelet every operation has its
/// expected end all the same: the limits of time are longer than a fault.
fn causes(fault: Fault) -> &'static [&'static [&'static str]] {
    let (Fault::Kill(part) | Fault::Stop(part) | Fault::Freeze(part) | Fault::Slow(part)) = fault else {
        return match fault {
            Fault::FullDisk => &[&["JournalFailed"]],
            // Only the agent's clock is set, not the runtime's: with a clock that is ahead every instance seems to be an hour old.
            Fault::Clock(seconds) if seconds > 0 => &[&[DEADLINE, "NotReady", "NotStartedBeside"]],
            Fault::Clock(_) => &[&[DEADLINE]],
            _ => &[RUNTIME, &["SandboxGone"]],
        };
    };
    match part {
        Part::Agent | Part::Controller | Part::Kubelet => &[],
        Part::Containerd => &[RUNTIME],
        Part::Etcd | Part::ApiServer => &[API],
        Part::Registry => &[&["PullFailed"]],
    }
}

/// How long after a fault its effects may still be felt. What was killed has to start first, and to list everything again.
pub(super) fn aftermath(fault: Fault) -> i64 {
    let (Fault::Kill(part) | Fault::Stop(part) | Fault::Freeze(part) | Fault::Slow(part)) = fault else {
        return if fault == Fault::Reboot { 30 * SECOND } else { 5 * SECOND };
    };
    match part {
        Part::Agent | Part::Registry => 5 * SECOND,
        _ => 30 * SECOND,
    }
}

/// The fault that explains why the operation ended as it did. That a deadline was exceeded is explained also by faults that
/// together lasted for half of it.
pub(super) fn explanation<'a>(ended: &Ended, faults: &'a [FaultSpan]) -> Option<&'a FaultSpan> {
    if !matches!(ended.phase, Phase::Failed | Phase::RolledBack) {
        return None;
    }
    explains(&ended.reason, ended.node, (ended.asked, ended.ended), ended.deadline, faults)
}

/// The same for a reason that was reported for a request on that node between the two times.
pub(super) fn explains<'a>(
    reason: &str,
    node: usize,
    (from, to): (i64, i64),
    deadline: i64,
    faults: &'a [FaultSpan],
) -> Option<&'a FaultSpan> {
    let felt = |span: &&FaultSpan| span.disturbs(node, from - aftermath(span.fault), to);
    let cause = |span: &&FaultSpan| causes(span.fault).iter().any(|reasons| reasons.contains(&reason));
    let lasted = |span: &FaultSpan| (span.ended.unwrap_or(to).min(to) - span.began.max(from)).max(0);
    let total: i64 = faults.iter().filter(felt).map(lasted).sum();
    let is_late = reason == DEADLINE && total >= deadline / 2;
    faults.iter().filter(felt).find(|span| cause(span) || is_late)
}
