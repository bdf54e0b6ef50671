//! `inplace crds`: prints what the API server has to know before it takes our kinds.

use std::io::Write;

use crate::api::crd;
use crate::cli::exit::Exit;

/// Prints the `CustomResourceDefinition`s as YAML, for `kubectl apply -f -`.
#[derive(Debug, clap::Args)]
pub struct CrdsCommand {}

impl CrdsCommand {
    /// Prints them; fails only when nobody reads.
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
