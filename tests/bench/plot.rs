//! Draws a plot of the README: how long a container is down for a restart, as SVG text from the figures of one run.
//! [`downtime`] draws the other one. Pure: must not measure, read or write anything.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

#[path = "downtime_plot.rs"]
pub(crate) mod downtime;

/// The figures of one run, as `docs/images/restart.json` has them.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Figures {
    pub(crate) kubernetes: String,
    pub(crate) containerd: String,
    /// Restarts of one container by inplace, one after the other.
    pub(crate) inplace: Figure,
    /// The container is stopped on the node, for the first time, and the kubelet starts it.
    pub(crate) kubelet_first: Figure,
    /// The same container, stopped again three seconds later.
    pub(crate) kubelet_again: Figure,
}

/// The downtimes of one row, in milliseconds.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) n: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// The page on which the plot is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    Light,
    Dark,
}

impl Mode {
    pub(crate) const ALL: [Self; 2] = [Self::Light, Self::Dark];

    /// The name of the file in `docs/images`.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Light => "restart-light.svg",
            Self::Dark => "restart-dark.svg",
        }
    }

    fn colours(self) -> Colours {
        match self {
            Self::Light => Colours {
                background: "#ffffff",
                border: "#d1d9e0",
                text: "#1f2328",
                muted: "#59636e",
                inplace: "#1a7f37",
                kubelet: "#818b98",
            },
            Self::Dark => Colours {
                background: "#0d1117",
                border: "#3d444d",
                text: "#f0f6fc",
                muted: "#9198a1",
                inplace: "#3fb950",
                kubelet: "#767e89",
            },
        }
    }
}

struct Colours {
    background: &'static str,
    border: &'static str,
    text: &'static str,
    muted: &'static str,
    inplace: &'static str,
    kubelet: &'static str,
}

struct Row {
    label: &'static str,
    figure: Figure,
    colour: &'static str,
}

/// All lengths are in pixels.
const WIDTH: f64 = 800.0;
const MARGIN: f64 = 28.0;
/// The space to the right of the longest bar, for its value.
const VALUE_SPACE: f64 = 96.0;
const FIRST_ROW: f64 = 96.0;
const ROW: f64 = 64.0;
const BAR: f64 = 24.0;
/// The distance of the labels of two ticks is at least this.
const TICK_SPACE: f64 = 60.0;

/// The plot: one bar per kind of restart, on a linear axis from zero.
pub(crate) fn svg(figures: &Figures, mode: Mode) -> String {
    let colours = mode.colours();
    let rows = rows(figures, &colours);
    let longest = rows.iter().map(|row| row.figure.p50).fold(0.0, f64::max);
    let scale = (WIDTH - 2.0 * MARGIN - VALUE_SPACE) / longest;
    let tops = [0.0, 1.0, 2.0].map(|index| FIRST_ROW + index * ROW);
    let axis = FIRST_ROW + 3.0 * ROW;
    let height = axis + 36.0;
    let mut out = page(height, TITLE, &description(&rows), &colours);
    let Colours { border, text, muted, .. } = colours;
    let mut write = |x: f64, y: f64, size: u32, fill: &str, attributes: &str, content: &str| {
        write(&mut out, x, y, size, fill, attributes, content);
    };
    let run = format!(
        "Medians of one run of make bench (Kubernetes {}, containerd {}). Shorter is better.",
        figures.kubernetes, figures.containerd
    );
    write(MARGIN, 64.0, 14, muted, "", &run);
    for (row, top) in rows.iter().zip(tops) {
        let length = row.figure.p50 * scale;
        write(MARGIN, top + 14.0, 15, text, "", row.label);
        write(WIDTH - MARGIN, top + 14.0, 13, muted, " text-anchor=\"end\"", &sample(row.figure));
        let bold = " font-weight=\"600\"";
        write(MARGIN + length + 10.0, top + 40.0, 17, text, bold, &seconds(row.figure.p50));
    }
    for tick in ticks(longest, scale) {
        let centred = " text-anchor=\"middle\"";
        write(MARGIN + tick * 1e3 * scale, axis + 20.0, 13, muted, centred, &tick.to_string());
    }
    write(WIDTH - MARGIN, axis + 20.0, 13, muted, " text-anchor=\"end\"", "seconds");
    for (row, top) in rows.iter().zip(tops) {
        let (length, colour) = (row.figure.p50 * scale, row.colour);
        let y = top + 22.0;
        let _ = writeln!(
            out,
            "<rect class=\"bar\" x=\"{MARGIN}\" y=\"{y}\" width=\"{length:.2}\" height=\"{BAR}\" rx=\"2\" fill=\"{colour}\"/>"
        );
    }
    let end = WIDTH - MARGIN;
    let _ = writeln!(out, "<path d=\"M{MARGIN} {axis}H{end}\" stroke=\"{border}\" fill=\"none\"/>");
    for tick in ticks(longest, scale) {
        let x = MARGIN + tick * 1e3 * scale;
        let _ = writeln!(out, "<path d=\"M{x:.1} {axis}v6\" stroke=\"{border}\" fill=\"none\"/>");
    }
    out.push_str("</svg>\n");
    out
}

/// The beginning of a picture, with its title.
fn page(height: f64, title: &str, description: &str, colours: &Colours) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-labelledby=\"title desc\" \
         font-family=\"-apple-system, 'Segoe UI', 'Noto Sans', 'DejaVu Sans', Helvetica, Arial, sans-serif\">\n"
    );
    let Colours { background, border, text, .. } = colours;
    let _ = writeln!(out, "<title id=\"title\">{}</title>", escaped(title));
    let _ = writeln!(out, "<desc id=\"desc\">{}</desc>", escaped(description));
    let _ = writeln!(
        out,
        "<rect x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"{background}\" stroke=\"{border}\"/>",
        WIDTH - 1.0,
        height - 1.0
    );
    write(&mut out, MARGIN, 40.0, 20, text, " font-weight=\"600\"", title);
    out
}

fn write(out: &mut String, x: f64, y: f64, size: u32, fill: &str, attributes: &str, content: &str) {
    let content = escaped(content);
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" fill=\"{fill}\"{attributes}>{content}</text>"
    );
}

const TITLE: &str = "How long a container is down when it is restarted";

fn rows(figures: &Figures, colours: &Colours) -> [Row; 3] {
    let row = |label, figure, colour| Row { label, figure, colour };
    [
        row("inplace: restarts directly after one another", figures.inplace, colours.inplace),
        row(
            "stopped on the node, started by the kubelet: first time",
            figures.kubelet_first,
            colours.kubelet,
        ),
        row(
            "stopped again 3 s later: the kubelet delays the start (CrashLoopBackOff)",
            figures.kubelet_again,
            colours.kubelet,
        ),
    ]
}

/// The plot in words, for those who do not see it.
fn description(rows: &[Row]) -> String {
    let row = |row: &Row| format!("{}: {} ({})", row.label, seconds(row.figure.p50), sample(row.figure));
    format!("Bars on a linear scale. {}.", rows.iter().map(row).collect::<Vec<_>>().join(". "))
}

/// What a median is of. The 99th percentile of fewer than 100 samples is their maximum.
fn sample(figure: Figure) -> String {
    let what = if figure.n < 100 { "max" } else { "p99" };
    format!("n = {}, {what} {}", figure.n, seconds(figure.p99))
}

/// Milliseconds as seconds, with as many digits as a reader compares.
pub(crate) fn seconds(milliseconds: f64) -> String {
    let seconds = milliseconds / 1e3;
    if seconds < 1.0 { format!("{seconds:.2} s") } else { format!("{seconds:.1} s") }
}

/// The ticks of the axis, in seconds.
fn ticks(longest: f64, scale: f64) -> Vec<f64> {
    let steps = [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0];
    let wide = |step: &f64| step * 1e3 * scale >= TICK_SPACE;
    let step = steps.into_iter().find(wide).unwrap_or(longest / 1e3);
    let ticks = (0..).map(|index| f64::from(index) * step);
    ticks.take_while(|tick| tick * 1e3 <= longest).collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
