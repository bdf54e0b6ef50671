//! Remembers since when the runtime cannot report the state of a container instance, and decides when that has lasted too
//! long. This concerns pods without a kubelet: a kubelet stops such a container by itself. Nothing here removes one.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::operation::note::Note;
use crate::operation::snapshot::{Container, Snapshot, State};
use crate::operation::state::{Operation, Target, is_over};

/// How long the state of an instance may be unknown. After a restart of the runtime this can last until the container is
/// stopped; otherwise it is over within moments.
const UNCLEAR: SignedDuration = SignedDuration::from_secs(5);

/// The instance of a container whose state the runtime cannot report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unclear {
    /// The ID of the instance.
    pub id: String,
    /// When this was first observed.
    pub since: Timestamp,
}

/// The change of what is remembered, if there is one.
pub(super) fn change(operation: &Operation, snapshot: &Snapshot, now: Timestamp) -> Option<Note> {
    let mut targets = operation.targets.iter().filter(|_| operation.unsupervised);
    targets.find_map(|target| {
        let instances = snapshot.instances(&target.name);
        let seen = instances.iter().rev().find(|instance| instance.state == State::Unknown);
        let seen = seen.map(|instance| &instance.id);
        let is_known = target.unclear.as_ref().map(|unclear| &unclear.id) == seen;
        let unclear = seen.map(|id| Unclear { id: id.clone(), since: now });
        (!is_known).then(|| Note::Unclear(target.name.clone(), unclear))
    })
}

/// True when the state of `instance` has been unknown for too long.
pub(super) fn lasts(target: &Target, instance: &Container, now: Timestamp) -> bool {
    let unclear = target.unclear.as_ref().filter(|unclear| unclear.id == instance.id);
    unclear.is_some_and(|unclear| is_over(unclear.since, UNCLEAR, now))
}

#[cfg(test)]
mod tests {
    use crate::api::status::Phase;
    use crate::operation::fixtures::{Answer, Bench, find, pod};
    use crate::operation::outcome::Outcome;
    use crate::operation::snapshot::Owner;

    use super::*;

    const REQUESTS: [&str; 2] = [
        r#"{"containers":[{"name":"app"}],"minReadySeconds":10}"#,
        r#"{"containers":[{"name":"app","image":"repo/app:v2"}],"minReadySeconds":10}"#,
    ];

    /// A new instance that has run for longer than a state may be unknown.
    fn running(text: &str) -> Bench {
        let mut bench = Bench::new(text, pod(Owner::NodeRun));
        let has_run = |bench: &Bench| {
            let reached = bench.operation.targets[0].reached.as_ref();
            let started = reached.and_then(|reached| reached.started_at);
            started.is_some_and(|started| is_over(started, UNCLEAR, bench.now))
        };
        while !has_run(&bench) {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
        }
        find(&mut bench.snapshot, "app-3").state = State::Unknown;
        bench
    }

    fn removals(bench: &Bench) -> usize {
        bench.log.iter().filter(|line| *line == "Remove app-3").count()
    }

    #[test]
    fn an_instance_that_has_run_is_not_removed_because_its_state_is_unknown_for_a_moment() {
        for text in REQUESTS {
            let mut bench = running(text);
            let until = bench.now + UNCLEAR / 2;
            while bench.now < until {
                assert_eq!(bench.step(&mut |_, _| Answer::Obey), None, "{:?}", bench.log);
            }
            find(&mut bench.snapshot, "app-3").state = State::Running;
            assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
            assert_eq!(removals(&bench), 0, "{:?}", bench.log);
            assert_eq!(bench.operation.targets[0].unclear, None);
        }
    }

    /// Between two observations the runtime may have been away, or this program.
    #[test]
    fn the_time_in_which_nothing_is_observed_does_not_count() {
        let mut bench = running(REQUESTS[0]);
        while bench.operation.targets[0].unclear.is_none() {
            assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        }
        let away = UNCLEAR * 2;
        bench.now += away;
        bench.operation.regain(away);
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        assert_eq!(bench.step(&mut |_, _| Answer::Obey), None);
        assert_eq!(removals(&bench), 0, "{:?}", bench.log);
        find(&mut bench.snapshot, "app-3").state = State::Running;
        assert_eq!(bench.obey(), Outcome::Succeeded, "{:?}", bench.log);
        assert_eq!(removals(&bench), 0, "{:?}", bench.log);
    }

    #[test]
    fn an_instance_that_has_run_and_stays_unclear_is_made_again() {
        for text in REQUESTS {
            let mut bench = running(text);
            let outcome = bench.obey();
            assert_eq!(outcome.phase(), Phase::Succeeded, "{outcome:?} {:?}", bench.log);
            assert_eq!(removals(&bench), 1, "{:?}", bench.log);
            assert_eq!(bench.snapshot.running("app").len(), 1, "{:?}", bench.log);
        }
    }
}
