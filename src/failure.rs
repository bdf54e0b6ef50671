//! The class of a failed call, to a runtime or to an API server: whether it may be repeated. Each client classifies its
//! own errors.

use serde::{Deserialize, Serialize};

/// The class of a failure. It decides whether and how the call is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// The runtime was unreachable or did not respond in time. Whether the effect happened is unknown: observe again.
    Away,
    /// No request was sent: the effect did not happen and may be retried.
    Unreached,
    /// The name is taken. The container that holds it shows up in a snapshot.
    NameTaken,
    /// The object does not exist, or no longer exists.
    Gone,
    /// It needs credentials that this program does not have.
    Credentials,
    /// The runtime refused; it may accept later.
    Refused,
    /// Not allowed. An API server that has just started answers this for a moment, until it has loaded its
    /// authorization rules.
    Denied,
    /// Refused for good: no retry will change it.
    Final,
}

impl Class {
    /// True when there was no refusal: a retry may succeed.
    pub fn is_away(self) -> bool {
        matches!(self, Self::Away | Self::Unreached)
    }
}
