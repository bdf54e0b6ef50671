//! YAML into types: the unknown fields by path, errors by line and column.
//!
//! An error must not quote the text around it, nor a value: environment values are secrets.

use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_saphyr::Error;
use serde_saphyr::options::DuplicateKeyPolicy;

/// Where the YAML is wrong, and how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {problem}")]
pub struct BadYaml {
    /// From 1; 0 when nobody knows.
    pub line: u64,
    /// From 1; 0 when nobody knows.
    pub column: u64,
    /// What is wrong. Quotes no values.
    pub problem: String,
}

/// Reads the only document, and lists the fields that `T` does not know. Text that other readers of YAML take for
/// a number or a boolean has to be quoted where `T` wants a text, as Kubernetes demands it.
pub(in crate::api) fn one<T: DeserializeOwned>(text: &str) -> Result<(T, Vec<String>), BadYaml> {
    let options = serde_saphyr::options! { with_snippet: false, no_schema: true };
    let mut unknown = Vec::new();
    let value = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        serde_ignored::deserialize(yaml, |path| unknown.push(spelled(&path)))
    })
    .map_err(|error| bad(&error))?;
    Ok((value, unknown))
}

/// Reads all documents and skips what `T` does not know.
pub(in crate::api) fn all<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, BadYaml> {
    let options =
        serde_saphyr::options! { with_snippet: false, duplicate_keys: DuplicateKeyPolicy::LastWins };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| bad(&error))
}

/// `spec.containers[0].resources`.
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
            // Line and column are reported already.
            text.split_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_owned()
        }
    };
    BadYaml { line, column, problem }
}
