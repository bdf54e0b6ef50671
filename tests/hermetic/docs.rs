//! The pages for people: each link leads to a file and a heading that exist, each page is reachable from the README, and the
//! README stays short. Says nothing about what the pages say.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of the README.
const LONGEST_README: usize = 150;

/// The pages, below the root of the project.
fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "docs/reference"].into_iter();
    let docs = folders.flat_map(|folder| fs::read_dir(folder).unwrap()).map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let mut pages: Vec<_> = pages.chain(["README.md", "daemonset/README.md"].map(PathBuf::from)).collect();
    pages.sort();
    pages
}

/// The targets of the links of a page, without those to other hosts.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    targets.filter(|target| !target.contains("://")).collect()
}

/// The anchors of the headings of a page, as code hosts make them: lower case, blanks as hyphens, no other punctuation.
fn anchors(text: &str) -> BTreeSet<String> {
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
}

#[test]
fn the_readme_is_short() {
    let lines = fs::read_to_string("README.md").unwrap().lines().count();
    assert!(lines <= LONGEST_README, "{lines} lines");
}
