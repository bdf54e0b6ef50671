//! Splits a downtime into its parts.

use inplace::operation::effect::Verb;

use crate::report::{Report, Samples, ms};
use crate::test_node::{Event, Instance, What};

/// The parts of a downtime. The replacement exists before the old container is stopped, because the bench's pods
/// have no kubelet.
#[derive(Default)]
pub(crate) struct Parts {
    stopped: Samples,
    observe: Samples,
    journal: Samples,
    start: Samples,
    started: Samples,
}

impl Parts {
    pub(crate) fn rows(&self) -> [(&'static str, &Samples); 5] {
        [
            ("old finished -> stop answered: the runtime's own", &self.stopped),
            ("observing", &self.observe),
            ("deciding and journal", &self.journal),
            ("start: the call", &self.start),
            ("of which new started -> start answered: no downtime", &self.started),
        ]
    }

    /// Adds one restart in which every effect succeeded at the first attempt.
    pub(crate) fn add(&mut self, events: &[Event], old: Instance, new: Instance) {
        let effect = |verb| events.iter().find(|event| event.what == What::Effect(verb)).unwrap();
        let (stop, create, start) = (effect(Verb::Stop), effect(Verb::Create), effect(Verb::Start));
        assert!(create.ended < stop.ended, "the replacement was not created ahead");
        let start_began = start.ended - start.took;
        let observations =
            events.iter().filter(|event| event.ended > stop.ended && event.ended <= start_began);
        let observed = observations.map(|event| event.ended).max().unwrap();
        self.observe.add(observed - stop.ended);
        self.journal.add(start_began - observed);
        self.start.add(start.took);
        self.stopped.add_ms(stop.after(old.finished_at));
        self.started.add_ms(start.after(new.started_at));
    }
}

/// Prints the medians of the parts side by side, and records them under `section`.
pub(crate) fn compare(report: &mut Report, section: &str, columns: &[(&str, &Parts)]) {
    let head: Vec<_> = ["median ms"].into_iter().chain(columns.iter().map(|(name, _)| *name)).collect();
    let all: Vec<_> = columns.iter().map(|(_, parts)| parts.rows()).collect();
    let rows = |row: usize| (all[0][row].0, all.iter().map(|rows| ms(rows[row].1.p50())).collect());
    report.values(section, &head, &(0..all[0].len()).map(rows).collect::<Vec<_>>());
}
