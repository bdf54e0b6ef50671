//! Text from the cluster for a terminal: each character that a terminal interprets is replaced by its escaped form, as
//! `\n` or `\u{1b}`. A user who writes an annotation of a pod, an event or the output of a hook then neither controls
//! the terminal of a reader nor forges a line. Must not be applied to output for programs. Pure.

/// True for a character that a terminal interprets or that changes the order of others: the control characters (C0, DEL and
/// C1), the separators of lines and paragraphs, and the bidirectional controls.
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text for one line or one cell of a table. A text that is escaped already stays as it is.
pub(super) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_command(c) {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The text with its line breaks, which errors about several fields have. Each line after the first one is indented, so
/// that it does not begin like a row or a message.
pub(super) fn paragraph(text: &str) -> String {
    text.lines().map(escaped).collect::<Vec<_>>().join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_interprets_is_escaped_and_the_rest_stays() {
        for (text, shown) in [
            ("\u{1b}]52;c;bHM=\u{7}", r"\u{1b}]52;c;bHM=\u{7}"),
            ("\u{1b}[2J\u{0}", r"\u{1b}[2J\u{0}"),
            ("ok\nprod/db-0  x  Succeeded\r\t", r"ok\nprod/db-0  x  Succeeded\r\t"),
            ("\u{7f}\u{85}\u{9b}2J", r"\u{7f}\u{85}\u{9b}2J"),
            ("a\u{202e}b\u{2066}c\u{200f}d\u{61c}\u{2028}", r"a\u{202e}b\u{2066}c\u{200f}d\u{61c}\u{2028}"),
            ("für 漢字 👩\u{200d}💻 e\u{301} 'a' \"b\" \\", "für 漢字 👩\u{200d}💻 e\u{301} 'a' \"b\" \\"),
        ] {
            assert_eq!(escaped(text), shown);
            assert_eq!(escaped(shown), shown);
        }
    }

    #[test]
    fn a_line_of_a_message_does_not_begin_like_a_message() {
        for (text, shown) in [
            ("", ""),
            ("inplace: no", "inplace: no"),
            ("refused\npod/db-0: Succeeded", "refused\n  pod/db-0: Succeeded"),
            ("hook.yaml: a\nb\r\n  c\n", "hook.yaml: a\n  b\n    c"),
            ("a\n\u{1b}[2J\rb", "a\n  \\u{1b}[2J\\rb"),
        ] {
            assert_eq!(paragraph(text), shown);
        }
    }
}
