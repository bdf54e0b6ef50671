//! What a terminal shows after a program's output: the few control sequences that this program and its progress bars write.
//! Draws it as SVG. Must not know the program.

#![expect(clippy::cast_precision_loss, reason = "a screen has few rows and columns")]

use std::fmt::Write as _;

/// The size of a character of the picture in pixels.
const CELL: (f64, f64) = (8.4, 19.0);
/// The space around the text in pixels.
const MARGIN: f64 = 14.0;
/// The colours of the picture: those of a terminal, by the numbers of SGR from 30 on.
const COLORS: [&str; 8] =
    ["#6b7580", "#ff9a92", "#6fd09a", "#f0b968", "#7ab8ff", "#d4a6ff", "#7fd6e0", "#e6e9ec"];
const GROUND: &str = "#14171a";
const TEXT: &str = "#e6e9ec";

/// A terminal.
#[derive(Default)]
pub(crate) struct Screen {
    columns: usize,
    rows: Vec<Vec<(char, Style)>>,
    row: usize,
    column: usize,
    style: Style,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Style {
    color: Option<usize>,
    bold: bool,
    dim: bool,
}

impl Screen {
    /// The screen of a terminal with so many columns after this output.
    pub(crate) fn after(output: &str, columns: usize) -> Self {
        let mut screen = Self { columns, ..Self::default() };
        let mut rest = output;
        while let Some(next) = rest.chars().next() {
            rest = &rest[next.len_utf8()..];
            match next {
                '\u{1b}' => rest = screen.sequence(rest),
                '\r' => screen.column = 0,
                '\n' => (screen.row, screen.column) = (screen.row + 1, 0),
                next if next.is_control() => {}
                next => screen.put(next),
            }
        }
        screen
    }

    /// The lines, without their styles.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = |row: &Vec<(char, Style)>| row.iter().map(|(c, _)| c).collect::<String>();
        self.rows.iter().map(|row| text(row).trim_end().to_owned()).collect()
    }

    fn put(&mut self, next: char) {
        // A terminal begins the next row with the first character that does not fit.
        if self.column == self.columns {
            (self.row, self.column) = (self.row + 1, 0);
        }
        let (row, column, style) = (self.row, self.column, self.style);
        let row = self.at(row);
        if row.len() <= column {
            row.resize(column + 1, (' ', Style::default()));
        }
        row[column] = (next, style);
        self.column += 1;
    }

    fn at(&mut self, row: usize) -> &mut Vec<(char, Style)> {
        if self.rows.len() <= row {
            self.rows.resize(row + 1, Vec::new());
        }
        &mut self.rows[row]
    }

    /// Interprets what follows an escape character, and returns the rest.
    fn sequence<'a>(&mut self, rest: &'a str) -> &'a str {
        let Some(parameters) = rest.strip_prefix('[') else { return rest };
        let Some(end) = parameters.find(|c: char| c.is_ascii_alphabetic()) else { return "" };
        let number = parameters[..end].parse::<usize>().ok();
        match parameters.as_bytes()[end] {
            b'A' => self.row = self.row.saturating_sub(number.unwrap_or(1)),
            b'B' => self.row += number.unwrap_or(1),
            b'G' => self.column = number.unwrap_or(1).saturating_sub(1),
            b'K' => {
                let (row, column) = (self.row, if number == Some(2) { 0 } else { self.column });
                self.at(row).truncate(column);
            }
            b'J' => self.rows.truncate(self.row),
            b'm' => parameters[..end].split(';').for_each(|code| self.style.apply(code)),
            _ => {}
        }
        &parameters[end + 1..]
    }

    /// The picture, below the command line that was typed.
    pub(crate) fn picture(&self, typed: &str) -> String {
        let columns =
            self.lines().iter().map(|line| line.chars().count()).max().unwrap_or(0).max(typed.len() + 2);
        let width = columns as f64 * CELL.0 + 2.0 * MARGIN;
        let height = (self.rows.len() + 1) as f64 * CELL.1 + 2.0 * MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
             font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" font-size=\"14\">\n\
             <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{GROUND}\"/>\n"
        );
        let prompt = Style { color: Some(2), ..Style::default() };
        run(&mut svg, 0, 0, "$", prompt);
        run(&mut svg, 0, 2, typed, Style { bold: true, ..Style::default() });
        for (number, row) in self.rows.iter().enumerate() {
            let mut from = 0;
            while from < row.len() {
                let style = row[from].1;
                let length = row[from..].iter().take_while(|(_, other)| *other == style).count();
                let text: String = row[from..from + length].iter().map(|(c, _)| c).collect();
                run(&mut svg, number + 1, from, &text, style);
                from += length;
            }
        }
        svg + "</svg>\n"
    }
}

impl Style {
    fn apply(&mut self, code: &str) {
        match code.parse::<usize>().unwrap_or(0) {
            0 => *self = Self::default(),
            1 => self.bold = true,
            2 => self.dim = true,
            22 => (self.bold, self.dim) = (false, false),
            code @ 30..=37 => self.color = Some(code - 30),
            39 => self.color = None,
            code @ 90..=97 => self.color = Some(code - 90),
            _ => {}
        }
    }
}

/// Text of one style, word by word: each word begins at its column, whatever font the reader has.
fn run(svg: &mut String, row: usize, column: usize, text: &str, style: Style) {
    let y = MARGIN + (row as f64 + 0.75) * CELL.1;
    let color = style.color.map_or(TEXT, |color| COLORS[color]);
    let bold = if style.bold { " font-weight=\"700\"" } else { "" };
    let dim = if style.dim { " opacity=\"0.7\"" } else { "" };
    let mut at = column;
    for word in text.split(' ') {
        let length = word.chars().count();
        if length > 0 {
            let (x, wide) = (MARGIN + at as f64 * CELL.0, length as f64 * CELL.0);
            let word = word.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{wide:.1}\" fill=\"{color}\"{bold}{dim}>{word}</text>"
            );
        }
        at += length + 1;
    }
}
