//! Parses durations on the command line: `30s`, `2m`, `1h30m`; a plain number is seconds.
//! Whole seconds only, because the request has no finer unit.

use std::str::FromStr;

use jiff::SignedDuration;

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
}
