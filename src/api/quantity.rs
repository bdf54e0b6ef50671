//! Quantities of Kubernetes, such as `10Gi`, `500m` or `1e3`, for comparisons. It must not write one: a text is passed on
//! as the user wrote it.

use serde_json::Value;

/// A quantity in units of 10^-9. A finer part is rounded up, as Kubernetes does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity(u128);

/// Fractional digits that are read.
const DIGITS: usize = 9;

impl Quantity {
    /// The quantity in `value`, a text or a number of a manifest; `None` if it is none or negative.
    pub fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Number(number) => Self::parse(&number.to_string()),
            _ => None,
        }
    }

    /// The quantity in whole units, such as bytes. A part of a unit is rounded up; more than the type can hold is the
    /// largest value.
    pub fn bytes(self) -> u64 {
        u64::try_from(self.0.div_ceil(10_u128.pow(9))).unwrap_or(u64::MAX)
    }

    /// True for a quantity of nothing.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The quantity in `text`; `None` if it is none, negative or too large.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('+').unwrap_or(text);
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        let (kept, finer) = fraction.split_at(fraction.len().min(DIGITS));
        let nanos: u128 = format!("{whole}{kept:0<DIGITS$}").parse().ok()?;
        let nanos = nanos.checked_add(finer.bytes().any(|digit| digit != b'0').into())?;
        scaled(nanos, suffix).map(Self)
    }
}

/// `nanos` times the value of the suffix.
fn scaled(nanos: u128, suffix: &str) -> Option<u128> {
    if let Some(prefix) = suffix.strip_suffix('i') {
        let at = if prefix.len() == 1 { "KMGTPE".find(prefix)? } else { return None };
        return nanos.checked_mul(1 << (10 * (at + 1)));
    }
    let power: i32 = match suffix {
        "n" => -9,
        "u" => -6,
        "m" => -3,
        "" => 0,
        "k" => 3,
        "M" => 6,
        "G" => 9,
        "T" => 12,
        "P" => 15,
        "E" => 18,
        exponent => exponent.strip_prefix(['e', 'E'])?.parse().ok()?,
    };
    let factor = 10_u128.checked_pow(power.unsigned_abs())?;
    if power < 0 { Some(nanos.div_ceil(factor)) } else { nanos.checked_mul(factor) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_compared_by_their_value() {
        let of = |text: &str| Quantity::parse(text).unwrap_or_else(|| panic!("{text}"));
        for (one, other) in [
            ("1Gi", "1024Mi"),
            ("1G", "1e9"),
            ("1.5", "1500m"),
            ("0.5Ki", "512"),
            ("1E", "1e18"),
            ("100n", "0.1u"),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
        for (less, more) in
            [("1G", "1Gi"), ("999m", "1"), ("10Gi", "11Gi"), ("1Ei", "2Ei"), ("0", "0.0000000001")]
        {
            assert!(of(less) < of(more), "{less} {more}");
        }
        assert_eq!(Quantity::read(&json!(2)), Quantity::parse("2"));
        for wrong in [
            "",
            ".",
            "-1",
            "1.2.3",
            "1ki",
            "Gi",
            "1 Gi",
            "1e",
            "1e99999",
            "x",
            "99999999999999999999999999999999E",
        ] {
            assert_eq!(Quantity::parse(wrong), None, "{wrong}");
        }
    }
}
