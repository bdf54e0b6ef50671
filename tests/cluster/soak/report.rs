//! The result of a run: operations by their end, faults, requests of clients, violations; as a table and as JSON.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::Serialize;

use super::plan::Move;

/// How many of the last moves are shown with a violation.
const SHOWN_MOVES: usize = 12;
/// The operations of a run, and the observations of each node, without which it proves nothing.
const LEAST_OPERATIONS: u64 = 10;
const LEAST_OBSERVATIONS: u64 = 100;

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) seconds: u64,
    pub(super) moves: usize,
    /// Operations by kind, and by how they ended.
    pub(super) operations: BTreeMap<String, BTreeMap<String, u64>>,
    pub(super) faults: BTreeMap<String, u64>,
    /// Requests that the clients of `StartFirst` pods sent in vain, and all others.
    pub(super) served: u64,
    pub(super) refused: u64,
    /// Observations of each node's runtime.
    pub(super) observations: BTreeMap<usize, u64>,
    pub(super) violations: Vec<Violation>,
    /// Requests and pods that did not come to an end.
    pub(super) stuck: Vec<Violation>,
}

/// What must not happen, and when it was noticed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Violation {
    pub(super) at: String,
    /// The number of the move that was made last.
    pub(super) after_move: usize,
    pub(super) what: String,
    pub(super) last_moves: Vec<String>,
}

impl Report {
    pub(super) fn operations(&self) -> u64 {
        self.operations.values().flat_map(BTreeMap::values).sum()
    }

    pub(super) fn count(&mut self, operation: &str, end: &str) {
        *self.operations.entry(operation.to_owned()).or_default().entry(end.to_owned()).or_default() += 1;
    }

    pub(super) fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.stuck.is_empty()
    }

    /// True if so much has happened, and so much of it was observed on each node, that a clean report means something.
    pub(super) fn is_proof(&self, nodes: usize) -> bool {
        self.operations() >= LEAST_OPERATIONS
            && self.faults.values().any(|count| *count > 0)
            && self.served > 0
            && self.observations.len() == nodes
            && self.observations.values().all(|count| *count > LEAST_OBSERVATIONS)
    }

    /// A violation with the moves that led to it.
    pub(super) fn violation(&self, at: String, what: String, moves: &[Move]) -> Violation {
        let shown = &moves[moves.len().saturating_sub(SHOWN_MOVES)..];
        let last_moves = shown.iter().map(|made| format!("{made:?}")).collect();
        Violation { at, after_move: self.moves, what, last_moves }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = Duration::from_secs(self.seconds);
        writeln!(
            out,
            "soak: seed {}, {} moves, {} operations in {time:?}",
            self.seed,
            self.moves,
            self.operations()
        )?;
        for (operation, ends) in &self.operations {
            let ends: Vec<_> = ends.iter().map(|(end, count)| format!("{end} {count}")).collect();
            writeln!(out, "  {operation:<20} {}", ends.join(", "))?;
        }
        let faults: Vec<_> = self.faults.iter().map(|(fault, count)| format!("{fault} {count}")).collect();
        writeln!(out, "  faults: {}", faults.join(", "))?;
        writeln!(
            out,
            "  clients: {} requests served, {} not; observations {:?}",
            self.served, self.refused, self.observations
        )?;
        for (title, list) in [("violations", &self.violations), ("stuck", &self.stuck)] {
            writeln!(out, "  {title}: {}", list.len())?;
            for one in list {
                writeln!(out, "    {} after move {}: {}", one.at, one.after_move, one.what)?;
                writeln!(out, "      last moves: {}", one.last_moves.join("; "))?;
            }
        }
        Ok(())
    }
}

#[test]
fn a_report_has_all_figures_and_a_violation_has_its_moves() {
    let mut report = Report { seed: 7, moves: 3, served: 10, ..Report::default() };
    report.count("Restart", "Succeeded");
    report.count("Restart", "Failed");
    assert!(report.is_clean() && !report.is_proof(1));
    report.observations.insert(0, LEAST_OBSERVATIONS + 1);
    report.faults.insert("Kill".to_owned(), 1);
    for _ in report.operations()..LEAST_OPERATIONS {
        assert!(!report.is_proof(1));
        report.count("Swap", "Succeeded");
    }
    assert!(report.is_proof(1) && !report.is_proof(2));
    let violation =
        report.violation("12:00".to_owned(), "two at once".to_owned(), &[Move::Pause { milliseconds: 5 }]);
    report.violations.push(violation);
    assert!(!report.is_clean());
    let text = report.to_string();
    for part in [
        "seed 7",
        "10 operations",
        "Failed 1, Succeeded 1",
        "after move 3: two at once",
        "Pause { milliseconds: 5 }",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
