//! Draws the other plot of the README: which requests fail, and for how long nothing answers, while a server is restarted or
//! updated in five ways. Pure: must not measure, read or write anything.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{Colours, MARGIN, Mode, page, seconds, write};

/// The figures of one run, as `docs/images/downtime.json` has them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Figures {
    pub(crate) kubernetes: String,
    pub(crate) containerd: String,
    /// Names and versions.
    pub(crate) servers: String,
    /// Requests per second, in round figures.
    pub(crate) rate: f64,
    pub(crate) ways: Vec<Figure>,
}

/// One way, over all servers: a connection per request, on the pod's address.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) way: String,
    /// The way is `order: StartFirst`.
    pub(crate) starts_first: bool,
    pub(crate) operations: usize,
    pub(crate) requests: usize,
    /// During all operations.
    pub(crate) failed: usize,
    /// The longest time without an answer, in milliseconds.
    pub(crate) gap: f64,
}

/// The name of the picture in `docs/images`.
pub(crate) fn file(mode: Mode) -> &'static str {
    match mode {
        Mode::Light => "downtime-light.svg",
        Mode::Dark => "downtime-dark.svg",
    }
}

/// All lengths are in pixels.
const FIRST_ROW: f64 = 122.0;
const ROW: f64 = 56.0;
const BAR: f64 = 20.0;
/// The two scales: where each begins, and the length of its longest bar. The rest is for the values.
const SCALES: [f64; 2] = [MARGIN, 414.0];
const LONGEST: f64 = 250.0;

const TITLE: &str = "What clients notice when a server in a pod is replaced";

/// The plot: two bars per way, each on a linear axis from zero.
pub(crate) fn svg(figures: &Figures, mode: Mode) -> String {
    let colours = mode.colours();
    let rows: Vec<_> = figures.ways.iter().map(|figure| Row::of(figure, &colours)).collect();
    let count = u32::try_from(rows.len()).unwrap_or_default();
    let height = FIRST_ROW + f64::from(count) * ROW + 8.0;
    let mut out = page(height, TITLE, &description(&rows), &colours);
    let Colours { text, muted, .. } = colours;
    let Figures { kubernetes, containerd, servers, rate, .. } = figures;
    let run = format!("{servers}; {rate} requests per second, a connection each, to the pod's address.");
    write(&mut out, MARGIN, 64.0, 14, muted, "", &run);
    let versions = format!(
        "One run of make bench (Kubernetes {kubernetes}, containerd {containerd}). Shorter is better."
    );
    write(&mut out, MARGIN, 82.0, 14, muted, "", &versions);
    for (x, head) in
        SCALES.into_iter().zip(["failed requests per operation", "longest time without an answer"])
    {
        write(&mut out, x, 108.0, 13, muted, "", head);
    }
    let most = [0, 1].map(|scale| rows.iter().map(|row| row.values[scale]).fold(f64::MIN_POSITIVE, f64::max));
    for (index, row) in (0_u32..).zip(&rows) {
        let top = FIRST_ROW + f64::from(index) * ROW;
        write(&mut out, MARGIN, top + 12.0, 15, text, "", &row.figure.way);
        for (scale, x) in SCALES.into_iter().enumerate() {
            let length = LONGEST * row.values[scale] / most[scale];
            let y = top + 36.0;
            write(&mut out, x + length + 10.0, y, 16, text, " font-weight=\"600\"", &row.texts[scale]);
            let _ = writeln!(
                out,
                "<rect class=\"bar\" x=\"{x}\" y=\"{}\" width=\"{length:.2}\" height=\"{BAR}\" rx=\"2\" fill=\"{}\"/>",
                top + 20.0,
                row.colour
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

struct Row<'a> {
    figure: &'a Figure,
    /// On each scale.
    values: [f64; 2],
    texts: [String; 2],
    colour: &'static str,
}

impl<'a> Row<'a> {
    fn of(figure: &'a Figure, colours: &Colours) -> Self {
        let colour = if figure.starts_first { colours.inplace } else { colours.kubelet };
        let failed = figure.failed_each();
        Self { figure, values: [failed, figure.gap], texts: [count(failed), time(figure.gap)], colour }
    }
}

impl Figure {
    /// Failed requests of one operation.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    pub(crate) fn failed_each(&self) -> f64 {
        self.failed as f64 / self.operations.max(1) as f64
    }
}

/// A mean number of requests: only 0 is written as 0.
pub(crate) fn count(mean: f64) -> String {
    if mean > 0.0 && mean < 10.0 { format!("{mean:.1}") } else { format!("{mean:.0}") }
}

/// Milliseconds, or seconds from one second on.
pub(crate) fn time(milliseconds: f64) -> String {
    if milliseconds < 1e3 { format!("{milliseconds:.0} ms") } else { seconds(milliseconds) }
}

/// The plot in words, for those who do not see it.
fn description(rows: &[Row<'_>]) -> String {
    let row = |row: &Row<'_>| {
        let [failed, gap] = &row.texts;
        format!("{}: {failed} failed requests per operation, at most {gap} without an answer", row.figure.way)
    };
    format!("Bars on two linear scales. {}.", rows.iter().map(row).collect::<Vec<_>>().join(". "))
}
