//! The result of one measurement, before conditions judge it. Must not contain a verdict of a condition.

use crate::hook::value::Value;

/// The result of a provider.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// A value for the conditions to judge.
    Value(Value),
    /// A failure, whatever the conditions are: an exit code that is not 0, an annotation with another value.
    Failed {
        /// The value that was measured.
        value: Value,
        /// Why it counts as a failure.
        why: String,
    },
    /// The measurement could not be made.
    Error(String),
}

impl Measured {
    /// The value for people; empty for an error.
    pub fn printed(&self) -> String {
        match self {
            Self::Value(value) | Self::Failed { value, .. } => value.printed(),
            Self::Error(_) => String::new(),
        }
    }
}
