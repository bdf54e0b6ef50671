//! The conformance page: each field of `GameDeployment` and `GameStatefulSet` is in one row, each row names only fields that
//! the kinds have, and each test that it names exists. Must not judge what the page says about a field.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::blocks::spans;

/// The cell of a field that no test shows.
const UNTESTED: &str = "not shown by a test";

/// A kind, with the paths of its fields.
struct Kind {
    name: &'static str,
    fields: BTreeSet<String>,
}

/// A row of a table about fields.
struct Row<'a> {
    /// The heading above.
    heading: &'a str,
    cells: Vec<&'a str>,
}

impl Row<'_> {
    fn is_about(&self, kind: &Kind) -> bool {
        self.heading.starts_with("Both kinds") || self.heading.starts_with(kind.name)
    }

    fn fields(&self) -> Vec<String> {
        spans(self.cells[0])
    }

    /// The fields that the text about the row's own fields refers to.
    fn references(&self) -> Vec<String> {
        let is_field = |span: &String| span.starts_with("spec.") || span.starts_with("status.");
        self.cells[3..].iter().flat_map(|cell| spans(cell)).filter(is_field).collect()
    }

    /// What is wrong with the tests that the row names.
    fn wrong_tests(&self) -> Vec<String> {
        let last = self.cells[4];
        if last == UNTESTED {
            return Vec::new();
        }
        let (mut wrong, mut file, mut text, mut functions) = (Vec::new(), None, String::new(), 0);
        for span in spans(last) {
            if span.contains('/') {
                text = fs::read_to_string(&span).unwrap_or_default();
                if text.is_empty() || !Path::new(&span).is_file() {
                    wrong.push(format!("{span} does not exist"));
                }
                file = Some(span);
                continue;
            }
            functions += 1;
            if !text.contains(&format!("fn {span}(")) {
                wrong.push(format!("{} has no function {span}", file.as_deref().unwrap_or("no file")));
            }
        }
        if functions == 0 {
            wrong.push(format!("{:?}: no test, and not `{UNTESTED}`", self.cells[0]));
        }
        wrong
    }
}

/// The kinds with the fields of the reference, without the content of the templates.
fn kinds() -> [Kind; 2] {
    let page = fs::read_to_string("docs/reference/crds.md").unwrap();
    ["GameDeployment", "GameStatefulSet"].map(|name| {
        let section = page.split(&format!("\n## {name}\n")).nth(1).unwrap();
        let rows = section.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
        let fields = rows.map(|row| spans(row.split(" | ").next().unwrap()).remove(0));
        let is_content = |field: &String| {
            field.starts_with("spec.template.") || field.starts_with("spec.volumeClaimTemplates[]")
        };
        Kind { name, fields: fields.filter(|field| !is_content(field)).collect() }
    })
}

/// The rows of all tables about the kinds.
fn rows(page: &str) -> Vec<Row<'_>> {
    let (mut rows, mut heading) = (Vec::new(), "");
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("## ") {
            heading = text;
        } else if ["Both kinds", "Game"].iter().any(|begin| heading.starts_with(begin))
            && line.starts_with("| `")
        {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            assert_eq!(cells.len(), 5, "not five cells: {line}");
            rows.push(Row { heading, cells });
        }
    }
    rows
}

/// What is wrong with the page.
fn wrong(page: &str, kinds: &[Kind]) -> Vec<String> {
    let rows = rows(page);
    let mut wrong = Vec::new();
    for kind in kinds {
        let own: Vec<_> = rows.iter().filter(|row| row.is_about(kind)).collect();
        let mut named = BTreeSet::new();
        for field in own.iter().flat_map(|row| row.fields()) {
            if !kind.fields.contains(&field) {
                wrong.push(format!("{} has no field {field}", kind.name));
            }
            if !named.insert(field.clone()) {
                wrong.push(format!("{}: {field} is in two rows", kind.name));
            }
        }
        // An object or a list is described by the fields below it.
        let is_described = |field: &String| {
            let below =
                |other: &String| other.strip_prefix(field).is_some_and(|rest| rest.starts_with(['.', '[']));
            named.contains(field) || named.iter().any(below)
        };
        let missing = kind.fields.iter().filter(|field| !is_described(field));
        wrong.extend(missing.map(|field| format!("{}: {field} has no row", kind.name)));
    }
    for row in &rows {
        let about: Vec<_> = kinds.iter().filter(|kind| row.is_about(kind)).collect();
        let is_known = |field: &String| about.iter().any(|kind| kind.fields.contains(field));
        let unknown = row.references().into_iter().filter(|field| !is_known(field));
        wrong.extend(unknown.map(|field| format!("{}: no field {field}", row.heading)));
        wrong.extend(row.wrong_tests());
    }
    wrong
}

#[test]
fn conformance_names_each_field_and_tests_that_exist() {
    let page = fs::read_to_string("docs/conformance.md").unwrap();
    let kinds = kinds();
    assert!(kinds.iter().all(|kind| kind.fields.len() > 80), "the fields were not read");
    assert!(rows(&page).len() > 50, "the rows were not read");
    let wrong = wrong(&page, &kinds);
    assert!(wrong.is_empty(), "docs/conformance.md:\n  {}", wrong.join("\n  "));
}

#[test]
fn conformance_with_a_wrong_row_is_found() {
    let kind =
        |name, fields: &[&str]| Kind { name, fields: fields.iter().map(|&field| field.to_owned()).collect() };
    let kinds = [
        kind("GameDeployment", &["spec", "spec.replicas", "spec.hook", "spec.hook.args", "status.ready"]),
        kind("GameStatefulSet", &["spec", "spec.replicas", "status.ready"]),
    ];
    let here = "`tests/hermetic/docs/conformance.rs`";
    let row = |field: &str, text: &str, test: &str| format!("| {field} | same | - | {text} | {test} |\n");
    let page = |rows: &[String]| {
        let both = row("`spec.replicas`", "As `status.ready`.", &format!("{here} `kinds`, `rows`"));
        let own = row("`spec.hook.args`", "x", UNTESTED);
        format!(
            "## Both kinds: a\n{both}{}## GameDeployment: b\n{own}## Others\n| `no.field` | x |\n",
            rows.concat()
        )
    };
    let ready = row("`status.ready`", "x", UNTESTED);
    assert_eq!(wrong(&page(std::slice::from_ref(&ready)), &kinds), Vec::<String>::new());
    for (rows, says) in [
        (vec![], "GameStatefulSet: status.ready has no row"),
        (vec![ready.clone(), ready.clone()], "GameDeployment: status.ready is in two rows"),
        (vec![ready.clone(), row("`spec.hook`", "x", UNTESTED)], "GameStatefulSet has no field spec.hook"),
        (vec![row("`status.ready`", "`spec.reddy`", UNTESTED)], "no field spec.reddy"),
        (vec![row("`status.ready`", "x", "`tests/absent.rs` `f`")], "tests/absent.rs does not exist"),
        (
            vec![row("`status.ready`", "x", &format!("{here} `absent`"))],
            "conformance.rs has no function absent",
        ),
        (vec![row("`status.ready`", "x", "a test")], "no test, and not"),
    ] {
        let found = wrong(&page(&rows), &kinds);
        assert!(found.iter().any(|one| one.contains(says)), "{says}: {found:#?}");
    }
}
