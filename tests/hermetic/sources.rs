//! The sources of the program as text, and parts of them: without tests, without comments and text. Must not know what
//! is in them.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

/// What precedes an item that only tests have.
const TEST_ITEM: &str = "#[cfg(test)]";

/// Path and text of every source below `src`, in the order of the paths.
pub(crate) fn sources() -> Vec<(PathBuf, String)> {
    let sources = files("src", &["rs"]);
    assert!(sources.len() > 20, "the sources were not found");
    sources
}

/// The sources of the program without their tests: files that only tests have are omitted, and so are items.
pub(crate) fn product() -> Vec<(PathBuf, String)> {
    let mut found = sources();
    let declared = Regex::new(r"#\[cfg\(test\)\]\s+(?:pub(?:\([a-z ]+\))? )?mod (\w+);").unwrap();
    let mut tests = Vec::new();
    for (path, text) in &found {
        let is_folder = ["mod.rs", "lib.rs", "main.rs"].iter().any(|name| path.ends_with(name));
        let folder = if is_folder { path.parent().unwrap().to_owned() } else { path.with_extension("") };
        tests.extend(declared.captures_iter(text).map(|module| folder.join(&module[1])));
    }
    found.retain(|(path, _)| !tests.iter().any(|test| path.with_extension("").starts_with(test)));
    for (_, text) in &mut found {
        *text = without_tests(text);
    }
    found
}

/// Path and text of every file below `folder` with one of these extensions, in the order of the paths.
pub(crate) fn files(folder: &str, extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    let is_wanted =
        |path: &Path| path.extension().is_some_and(|end| extensions.iter().any(|wanted| end == *wanted));
    while let Some(folder) = folders.pop() {
        for item in fs::read_dir(folder).unwrap() {
            let path = item.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if is_wanted(&path) {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    assert!(!files.is_empty(), "nothing was found below {folder}");
    files.sort();
    files
}

/// A source without the items that only tests have, wherever they are in it.
pub(crate) fn without_tests(text: &str) -> String {
    let code = code(text);
    let mut product = String::new();
    let mut from = 0;
    while let Some(found) = code[from..].find(TEST_ITEM) {
        let begin = from + found;
        product.push_str(&text[from..begin]);
        from = begin + item(&code[begin..]);
    }
    product.push_str(&text[from..]);
    product
}

/// The length of the item, with its attributes, with which this code begins.
fn item(code: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in code.char_indices() {
        match c {
            '{' | '(' | '[' => depth += 1,
            // The end of what contains the item.
            '}' | ')' | ']' if depth == 0 => return at,
            '}' | ')' | ']' => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(c, ';' | '}') {
            return at + 1;
        }
    }
    code.len()
}

/// A source with spaces in the place of comments and text, byte for byte.
pub(crate) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|after| after.trim_start_matches('#'));
        let hashes = raw.map_or(0, |after| rest.len() - 1 - after.len());
        let before = code.strip_suffix(['b', 'c']).unwrap_or(&code);
        let is_word = before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let after = if rest.starts_with("//") {
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
            rest = &rest[first.len_utf8()..];
            continue;
        };
        code.extend(std::iter::repeat_n(' ', rest.len() - after.len()));
        rest = after;
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

#[test]
fn comments_and_text_are_no_code() {
    let text = "let a = \"b \\\" c\"; // d\nlet e = br#\"f \" g\"#; let h = 'i'; fn j<'k>() {} let l = '\"';";
    let words: Vec<_> = code(text).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.join(" "), "let a = ; let e = b ; let h = ; fn j<'k>() {} let l = ;");
    assert_eq!(code(text).len(), text.len());
}

#[test]
fn tests_are_no_product_wherever_they_are() {
    let text = "a();\n#[cfg(test)]\n#[expect(x, reason = \"}\")]\nfn b(c: [u8; 3]) {\n    \"}\"; { }\n}\nd();\n\
                #[cfg(test)]\nmod e;\nf();\n#[cfg(test)]\nmod tests {\n    g();\n}\n";
    let product = without_tests(text);
    assert_eq!(product.split_whitespace().collect::<Vec<_>>(), ["a();", "d();", "f();"]);
}
