//! Where the time goes in which no container runs.

use inplace::operation::effect::Verb;
use tokio::time::Instant;

use crate::report::{Report, Samples, ms};
use crate::stand::{Event, Life, What};

/// The parts of the time without a running container.
#[derive(Default)]
pub(crate) struct Parts {
    stopped: Samples,
    look_before_create: Samples,
    journal_create: Samples,
    create_own: Samples,
    create: Samples,
    look_before_start: Samples,
    journal_start: Samples,
    start: Samples,
    started: Samples,
}

impl Parts {
    pub(crate) fn rows(&self) -> [(&'static str, &Samples); 9] {
        [
            ("old finished -> stop answered: the runtime's own", &self.stopped),
            ("looking, before create", &self.look_before_create),
            ("deciding and journal, before create", &self.journal_create),
            ("create: the engine's own part", &self.create_own),
            ("create: the call", &self.create),
            ("looking, before start", &self.look_before_start),
            ("deciding and journal, before start", &self.journal_start),
            ("start: the call", &self.start),
            ("of which new started -> start answered: no downtime", &self.started),
        ]
    }

    /// Takes one restart in which everything worked at the first try.
    pub(crate) fn add(&mut self, events: &[Event], old: Life, new: Life) {
        let effect = |verb| events.iter().find(|event| event.what == What::Effect(verb)).unwrap();
        let (stop, create, start) = (effect(Verb::Stop), effect(Verb::Create), effect(Verb::Start));
        let looked = |from: Instant, until: Instant| {
            let calls = events.iter().filter(|event| event.ended > from && event.ended <= until);
            calls.map(|event| event.ended).max().unwrap()
        };
        let (create_began, start_began) = (create.ended - create.took, start.ended - start.took);
        let before_create = looked(stop.ended, create_began);
        let before_start = looked(create.ended, start_began);
        let call = events
            .iter()
            .rfind(|event| event.what == What::Call("CreateContainer") && event.ended <= create.ended);
        let call = call.unwrap().took;
        self.look_before_create.add(before_create - stop.ended);
        self.journal_create.add(create_began - before_create);
        self.create_own.add(create.took.checked_sub(call).unwrap());
        self.create.add(call);
        self.look_before_start.add(before_start - create.ended);
        self.journal_start.add(start_began - before_start);
        self.start.add(start.took);
        self.stopped.add_ms(stop.after(old.finished_at));
        self.started.add_ms(start.after(new.started_at));
    }
}

/// Prints the medians of the parts, side by side, and keeps them under `section`.
pub(crate) fn compare(report: &mut Report, section: &str, columns: &[(&str, &Parts)]) {
    let head: Vec<_> = ["median ms"].into_iter().chain(columns.iter().map(|(name, _)| *name)).collect();
    let all: Vec<_> = columns.iter().map(|(_, parts)| parts.rows()).collect();
    let rows = |row: usize| (all[0][row].0, all.iter().map(|rows| ms(rows[row].1.p50())).collect());
    report.values(section, &head, &(0..all[0].len()).map(rows).collect::<Vec<_>>());
}
