//! The plot of what clients notice: the drawing itself, and that the stored pictures and the README have the stored figures.
//! Must not measure.

use std::fs;

use regex::Regex;

use super::plot::drawing::Mode;
use super::plot::drawing::downtime::{Figure, Figures, count, file, svg, time};
use super::plot::well_formed;

/// The figures that the stored pictures are drawn from.
fn stored() -> Figures {
    serde_json::from_str(&fs::read_to_string("docs/images/downtime.json").unwrap()).unwrap()
}

/// Figures that differ from the stored ones, with text that has to be escaped.
fn others() -> Figures {
    let figure = |way: &str, starts_first, failed, gap| {
        let way = way.to_owned();
        Figure { way, starts_first, operations: 10, requests: 1000, failed, gap }
    };
    Figures {
        kubernetes: "1 <2> & 3".to_owned(),
        containerd: "4".to_owned(),
        servers: "a 5, b 6".to_owned(),
        rate: 700.0,
        ways: vec![
            figure("a", true, 0, 12.0),
            figure("b & c", true, 1, 49.0),
            figure("d", false, 40_000, 1250.0),
            figure("e", false, 80_000, 2500.0),
        ],
    }
}

#[test]
fn the_stored_pictures_are_drawn_from_the_stored_figures() {
    for mode in Mode::ALL {
        let picture = fs::read_to_string(format!("docs/images/{}", file(mode))).unwrap();
        assert_eq!(picture, svg(&stored(), mode), "{}: draw it with `make bench`", file(mode));
    }
}

/// The text of the picture has all of them.
#[test]
fn the_readme_has_the_stored_figures() {
    let readme = fs::read_to_string("README.md").unwrap();
    let picture = readme.split("<picture>").find(|part| part.contains(file(Mode::Light))).unwrap();
    let alt = picture.split("alt=\"").nth(1).unwrap().split('"').next().unwrap();
    for figure in stored().ways {
        let figures = format!("{} failed, {}", count(figure.failed_each()), time(figure.gap));
        assert!(alt.contains(&figures), "{}: {figures} in {alt}", figure.way);
    }
}

#[test]
fn every_figure_is_in_the_plot_and_the_bars_are_to_scale() {
    let width = Regex::new("class=\"bar\" .*width=\"([0-9.]+)\"").unwrap();
    for (drawn, texts) in
        [(stored(), None), (others(), Some(["0", "12 ms", "0.1", "49 ms", "4000", "1.2 s", "8000", "2.5 s"]))]
    {
        let picture = svg(&drawn, Mode::Light);
        for figure in &drawn.ways {
            for text in [count(figure.failed_each()), time(figure.gap)] {
                assert!(picture.contains(&format!(">{text}<")), "{text}: {picture}");
            }
        }
        for text in texts.iter().flatten() {
            assert!(picture.contains(&format!(">{text}<")), "{text}: {picture}");
        }
        let widths: Vec<f64> = width.captures_iter(&picture).map(|found| found[1].parse().unwrap()).collect();
        let values: Vec<_> =
            drawn.ways.iter().flat_map(|figure| [figure.failed_each(), figure.gap]).collect();
        assert_eq!(widths.len(), values.len());
        for (index, (width, value)) in widths.iter().zip(&values).enumerate() {
            let most = values.iter().skip(index % 2).step_by(2).copied().fold(0.0, f64::max);
            let longest = widths.iter().skip(index % 2).step_by(2).copied().fold(0.0, f64::max);
            assert!((width - value * longest / most).abs() < 0.02, "{index}: {width} for {value} of {most}");
        }
    }
}

#[test]
fn the_plot_is_well_formed_and_has_a_title_and_a_description() {
    for mode in Mode::ALL {
        let picture = svg(&others(), mode);
        well_formed(&picture).unwrap();
        for part in
            ["<title id=\"title\">", "b &amp; c: 0.1 failed requests per operation", "1 &lt;2&gt; &amp; 3"]
        {
            assert!(picture.contains(part), "{part}: {picture}");
        }
    }
}

#[test]
fn light_and_dark_differ_in_colours_only() {
    let colour = Regex::new("#[0-9a-f]{6}").unwrap();
    let [light, dark] = Mode::ALL.map(|mode| svg(&others(), mode));
    assert_ne!(light, dark);
    assert_eq!(colour.replace_all(&light, "#"), colour.replace_all(&dark, "#"));
}
