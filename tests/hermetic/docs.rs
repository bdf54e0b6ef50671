//! The pages for people: each link leads to a file and a heading that exist, each page is reachable from the README, and the
//! README stays short. Says nothing about what the pages say, apart from their commands, the plot and the example.

mod blocks;
mod commands;
mod conformance;
mod downtime_plot;
mod hot_standby;
mod plot;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

use self::blocks::spans;

/// Lines of the README.
const MAX_README_LINES: usize = 150;

/// The pages, below the root of the project.
fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/reference"].into_iter();
    let docs = folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut pages: Vec<_> = pages.chain(["README.md", "daemonset/README.md"].map(PathBuf::from)).collect();
    pages.sort();
    pages
}

/// The targets of the links and the images of a page, without those to other hosts.
fn links(text: &str) -> Vec<&str> {
    let between = |begin: &'static str, end: char| {
        text.split(begin).skip(1).filter_map(move |rest| rest.split_once(end)).map(|(target, _)| target)
    };
    let targets = between("](", ')').chain(between("src=\"", '"')).chain(between("srcset=\"", '"'));
    targets.filter(|target| !target.contains("://")).collect()
}

/// The anchors of the headings of a page, as code hosts make them: lower case, blanks as hyphens, no other punctuation.
pub(crate) fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| -> String {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// The links of `page` that lead nowhere, and the pages that the others lead to.
fn follow(page: &Path, text: &str) -> (Vec<String>, Vec<PathBuf>) {
    let (mut broken, mut reached) = (Vec::new(), Vec::new());
    for link in links(text) {
        let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
        let folder = page.parent().unwrap_or(Path::new(""));
        let target = if file.is_empty() { page.to_owned() } else { folder.join(file) };
        let found = fs::canonicalize(&target);
        let leads = found.as_ref().is_ok_and(|found| {
            let is_page = found.extension().is_some_and(|extension| extension == "md");
            anchor.is_empty() || is_page && anchors(&fs::read_to_string(found).unwrap()).contains(anchor)
        });
        if leads {
            reached.extend(found);
        } else {
            broken.push(format!("{}: {link}", page.display()));
        }
    }
    (broken, reached)
}

#[test]
fn every_link_leads_somewhere_and_every_page_is_reachable() {
    let (mut broken, mut reached) = (Vec::new(), BTreeSet::new());
    for page in pages() {
        let (wrong, targets) = follow(&page, &fs::read_to_string(&page).unwrap());
        broken.extend(wrong);
        if page == Path::new("README.md") {
            reached.extend(targets);
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    let unreached = pages()
        .into_iter()
        .filter(|page| page != Path::new("README.md") && !reached.contains(&fs::canonicalize(page).unwrap()));
    assert_eq!(unreached.collect::<Vec<_>>(), Vec::<PathBuf>::new(), "not linked from the README");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let page = Path::new("docs/concepts.md");
    let text = "[a](missing.md) [b](../README.md#no-such-heading) [c](limits.md) [d](https://example.com/x)";
    let (broken, reached) = follow(page, text);
    assert_eq!(broken, ["docs/concepts.md: missing.md", "docs/concepts.md: ../README.md#no-such-heading"]);
    assert_eq!(reached, [fs::canonicalize("docs/limits.md").unwrap()]);
    let (broken, _) = follow(Path::new("README.md"), "<source srcset=\"docs/images/missing.svg\">");
    assert_eq!(broken, ["README.md: docs/images/missing.svg"]);
}

/// The paths from the root of the project, in the prose of all pages.
#[test]
fn every_file_that_a_page_names_exists() {
    let (mut missing, mut found) = (Vec::new(), 0);
    for page in pages() {
        for span in spans(&fs::read_to_string(&page).unwrap()) {
            let below = |folder: &str| span.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
            if !["daemonset", "dist", "docs", "fuzz", "src", "tests"].into_iter().any(below)
                || span.contains(' ')
            {
                continue;
            }
            found += 1;
            if !Path::new(&span).exists() {
                missing.push(format!("{}: {span}", page.display()));
            }
        }
    }
    assert!(found > 50, "only {found} files were found");
    assert_eq!(missing, Vec::<String>::new());
}

/// A page that runs a script without `bash` relies on the mode that the repository stores.
#[test]
fn every_script_that_a_page_runs_is_executable() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut run = BTreeSet::new();
    for page in pages() {
        for span in spans(&fs::read_to_string(&page).unwrap()) {
            let mut words = span.split(' ').skip_while(|word| word.contains('='));
            let script =
                words.next().filter(|word| Path::new(word).extension().is_some_and(|end| end == "sh"));
            // Without arguments the script is only named.
            if let (Some(script), Some(_)) = (script, words.next()) {
                run.insert(script.to_owned());
            }
        }
    }
    assert!(run.contains("daemonset/image.sh") && run.contains("tests/lab/rust-targets.sh"), "{run:?}");
    for script in run {
        let mode = fs::metadata(&script).unwrap().permissions().mode();
        assert_eq!(mode & 0o111, 0o111, "{script} is not executable: {mode:o}");
    }
}

/// The first two columns of the table of typical changes.
#[test]
fn each_typical_change_has_a_file_to_open_first() {
    let text = fs::read_to_string("docs/contributing.md").unwrap();
    let table = text.split("## Where to begin").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<_> = table.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert_eq!(rows.len(), 29, "{rows:#?}");
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        let [_, first, _] = cells.as_slice() else { panic!("not three cells: {row}") };
        let files: Vec<_> = spans(first).into_iter().filter(|span| span.starts_with("src/")).collect();
        assert!(!files.is_empty(), "no file: {row}");
        assert!(files.iter().all(|file| Path::new(file).is_file()), "{files:?}: {row}");
    }
    // Names in parentheses behind a file are in that file.
    let behind = Regex::new(r"`(src/[^`]+)` \(((?:`[^`]+`(?:, )?)+)").unwrap();
    let mut found = 0;
    for named in behind.captures_iter(table) {
        let source = fs::read_to_string(&named[1]).unwrap();
        for name in spans(&named[2]) {
            found += 1;
            assert!(source.contains(&name), "{} has no {name}", &named[1]);
        }
    }
    assert!(found > 10, "only {found} names were found");
}

#[test]
fn the_readme_is_short() {
    let lines = fs::read_to_string("README.md").unwrap().lines().count();
    assert!(lines <= MAX_README_LINES, "{lines} lines");
}
