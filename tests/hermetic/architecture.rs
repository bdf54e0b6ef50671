//! The map in `src/lib.rs` is the law: who may import whom, what stays pure, how a file begins.
//!
//! Reads the sources as text; runs nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A file longer than this wants to be two.
const LONGEST_FILE: usize = 600;

#[test]
fn every_import_is_allowed_by_the_map() {
    let allowed = map(&fs::read_to_string("src/lib.rs").unwrap());
    assert!(allowed.len() >= 8, "the map was not read: {allowed:?}");
    let wrong: Vec<_> = sources().iter().flat_map(|(path, text)| strangers(path, text, &allowed)).collect();
    assert!(wrong.is_empty(), "not allowed by the map in src/lib.rs:\n  {}", wrong.join("\n  "));
}

#[test]
fn a_planted_violation_is_found() {
    let allowed = map("//! | [`api`] | x | - |\n//! | [`node`] | x | api cri |\n");
    let text = "use crate::agent::Args;\nfn f() { crate::api::x(); crate::cri::y() }\n";
    let found = strangers(Path::new("src/node/mod.rs"), text, &allowed);
    assert_eq!(found, ["src/node/mod.rs imports agent"]);
    assert!(
        strangers(Path::new("src/api/a.rs"), "use crate::{node::X, api::Y};", &allowed)[0].contains("group")
    );
    assert!(strangers(Path::new("src/new/a.rs"), "", &allowed)[0].contains("not on the map"));
}

#[test]
fn contract_and_decisions_are_pure() {
    let impure =
        ["tokio::", "tonic::", "std::fs", "std::net", "std::process", "async fn", "tracing::", "::now()"];
    for (path, text) in sources() {
        if !["src/api", "src/operation", "src/workload", "src/rollout"]
            .iter()
            .any(|pure| path.starts_with(pure))
        {
            continue;
        }
        for word in impure {
            assert!(!product(&text).contains(word), "{} holds `{word}`", path.display());
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_is_short_enough_to_read() {
    for (path, text) in sources() {
        assert!(text.starts_with("//!"), "{} does not begin with //!", path.display());
        let lines = text.lines().count();
        assert!(lines <= LONGEST_FILE, "{} has {lines} lines: split it", path.display());
    }
}

/// The rows of the table in the map: module and what it may import.
fn map(text: &str) -> BTreeMap<String, Vec<String>> {
    let row = |line: &str| {
        let cells: Vec<_> = line.strip_prefix("//! | [`")?.split('|').map(str::trim).collect();
        let module = cells.first()?.trim_end_matches("`]").to_owned();
        let imports =
            cells.get(2)?.split_whitespace().filter(|word| *word != "-").map(str::to_owned).collect();
        Some((module, imports))
    };
    text.lines().filter_map(row).collect()
}

/// What the file at `path` imports and may not.
fn strangers(path: &Path, text: &str, allowed: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let file = path.display();
    let Some(module) = path.components().nth(1).map(|part| part.as_os_str().to_string_lossy().into_owned())
    else {
        return Vec::new();
    };
    if Path::new(&module).extension().is_some() {
        return Vec::new();
    }
    let Some(allowed) = allowed.get(&module) else {
        return vec![format!("{file}: {module} is not on the map")];
    };
    let mut wrong = Vec::new();
    for rest in product(text).split("crate::").skip(1) {
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            wrong.push(format!("{file} imports a group from crate::{{..}}: write one line per module"));
        } else if name != module && !allowed.contains(&name) {
            wrong.push(format!("{file} imports {name}"));
        }
    }
    wrong
}

/// A source without its unit tests, which may do what they like.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

fn sources() -> Vec<(PathBuf, String)> {
    let mut sources = Vec::new();
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                sources.push((path, text));
            }
        }
    }
    assert!(sources.len() > 20, "the sources were not found");
    sources
}
