//! Decides which spans an operation has, from its effects and its final status. Pure. Texts that a user or a program has
//! written (messages, environment, output of hooks) must not get into a span.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::agent::request_source::Key;
use crate::api::status::{Action, ContainerReport, Phase, Status};
use crate::failure::Class;
use crate::operation::effect::Verb;

/// How many effects of one operation are recorded. An operation has a few per container; one that repeats a failing effect
/// for a long time has more.
const MAX_EFFECTS: usize = 64;

/// The effects of one operation so far.
#[derive(Debug, Default)]
pub(super) struct Effects(Vec<Span>);

/// One span, by the clock of the node, or of the runtime for a downtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) name: String,
    pub(super) container: Option<String>,
    pub(super) begin: Timestamp,
    pub(super) end: Timestamp,
    /// One word that says why it failed.
    pub(super) error: Option<String>,
}

/// The spans of an operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OperationSpans {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: Option<String>,
    /// The id of the request. All pods of a rollout have the same.
    pub(super) request: String,
    pub(super) phase: Phase,
    pub(super) root: Span,
    pub(super) children: Vec<Span>,
}

impl Effects {
    /// Records an effect that has just ended.
    pub(super) fn add(
        &mut self,
        verb: Verb,
        container: &str,
        took: Duration,
        error: Option<Class>,
        now: Timestamp,
    ) {
        if self.0.len() >= MAX_EFFECTS {
            return;
        }
        let took = SignedDuration::try_from(took).unwrap_or(SignedDuration::ZERO);
        self.0.push(Span {
            name: format!("{verb:?}"),
            container: Some(container.to_owned()).filter(|name| !name.is_empty()),
            begin: now.checked_sub(took).unwrap_or(now),
            end: now,
            error: error.map(Class::name),
        });
    }
}

impl OperationSpans {
    /// The spans of the operation that `status` says has ended; `None` if it is still in progress or never began. The effects
    /// are taken.
    pub(super) fn of(pod: &Key, status: &Status, effects: &mut Effects) -> Option<Self> {
        let (begin, end) = (status.started_at?, status.finished_at?);
        if !status.phase.is_terminal() {
            return None;
        }
        let failed = matches!(status.phase, Phase::Failed | Phase::RolledBack | Phase::Refused);
        let name =
            status.containers.first().map_or(Action::Restart, |container| container.action).to_string();
        let error = failed.then(|| status.reason.clone());
        let root = Span { name, container: None, begin, end, error };
        let mut children = std::mem::take(&mut effects.0);
        children.extend(status.containers.iter().filter_map(downtime));
        Some(Self {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            request: status.id.clone(),
            phase: status.phase,
            root,
            children,
        })
    }
}

/// The time in which no instance of the container ran. With `StartFirst` the new one starts before the old one ends.
fn downtime(report: &ContainerReport) -> Option<Span> {
    let (begin, end) = (report.stopped_at?, report.started_at?);
    (begin < end).then(|| Span {
        name: "downtime".to_owned(),
        container: Some(report.name.clone()),
        begin,
        end,
        error: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::report;

    fn key() -> Key {
        Key { namespace: "shop".into(), name: "web-0".into(), uid: Some("u".into()) }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(ms).unwrap()
    }

    fn ended(phase: Phase, reason: &str) -> Status {
        let mut status = report::not_begun("r", phase, reason, &"a message", at(900));
        status.started_at = Some(at(100));
        status.finished_at = Some(at(900));
        status
    }

    #[test]
    fn an_effect_begins_as_long_before_its_end_as_it_took() {
        let mut effects = Effects::default();
        effects.add(Verb::Stop, "app", Duration::from_millis(30), None, at(500));
        effects.add(Verb::Create, "app", Duration::from_secs(u64::MAX), Some(Class::Unavailable), at(600));
        let spans = OperationSpans::of(&key(), &ended(Phase::Succeeded, ""), &mut effects).unwrap();
        let times: Vec<_> = spans.children.iter().map(|span| (&*span.name, span.begin, span.end)).collect();
        assert_eq!(times, [("Stop", at(470), at(500)), ("Create", at(600), at(600))]);
        assert_eq!(spans.children[1].error.as_deref(), Some(&*Class::Unavailable.name()));
        assert!(effects.0.is_empty());
    }

    #[test]
    fn only_an_operation_that_has_begun_and_ended_has_spans() {
        let of = |status: &Status| OperationSpans::of(&key(), status, &mut Effects::default());
        assert!(of(&Status { phase: Phase::Running, ..ended(Phase::Failed, "") }).is_none());
        assert!(of(&Status { started_at: None, ..ended(Phase::Refused, "X") }).is_none());
        let failed = of(&ended(Phase::Failed, "ImagePullFailed")).unwrap();
        assert_eq!(failed.root.error.as_deref(), Some("ImagePullFailed"));
        assert_eq!(of(&ended(Phase::Cancelled, "Withdrawn")).unwrap().root.error, None);
    }

    #[test]
    fn an_operation_that_repeats_an_effect_for_ever_does_not_fill_the_memory() {
        let mut effects = Effects::default();
        for ms in 0..1000 {
            effects.add(Verb::Create, "app", Duration::ZERO, None, at(ms));
        }
        assert_eq!(effects.0.len(), MAX_EFFECTS);
    }
}
