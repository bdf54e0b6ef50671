//! How one measurement went, before conditions judge it.

use crate::hook::value::Value;

/// What a provider came back with.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// A value, for the conditions to judge.
    Value(Value),
    /// It is a failure whatever the conditions say: an exit code that is not 0, an annotation with another value.
    Failed {
        /// What was seen.
        value: Value,
        /// Why it is none.
        why: String,
    },
    /// It could not be measured.
    Error(String),
}

impl Measured {
    /// The value for people; nothing where there is none.
    pub fn shown(&self) -> String {
        match self {
            Self::Value(value) | Self::Failed { value, .. } => value.shown(),
            Self::Error(_) => String::new(),
        }
    }
}
