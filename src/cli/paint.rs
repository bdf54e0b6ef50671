//! Colours of words in results: what has succeeded, failed, or is in progress. Pure.

/// A colour, by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Color {
    Good,
    Bad,
    Warning,
    Going,
}

/// The headings of columns whose cells have a colour.
const COLORED: [&str; 3] = ["PHASE", "TYPE", "SKEW"];

impl Color {
    fn of(word: &str) -> Option<Self> {
        match word {
            "Succeeded" | "supported" => Some(Self::Good),
            "Failed" | "Refused" | "not supported" => Some(Self::Bad),
            "RolledBack" | "Cancelled" | "Warning" | "unknown" => Some(Self::Warning),
            "Running" | "Pending" | "Chosen" => Some(Self::Going),
            _ => None,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::Good => "\u{1b}[32m",
            Self::Bad => "\u{1b}[31m",
            Self::Warning => "\u{1b}[33m",
            Self::Going => "\u{1b}[36m",
        }
    }
}

const RESET: &str = "\u{1b}[0m";

/// A heading of a table.
pub(super) fn heading(text: &str) -> String {
    format!("\u{1b}[1m{text}{RESET}")
}

/// A cell below `heading`.
pub(super) fn cell(heading: &str, text: &str) -> String {
    if COLORED.contains(&heading) { word(text) } else { text.to_owned() }
}

/// A phase or a state; other words stay as they are.
pub(super) fn word(text: &str) -> String {
    match Color::of(text) {
        Some(color) => format!("{}{text}{RESET}", color.code()),
        None => text.to_owned(),
    }
}

/// The name of the program in front of an error.
pub(super) fn error(line: &str) -> String {
    match line.strip_prefix("inplace: ") {
        Some(rest) => format!("{}inplace:{RESET} {rest}", Color::Bad.code()),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_has_a_colour_only_in_its_column() {
        assert_eq!(cell("PHASE", "Failed"), "\u{1b}[31mFailed\u{1b}[0m");
        assert_eq!(cell("POD", "Failed"), "Failed");
        assert_eq!(cell("PHASE", "-"), "-");
        assert_eq!(error("inplace: no"), "\u{1b}[31minplace:\u{1b}[0m no");
        assert_eq!(error("pod/web: no"), "pod/web: no");
    }
}
