//! The plot of restarts in the README: the drawing itself, and that the stored pictures and the pages have the stored figures. Must not
//! measure.

use std::fs;

use regex::Regex;

use self::drawing::{Figure, Figures, Mode, seconds, svg};

#[path = "../../bench/plot.rs"]
#[allow(dead_code, reason = "the benchmark stores more")]
pub(super) mod drawing;

/// The figures that the stored pictures are drawn from.
fn stored() -> Figures {
    serde_json::from_str(&fs::read_to_string("docs/images/restart.json").unwrap()).unwrap()
}

fn figures(figures: &Figures) -> [Figure; 3] {
    [figures.inplace, figures.kubelet_first, figures.kubelet_again]
}

/// Figures that differ from the stored ones, with text that has to be escaped.
fn others() -> Figures {
    let figure = |n, p50, p99| Figure { n, p50, p99 };
    Figures {
        kubernetes: "1 <2> & 3".to_owned(),
        containerd: "4".to_owned(),
        inplace: figure(7, 410.0, 520.0),
        kubelet_first: figure(8, 1230.0, 2340.0),
        kubelet_again: figure(100, 2460.0, 3450.0),
    }
}

#[test]
fn the_stored_pictures_are_drawn_from_the_stored_figures() {
    for mode in Mode::ALL {
        let picture = fs::read_to_string(format!("docs/images/{}", mode.file())).unwrap();
        assert_eq!(picture, svg(&stored(), mode), "{}: draw it with `make bench`", mode.file());
    }
}

#[test]
fn the_pages_have_the_stored_figures() {
    let performance = fs::read_to_string("docs/performance.md").unwrap();
    let readme = fs::read_to_string("README.md").unwrap();
    let alt = readme.split("alt=\"").nth(1).unwrap().split('"').next().unwrap();
    for Figure { n, p50, p99 } in figures(&stored()) {
        assert!(
            performance.contains(&format!("| {p50} | {p99} |")),
            "{p50} and {p99} in docs/performance.md"
        );
        assert!(performance.contains(&format!("({n} times)")), "{n} times in docs/performance.md");
        assert!(alt.contains(&seconds(p50)), "{} in {alt}", seconds(p50));
    }
}

#[test]
fn every_figure_is_in_the_plot_and_the_bars_are_to_scale() {
    let width = Regex::new("class=\"bar\" .*width=\"([0-9.]+)\"").unwrap();
    for (drawn, texts) in [
        (stored(), None),
        (
            others(),
            Some(["0.41 s", "n = 7, max 0.52 s", "1.2 s", "n = 8, max 2.3 s", "2.5 s", "n = 100, p99 3.5 s"]),
        ),
    ] {
        let picture = svg(&drawn, Mode::Light);
        for Figure { n, p50, p99 } in figures(&drawn) {
            assert!(picture.contains(&format!(">{}<", seconds(p50))), "{p50}: {picture}");
            let worst = format!("{} {}<", if n < 100 { "max" } else { "p99" }, seconds(p99));
            assert!(picture.contains(&format!(">n = {n}, {worst}")), "{n}, {p99}: {picture}");
        }
        for text in texts.iter().flatten() {
            assert!(picture.contains(&format!(">{text}<")), "{text}: {picture}");
        }
        let widths: Vec<f64> = width.captures_iter(&picture).map(|found| found[1].parse().unwrap()).collect();
        assert_eq!(widths.len(), 3);
        for (width, figure) in widths.iter().zip(figures(&drawn)) {
            let expected = figure.p50 * widths[2] / drawn.kubelet_again.p50;
            assert!((width - expected).abs() < 0.02, "{width} is not {expected}");
        }
    }
}

#[test]
fn the_plot_is_well_formed_and_has_a_title_and_a_description() {
    for mode in Mode::ALL {
        let picture = svg(&others(), mode);
        well_formed(&picture).unwrap();
        for part in
            ["role=\"img\"", "aria-labelledby=\"title desc\"", "<title id=\"title\">", "<desc id=\"desc\">"]
        {
            assert!(picture.contains(part), "{part}: {picture}");
        }
        assert!(picture.contains("1 &lt;2&gt; &amp; 3"), "{picture}");
    }
    for wrong in
        ["<a><b></a></b>", "<a>", "</a>", "<a b=c/>", "<a>&x;</a>", "<a>x & y</a>", "<a b=\"<\"/>", "x"]
    {
        assert!(well_formed(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn light_and_dark_differ_in_colours_only() {
    let colour = Regex::new("#[0-9a-f]{6}").unwrap();
    let [light, dark] = Mode::ALL.map(|mode| svg(&others(), mode));
    assert_ne!(light, dark);
    assert_eq!(colour.replace_all(&light, "#"), colour.replace_all(&dark, "#"));
}

/// Whether the text is one XML element: every tag is closed, values are quoted, and `<` and `&` are escaped.
pub(super) fn well_formed(text: &str) -> Result<(), String> {
    let tag = Regex::new("^<(/?)([A-Za-z]+)((?: [A-Za-z:-]+=\"[^\"<&]*\")*)(/?)>").unwrap();
    let entity = Regex::new("&(amp|lt|gt|quot);").unwrap();
    let (mut open, mut rest, mut roots) = (Vec::new(), text.trim_end(), 0);
    while !rest.is_empty() {
        let (content, after) = rest.split_at(rest.find('<').unwrap_or(rest.len()));
        if entity.replace_all(content, "").contains('&') || open.is_empty() && !content.is_empty() {
            return Err(format!("not as content: {content}"));
        }
        rest = after;
        if rest.is_empty() {
            break;
        }
        let found = tag.captures(rest).ok_or_else(|| format!("no tag: {rest:.60}"))?;
        let name = found[2].to_owned();
        match (&found[1], &found[4]) {
            ("", end) => {
                roots += usize::from(open.is_empty());
                if end.is_empty() {
                    open.push(name);
                }
            }
            ("/", "") if open.pop().as_ref() == Some(&name) => {}
            _ => return Err(format!("{name} is not open")),
        }
        rest = &rest[found[0].len()..];
    }
    if open.is_empty() && roots == 1 { Ok(()) } else { Err(format!("{roots} elements, open: {open:?}")) }
}
