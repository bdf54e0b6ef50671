//! Parses and prints durations on the command line: `30s`, `2m`, `1h30m`; a plain number is seconds.
//! Whole seconds only, because the request has no finer unit.

use std::fmt;
use std::str::FromStr;

use jiff::SignedDuration;
use jiff::fmt::friendly::{Spacing, SpanPrinter};

/// A number of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Seconds(pub(super) u32);

impl FromStr for Seconds {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write a time like 30s, 2m or 1h30m, or a number of seconds";
        const TOO_LONG: &str = "that is too long";
        if let Ok(seconds) = text.parse() {
            return Ok(Self(seconds));
        }
        // The parser also reads `2m ago`, `1 hour` and parts of a second. Larger units come first, each once.
        let span: SignedDuration = text.parse().map_err(|_| WRONG)?;
        if span.is_negative() || span.subsec_nanos() != 0 || text.contains(char::is_whitespace) {
            return Err(WRONG);
        }
        u32::try_from(span.as_secs()).map(Self).map_err(|_| TOO_LONG)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printer = SpanPrinter::new().spacing(Spacing::None);
        f.write_str(&printer.duration_to_string(&SignedDuration::from_secs(self.0.into())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_seconds() {
        for (text, seconds) in
            [("0", 0), ("45", 45), ("30s", 30), ("2m", 120), ("1h", 3_600), ("1h30m", 5_400), ("1m1s", 61)]
        {
            assert_eq!(text.parse(), Ok(Seconds(seconds)), "{text}");
        }
        for text in
            ["", "s", "-1", "1.5s", "500ms", "30 s", "30s2m", "1m1m", "m5", "2d", "9999999999", "99999999h"]
        {
            assert!(text.parse::<Seconds>().is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_printed_as_they_are_parsed() {
        for (seconds, text) in [(0, "0s"), (45, "45s"), (120, "2m"), (5_400, "1h30m"), (86_400, "24h")] {
            assert_eq!(Seconds(seconds).to_string(), text);
            assert_eq!(text.parse(), Ok(Seconds(seconds)));
        }
    }
}
