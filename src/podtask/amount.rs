//! A number or a percentage, and the only place where percentages are rounded.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A number or a percentage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// An absolute number.
    Count(u32),
    /// A percentage.
    Percent(u32),
}

/// The error for a value that is neither a number nor a percentage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a number from 0 on nor a percentage such as 25%")]
pub struct InvalidAmount(String);

impl Amount {
    /// Reads the value of the API.
    pub fn read(value: &IntOrString) -> Result<Self, InvalidAmount> {
        match value {
            IntOrString::Int(count) => {
                u32::try_from(*count).map(Self::Count).map_err(|_| InvalidAmount(count.to_string()))
            }
            IntOrString::String(text) => Self::parse(text),
        }
    }

    /// Reads a text: `3` or `25%`.
    pub fn parse(text: &str) -> Result<Self, InvalidAmount> {
        let invalid = || InvalidAmount(text.chars().take(32).collect());
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| plain).ok_or_else(invalid)
        };
        match text.strip_suffix('%') {
            Some(digits) => number(digits).map(Self::Percent),
            None => number(text).map(Self::Count),
        }
    }

    /// True for 0 and 0 %: it is 0 of any number.
    pub fn is_zero(self) -> bool {
        matches!(self, Self::Count(0) | Self::Percent(0))
    }

    /// The number that this is of `whole`, percentages rounded up.
    pub fn up(self, whole: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => (whole * percent as usize).div_ceil(100),
        }
    }

    /// The number that this is of `whole`, percentages rounded down.
    pub fn down(self, whole: usize) -> usize {
        match self {
            Self::Count(count) => count as usize,
            Self::Percent(percent) => whole * percent as usize / 100,
        }
    }

    /// How many of `whole` are held back: a percentage is rounded up, and one below 100 % releases at least one.
    pub fn held_back(self, whole: usize) -> usize {
        match self {
            Self::Percent(percent) if percent < 100 => self.up(whole).min(whole.saturating_sub(1)),
            _ => self.up(whole),
        }
    }
}

/// The limits of an update: how many of the desired pods may be unavailable, and how many pods may exist beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of unavailable pods.
    pub unavailable: usize,
    /// Maximum number of pods beyond the desired number.
    pub surge: usize,
}

impl Bounds {
    /// The limits for `replicas`. `maxUnavailable` is rounded up, or down if there is a surge. If both are 0, no pod
    /// can be updated.
    pub fn of(max_unavailable: Amount, max_surge: Amount, replicas: usize) -> Self {
        let surge = max_surge.up(replicas);
        let unavailable =
            if surge > 0 { max_unavailable.down(replicas) } else { max_unavailable.up(replicas) };
        Self { unavailable: unavailable.min(replicas), surge }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_a_percentage_is_read_and_nothing_else() {
        assert_eq!(Amount::read(&IntOrString::Int(3)), Ok(Amount::Count(3)));
        assert_eq!(Amount::parse("3"), Ok(Amount::Count(3)));
        assert_eq!(Amount::parse("25%"), Ok(Amount::Percent(25)));
        for wrong in ["", "%", "-1", "+3", "1.5", "25 %", "a", "99999999999"] {
            assert!(Amount::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Amount::read(&IntOrString::Int(-1)).unwrap_err().to_string().contains("-1"));
    }

    #[test]
    fn shares_are_rounded_up_and_down_in_one_place() {
        assert_eq!((Amount::Percent(25).up(5), Amount::Percent(25).down(5)), (2, 1));
        assert_eq!((Amount::Percent(0).up(5), Amount::Percent(100).up(5)), (0, 5));
        assert_eq!(Amount::Percent(90).held_back(5), 4, "one goes");
        assert_eq!(Amount::Percent(100).held_back(5), 5);
        assert_eq!(Amount::Percent(50).held_back(0), 0);
        assert_eq!(Amount::Count(7).held_back(5), 7);
    }

    #[test]
    fn no_pod_may_be_unavailable_only_where_the_user_says_so() {
        let none = Amount::Count(0);
        assert_eq!(Bounds::of(none, none, 5), Bounds { unavailable: 0, surge: 0 });
        assert!(none.is_zero() && Amount::Percent(0).is_zero() && !Amount::Percent(1).is_zero());
        assert_eq!(Bounds::of(Amount::Percent(25), none, 1), Bounds { unavailable: 1, surge: 0 });
        assert_eq!(
            Bounds::of(Amount::Percent(25), Amount::Percent(25), 1),
            Bounds { unavailable: 0, surge: 1 }
        );
        assert_eq!(Bounds::of(Amount::Count(9), none, 5).unavailable, 5);
    }
}
