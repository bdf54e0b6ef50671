//! `inplace crds`: prints the `CustomResourceDefinitions` that must be installed in the API server. Talks to no
//! server.

use std::io::Write;

use crate::api::crd;
use crate::cli::exit::Exit;

/// Prints the `CustomResourceDefinition`s as YAML, for `kubectl apply -f -`.
#[derive(Debug, clap::Args)]
pub struct CrdsCommand {}

impl CrdsCommand {
    /// Prints the definitions. Fails only when they cannot be generated or when standard output is closed.
    pub fn run(&self) -> Exit {
        match text().map(|text| std::io::stdout().write_all(text.as_bytes())) {
            Ok(Ok(())) => Exit::Done,
            _ => Exit::Failed,
        }
    }
}

/// All definitions, one YAML document each.
fn text() -> Result<String, Box<dyn std::error::Error>> {
    let mut text = String::new();
    for (_, definition) in crd::all()? {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&definition)?);
    }
    Ok(text)
}
