//! The ports on which the processes of a pod listen, and what `inplace sockets` prints about them.
//!
//! Decides nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The number of listening sockets by port. Sockets that share a port (`SO_REUSEPORT`) count each.
pub type Listeners = BTreeMap<Port, u32>;

/// A TCP or UDP port. Its text is `8080` or `53/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// A TCP port.
    Tcp(u16),
    /// A UDP port.
    Udp(u16),
}

impl Port {
    /// The port that a container declares with this protocol, TCP if it names none; `None` for SCTP and unknown protocols.
    pub fn declared(number: u16, protocol: &str) -> Option<Self> {
        match protocol {
            "" | "TCP" => Some(Self::Tcp(number)),
            "UDP" => Some(Self::Udp(number)),
            _ => None,
        }
    }
}

/// What follows the number of a UDP port in its text.
const UDP: &str = "/udp";

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(number) => write!(f, "{number}"),
            Self::Udp(number) => write!(f, "{number}{UDP}"),
        }
    }
}

/// The text is not that of a port.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a port: a number, or a number and `{UDP}`")]
pub struct InvalidPort;

impl FromStr for Port {
    type Err = InvalidPort;

    fn from_str(text: &str) -> Result<Self, InvalidPort> {
        let number = |text: &str| text.parse().map_err(|_| InvalidPort);
        match text.strip_suffix(UDP) {
            Some(text) => number(text).map(Self::Udp),
            None => number(text).map(Self::Tcp),
        }
    }
}

impl Serialize for Port {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Reads what `inplace sockets` prints: a line `PORT COUNT` for each port; `None` for any other text.
pub fn parse(text: &str) -> Option<Listeners> {
    let line = |line: &str| {
        let (port, count) = line.split_once(' ')?;
        Some((port.parse().ok()?, count.parse().ok()?))
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_and_nothing_else() {
        let listeners = Listeners::from([(Port::Tcp(80), 1), (Port::Tcp(8080), 3), (Port::Udp(53), 2)]);
        assert_eq!(parse("80 1\n8080 3\n53/udp 2\n"), Some(listeners.clone()));
        assert_eq!(parse(""), Some(Listeners::new()));
        for text in ["80", "80 x", "http 1", "70000 1", "80 1 2", "53/tcp 1", "/udp 1", "error: no such file"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
        let written = serde_json::to_string(&listeners).unwrap();
        assert_eq!(written, r#"{"80":1,"8080":3,"53/udp":2}"#);
        assert_eq!(serde_json::from_str::<Listeners>(&written).unwrap(), listeners);
    }
}
