//! Parses durations on the command line: `30s`, `2m`, `1h30m`; a plain number is seconds.
//! Whole seconds only, because the request has no finer unit.

use std::str::FromStr;

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
        let (mut total, mut rest, mut above) = (0_u32, text, u32::MAX);
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or(WRONG)?;
            let (number, tail) = rest.split_at(digits);
            let unit = match tail.chars().next() {
                Some('h') => 3_600,
                Some('m') => 60,
                Some('s') => 1,
                _ => return Err(WRONG),
            };
            // Larger units come first, each once: `30s2m` is probably a typing error.
            if number.is_empty() || unit >= above {
                return Err(WRONG);
            }
            let number: u32 = number.parse().map_err(|_| TOO_LONG)?;
            total = number.checked_mul(unit).and_then(|part| total.checked_add(part)).ok_or(TOO_LONG)?;
            (rest, above) = (&tail[1..], unit);
        }
        if text.is_empty() { Err(WRONG) } else { Ok(Self(total)) }
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
