//! The class of a failed call, to a runtime or to an API server: whether it may be repeated. Each client classifies its
//! own errors. Must not log or retry anything.

use serde::{Deserialize, Serialize};

/// The class of a failure. It decides whether and how the call is retried. Its names in the journal and in metrics are those
/// of [`Self::name`]: journals and dashboards of earlier releases have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// The server was unreachable, too busy or broken, or did not respond in time. Whether the effect happened is unknown:
    /// observe again.
    #[serde(rename = "Away")]
    Unavailable,
    /// No request was sent: the effect did not happen and may be retried.
    #[serde(rename = "Unreached")]
    NotSent,
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
    /// True if the server was not available: the call was not refused, and a retry may succeed.
    pub fn is_unavailable(self) -> bool {
        matches!(self, Self::Unavailable | Self::NotSent)
    }

    /// The name in metric labels, the same as in the journal.
    pub fn name(self) -> String {
        match self {
            Self::Unavailable => "Away".to_owned(),
            Self::NotSent => "Unreached".to_owned(),
            other => format!("{other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_and_the_metrics_keep_the_names_of_earlier_releases() {
        for (class, name) in [
            (Class::Unavailable, "Away"),
            (Class::NotSent, "Unreached"),
            (Class::NameTaken, "NameTaken"),
            (Class::Gone, "Gone"),
            (Class::Credentials, "Credentials"),
            (Class::Refused, "Refused"),
            (Class::Denied, "Denied"),
            (Class::Final, "Final"),
        ] {
            assert_eq!((class.name().as_str(), serde_json::to_value(class).unwrap()), (name, name.into()));
            assert_eq!(serde_json::from_value::<Class>(name.into()).unwrap(), class);
        }
    }
}
