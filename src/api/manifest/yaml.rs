//! Parses YAML into types. Unknown fields are reported by path, errors by line and column.
//!
//! An error must not quote a value or the text around it: values of environment variables are often secrets.

use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_saphyr::Error;
use serde_saphyr::options::DuplicateKeyPolicy;

/// An error in the YAML, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct BadYaml {
    /// The line, from 1; 0 if it is unknown.
    pub line: u64,
    /// The column, from 1; 0 if it is unknown.
    pub column: u64,
    /// The problem. Quotes no values.
    pub problem: String,
}

/// Parses the only document, and returns the paths of the fields that `T` does not have. A text that YAML reads as a number
/// or a boolean must be quoted where `T` has a text, as Kubernetes requires.
pub(in crate::api) fn one<T: DeserializeOwned>(text: &str) -> Result<(T, Vec<String>), BadYaml> {
    let options = serde_saphyr::options! { with_snippet: false, no_schema: true };
    let mut unknown = Vec::new();
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        serde_ignored::deserialize(yaml, |path| unknown.push(spelled(&path)))
    })
    .map_err(|error| bad(&error))?;
    Ok((value, unknown))
}

/// Parses all documents. Fields that `T` does not have are skipped.
pub(in crate::api) fn all<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, BadYaml> {
    let options =
        serde_saphyr::options! { with_snippet: false, duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| bad(&error))
}

/// The path as text, such as `spec.containers[0].resources`.
fn spelled(path: &Path<'_>) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", spelled(parent)),
        Path::Map { parent, key } => match spelled(parent) {
            above if above.is_empty() => key.clone(),
            above => format!("{above}.{key}"),
        },
        Path::Some { parent } | Path::NewtypeStruct { parent } | Path::NewtypeVariant { parent } => {
            spelled(parent)
        }
    }
}

fn bad(error: &Error) -> BadYaml {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    let problem = match error.without_snippet() {
        Error::QuotingRequired { .. } => {
            "a number or boolean where a text is expected: put it in quotes".to_owned()
        }
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            format!("{expected} is expected here")
        }
        Error::NonFiniteFloat { .. } => "not a finite number".to_owned(),
        Error::AliasError { error, .. } => return BadYaml { line, column, ..bad(error) },
        other => {
            let text = other.to_string();
            // Line and column are in fields of their own.
            text.split_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_owned()
        }
    };
    BadYaml { line, column, problem }
}
