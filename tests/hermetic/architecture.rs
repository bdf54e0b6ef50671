//! Checks the sources against the map of modules in `src/lib.rs`: which module may import which, which modules
//! stay pure, and how a file begins.
//! Reads the sources as text; runs nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::sources::sources;

/// A longer file must be split.
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
        if ![
            "src/api",
            "src/operation",
            "src/podtask",
            "src/workload",
            "src/rollout",
            "src/guard",
            "src/config_restart",
        ]
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

/// The rows of the map: module and permitted imports.
fn map(text: &str) -> BTreeMap<String, Vec<String>> {
    let row = |line: &str| {
        let cells: Vec<_> = line.strip_prefix("//! | [`")?.split('|').map(str::trim).collect();
        let module = cells.first()?.trim_end_matches("`]").to_owned();
        let imports = cells
            .get(2)?
            .replace('`', "")
            .split_whitespace()
            .filter(|word| *word != "-")
            .map(str::to_owned)
            .collect();
        Some((module, imports))
    };
    text.lines().filter_map(row).collect()
}

/// Words that this project once had of its own. The words of the field that took their places: spec, report, task, reconcile,
/// container instance, last failure, template cache, new pod, orphan, outbox.
const OLD_WORDS: [&str; 52] = [
    "wish",
    "wished",
    "wishes",
    "told",
    "shelf",
    "leash",
    "doubts",
    "newborn",
    "scene",
    "life",
    "lives",
    "site",
    "office",
    "workshop",
    "attendant",
    "desk",
    "books",
    "board",
    "audience",
    "happening",
    "setback",
    "trouble",
    "birth",
    "births",
    "deeds",
    "dear",
    "anatomy",
    "unsaid",
    "halt",
    "outlook",
    "stray",
    "strays",
    "keeper",
    "standing",
    "news",
    "chance",
    "town",
    "learn",
    "looked",
    "hear",
    "mends",
    "mending",
    "spoilt",
    "runwish",
    "enginewish",
    "badwish",
    "invalidwish",
    "gateturn",
    "turnback",
    "keptpod",
    "keptrollout",
    "keptworkload",
];

#[test]
fn no_old_word_is_an_identifier() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        for word in code(&text).split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            if OLD_WORDS.contains(&word.to_ascii_lowercase().as_str()) {
                found.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn comments_and_text_are_no_code() {
    let text = "let a = \"b \\\" c\"; // d\nlet e = br#\"f \" g\"#; let h = 'i'; fn j<'k>() {} let l = '\"';";
    let words: Vec<_> = code(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.join(" "), "let a = ; let e = b; let h = ; fn j<'k>() {} let l = ;");
}

/// A source without comments and text.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|after| after.trim_start_matches('#'));
        let hashes = raw.map_or(0, |after| rest.len() - 1 - after.len());
        let before = code.strip_suffix(['b', 'c']).unwrap_or(&code);
        let is_word = before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        rest = if rest.starts_with("//") {
            rest.find('\n').map_or("", |end| &rest[end..])
        } else if raw.is_some_and(|after| after.starts_with('"')) && !is_word {
            let (open, close) = (hashes + 2, format!("\"{}", "#".repeat(hashes)));
            rest[open..].find(&close).map_or("", |end| &rest[open + end + close.len()..])
        } else if first == '"' {
            after_quote(&rest[1..], '"')
        } else if first == '\'' && (rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'')) {
            after_quote(&rest[1..], '\'')
        } else {
            code.push(first);
            &rest[first.len_utf8()..]
        };
    }
    code
}

/// What follows the end of a text that is under way.
fn after_quote(text: &str, quote: char) -> &str {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if c == quote && !escaped {
            return &text[at + 1..];
        }
        escaped = c == '\\' && !escaped;
    }
    ""
}

/// The imports of the file at `path` that are not permitted.
fn strangers(path: &Path, text: &str, allowed: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let file = path.display();
    let Some(module) = path.components().nth(1).map(|part| part.as_os_str().to_string_lossy().into_owned())
    else {
        return Vec::new();
    };
    let module = module.trim_end_matches(".rs").to_owned();
    // The binary, and its own test.
    if ["lib", "main", "reference"].contains(&module.as_str()) {
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

/// A source without its unit tests, to which the rules do not apply.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}
