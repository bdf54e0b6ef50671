//! Selects pods of the namespace by their fields and not by their names: `--all`, `--field-selector`, `--node`. Pure.

use clap::Args;
use clap_complete::engine::ArgValueCompleter;

use crate::cli::completion;

/// The flags that select pods. All of them are limited to the namespace.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Selection of pods")]
pub(super) struct Selection {
    /// All pods of the namespace, without a name
    #[arg(long)]
    pub(super) all: bool,
    /// The pods with these fields: FIELD=VALUE[,FIELD=VALUE], for example spec.nodeName=node-1
    #[arg(long, value_name = "FIELDS", value_parser = fields)]
    field_selector: Option<String>,
    /// The pods on this node, as --field-selector spec.nodeName=NODE
    #[arg(long, value_name = "NODE", add = ArgValueCompleter::new(completion::nodes))]
    node: Option<String>,
}

impl Selection {
    /// True if one of the flags is given.
    pub(super) fn is_given(&self) -> bool {
        self.all || self.fields().is_some()
    }

    /// The field selector for the API server.
    pub(super) fn fields(&self) -> Option<String> {
        let node = self.node.as_ref().map(|node| format!("spec.nodeName={node}"));
        let terms: Vec<_> = self.field_selector.iter().cloned().chain(node).collect();
        (!terms.is_empty()).then(|| terms.join(","))
    }
}

/// Checks the form only. Which fields exist is known to the API server.
fn fields(text: &str) -> Result<String, String> {
    let is_term =
        |term: &str| term.split_once('=').is_some_and(|(field, _)| !field.trim_end_matches('!').is_empty());
    match text.split(',').find(|term| !is_term(term)) {
        None => Ok(text.to_owned()),
        Some(term) => Err(format!("`{term}` is not FIELD=VALUE or FIELD!=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_is_a_field() {
        let selection = |field_selector: Option<&str>, node: Option<&str>| Selection {
            all: false,
            field_selector: field_selector.map(str::to_owned),
            node: node.map(str::to_owned),
        };
        assert_eq!(selection(None, Some("n")).fields().as_deref(), Some("spec.nodeName=n"));
        let both = selection(Some("status.phase=Running"), Some("n"));
        assert_eq!(both.fields().as_deref(), Some("status.phase=Running,spec.nodeName=n"));
        assert!(!selection(None, None).is_given() && both.is_given());
        assert!(Selection { all: true, ..Selection::default() }.is_given());
        for (text, valid) in
            [("a=b", true), ("a!=b,c==d", true), ("a", false), ("=b", false), ("a=b,", false)]
        {
            assert_eq!(fields(text).is_ok(), valid, "{text}");
        }
    }
}
