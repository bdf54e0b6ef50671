//! Presents the measurements: tables for people, JSON for programs, and the list of budgets.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// Samples in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn add(&mut self, took: Duration) {
        self.add_ms(took.as_secs_f64() * 1e3);
    }

    pub(crate) fn add_ms(&mut self, milliseconds: f64) {
        self.0.push(milliseconds);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn p50(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    /// The smallest sample that at least this share of the samples does not exceed.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }

    /// The cells under [`HEAD`], after a name.
    fn cells(&self, name: &str) -> Vec<String> {
        let shares = [0.0, 0.5, 0.9, 0.99, 1.0];
        let numbers = shares.iter().map(|share| ms(self.quantile(*share)));
        [name.to_owned(), self.count().to_string()].into_iter().chain(numbers).collect()
    }

    fn json(&self) -> Value {
        json!({
            "count": self.count(), "min": self.quantile(0.0), "p50": self.p50(), "p90": self.quantile(0.9),
            "p99": self.p99(), "max": self.max(), "samples": self.0,
        })
    }
}

const HEAD: [&str; 7] = ["milliseconds", "n", "min", "p50", "p90", "p99", "max"];

pub(crate) fn ms(milliseconds: f64) -> String {
    format!("{milliseconds:.1}")
}

/// The results of one run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    sections: Map<String, Value>,
    budgets: Vec<Budget>,
}

#[derive(Debug)]
struct Budget {
    what: String,
    measured: f64,
    at_most: f64,
}

impl Report {
    /// Starts a section.
    #[expect(clippy::unused_self, reason = "one way to print")]
    pub(crate) fn title(&self, text: &str) {
        println!("\n{text}");
    }

    /// Prints distributions.
    #[expect(clippy::unused_self, reason = "what is printed belongs to the report")]
    pub(crate) fn show(&self, rows: &[(&str, &Samples)]) {
        let lines: Vec<_> = rows.iter().map(|(name, samples)| samples.cells(name)).collect();
        table(&HEAD, &lines);
    }

    /// Prints distributions, and records them with all samples under `section`.
    pub(crate) fn distributions(&mut self, section: &str, rows: &[(&str, &Samples)]) {
        self.show(rows);
        for (name, samples) in rows {
            self.keep(section, name, samples.json());
        }
    }

    /// Prints rows of names and values, and records them under `section`.
    pub(crate) fn values(&mut self, section: &str, head: &[&str], rows: &[(&str, Vec<String>)]) {
        let line = |(name, values): &(&str, Vec<String>)| [&[(*name).to_owned()], values.as_slice()].concat();
        table(head, &rows.iter().map(line).collect::<Vec<_>>());
        let number = |text: &String| text.parse::<f64>().map_or_else(|_| json!(text), |number| json!(number));
        for (name, values) in rows {
            let by_column: Map<_, _> =
                head[1..].iter().map(|column| (*column).to_owned()).zip(values.iter().map(number)).collect();
            self.keep(section, name, Value::Object(by_column));
        }
    }

    fn keep(&mut self, section: &str, name: &str, value: Value) {
        let section = self.sections.entry(section).or_insert_with(|| json!({}));
        section[name] = value;
    }

    /// Records a budget and its measurement.
    pub(crate) fn budget(&mut self, what: &str, measured: f64, at_most: f64) {
        self.budgets.push(Budget { what: what.to_owned(), measured, at_most });
    }

    /// Prints the budgets. True when all are met.
    pub(crate) fn conclude(&self) -> bool {
        println!("\nBudgets");
        let lines: Vec<_> = self.budgets.iter().map(Budget::cells).collect();
        table(&["", "measured", "at most", ""], &lines);
        self.budgets.iter().all(Budget::kept)
    }

    pub(crate) fn json(&self) -> Value {
        let budgets: Vec<_> = self
            .budgets
            .iter()
            .map(|budget| {
                let Budget { what, measured, at_most } = budget;
                json!({"what": what, "measured": measured, "atMost": at_most, "kept": budget.kept()})
            })
            .collect();
        json!({"sections": self.sections, "budgets": budgets})
    }
}

impl Budget {
    /// A measurement that is missing (NaN) or impossible counts as a missed budget.
    fn kept(&self) -> bool {
        self.measured.is_finite() && (0.0..=self.at_most).contains(&self.measured)
    }

    fn cells(&self) -> Vec<String> {
        let verdict = if self.kept() { "kept" } else { "MISSED" };
        let number = |value: f64| format!("{value:.2}");
        vec![self.what.clone(), number(self.measured), number(self.at_most), verdict.to_owned()]
    }
}

/// Prints a table: names aligned left, numbers aligned right.
fn table(head: &[&str], rows: &[Vec<String>]) {
    let widths: Vec<_> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].len()]).max().unwrap_or_default()
        })
        .collect();
    let print = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        println!("  {}", padded.collect::<Vec<_>>().join("  "));
    };
    print(&head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    for row in rows {
        print(row);
    }
}
