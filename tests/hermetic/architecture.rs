//! Checks the sources against the map of modules in `src/lib.rs`: which module may import which, which modules
//! stay pure, and how a file begins.
//! Reads the sources as text; runs nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::sources::{code, files, sources, without_tests};

/// A longer source must be split.
const MAX_SOURCE_LINES: usize = 600;
/// A longer file of tests must be split.
const MAX_TEST_LINES: usize = 500;

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
            assert!(!without_tests(&text).contains(word), "{} holds `{word}`", path.display());
        }
    }
}

#[test]
fn every_file_says_what_it_is_and_is_short_enough_to_read() {
    for (folder, longest) in [("src", MAX_SOURCE_LINES), ("tests", MAX_TEST_LINES)] {
        for (path, text) in files(folder, &["rs"]) {
            assert!(text.starts_with("//!"), "{} does not begin with //!", path.display());
            let lines = text.lines().count();
            assert!(lines <= longest, "{} has {lines} lines, more than {longest}: split it", path.display());
        }
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

/// Words that this project once had of its own, for which it uses those of the field now: spec, report, task, reconcile,
/// container instance, last failure, template cache, new pod, orphan, outbox, unconfirmed write. No part of an
/// identifier may be one of them.
const OLD_WORDS: [&str; 46] = [
    "anatomy",
    "attendant",
    "audience",
    "birth",
    "births",
    "books",
    "born",
    "chance",
    "deed",
    "deeds",
    "desk",
    "doubts",
    "duty",
    "halt",
    "happening",
    "hears",
    "incarnation",
    "keeper",
    "leash",
    "life",
    "lives",
    "misfit",
    "misfits",
    "newborn",
    "news",
    "office",
    "oracle",
    "outlook",
    "patience",
    "rehearsal",
    "rehearse",
    "scene",
    "setback",
    "shelf",
    "stray",
    "strays",
    "theatre",
    "told",
    "town",
    "trouble",
    "unsaid",
    "wish",
    "wished",
    "wishes",
    "witness",
    "workshop",
];

/// More of them, which are old words only as whole identifiers.
const OLD_NAMES: [&str; 24] = [
    "learn",
    "looked",
    "hear",
    "mends",
    "mending",
    "spoilt",
    "board",
    "dear",
    "site",
    "standing",
    "runwish",
    "enginewish",
    "badwish",
    "invalidwish",
    "gateturn",
    "turnback",
    "keptpod",
    "keptrollout",
    "keptworkload",
    "is_away",
    "unreached",
    "load_beside",
    "write_beside",
    "last_words",
];

#[test]
fn no_old_word_is_part_of_an_identifier() {
    let mut found = Vec::new();
    for (path, text) in sources().into_iter().chain(files("tests", &["rs"])) {
        // The lists themselves are text, which is no code.
        found.extend(old_words(&path, &code(&text)));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_old_word_is_a_whole_identifier() {
    let mut found = Vec::new();
    for (path, text) in sources() {
        for word in code(&text).split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
            let word = word.to_ascii_lowercase();
            if OLD_WORDS.contains(&&*word) || OLD_NAMES.contains(&&*word) {
                found.push(format!("{}: {word}", path.display()));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Prose may use an old word in its ordinary sense: these are the words that the pages have no use for.
#[test]
fn no_old_word_is_in_manifests_scripts_or_pages() {
    let mut found = Vec::new();
    let kinds = ["md", "yaml", "yml", "sh", "py", "go", "tpl", "json"];
    for folder in ["daemonset", "dist", "docs", "tests"] {
        for (path, text) in files(folder, &kinds) {
            found.extend(old_words(&path, &text));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn an_identifier_is_split_into_its_words() {
    let found = |text: &str| old_words(Path::new("a.rs"), text);
    assert_eq!(found("fn the_old_life(x: RunWish, y: HTTPDesk, BIRTHS: u8)").len(), 4);
    assert_eq!(found("lifetime wishful toldo deskTop").len(), 1);
    assert!(!found("mod wishes;").is_empty());
    assert!(!old_words(Path::new("tests/new_life.rs"), "").is_empty());
}

/// The old words among the parts of the identifiers in `code` and of the file's name.
fn old_words(path: &Path, code: &str) -> Vec<String> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let identifiers = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).chain([stem.as_str()]);
    let mut found = Vec::new();
    for identifier in identifiers {
        if parts(identifier).iter().any(|part| OLD_WORDS.contains(&part.as_str())) {
            found.push(format!("{}: {identifier}", path.display()));
        }
    }
    found
}

/// The words of an identifier in lower case: `RunOfAPI_v1` has `run`, `of`, `api`, `v1`.
fn parts(identifier: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = identifier.chars().peekable();
    let mut before = '_';
    while let Some(c) = chars.next() {
        let begins = c.is_ascii_uppercase()
            && (!before.is_ascii_uppercase() || chars.peek().is_some_and(char::is_ascii_lowercase));
        if c == '_' || begins {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().unwrap().push(c.to_ascii_lowercase());
        }
        before = c;
    }
    parts
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
    if ["lib", "linux", "main", "reference"].contains(&module.as_str()) {
        return Vec::new();
    }
    let Some(allowed) = allowed.get(&module) else {
        return vec![format!("{file}: {module} is not on the map")];
    };
    let mut wrong = Vec::new();
    for rest in without_tests(text).split("crate::").skip(1) {
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            wrong.push(format!("{file} imports a group from crate::{{..}}: write one line per module"));
        } else if name != module && !allowed.contains(&name) {
            wrong.push(format!("{file} imports {name}"));
        }
    }
    wrong
}
