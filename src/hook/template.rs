//! Finds, checks and replaces `{{ args.NAME }}` in a text. Values are inserted as they are. Must not return a
//! text that is rendered only in part.

use crate::api::hook_template::Argument;

/// Maximum length of a rendered text, in bytes.
const MAX_RENDERED: usize = 256 * 1024;

/// Why a text cannot be rendered. It names the position, never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `{{` without `}}`.
    #[error("`{{{{` at byte {0} is never closed by `}}}}`")]
    Unclosed(usize),
    /// A placeholder that is not `args.NAME`.
    #[error("`{{{{ {0} }}}}` is not valid: write `{{{{ args.NAME }}}}`")]
    Tag(String),
    /// No such argument, or it has no value.
    #[error("`args.{0}` is not declared: declare it in `args` and set its value")]
    Unknown(String),
    /// The rendered text is longer than a hook may send.
    #[error("it becomes longer than {MAX_RENDERED} bytes")]
    TooLong,
}

/// Replaces every placeholder.
pub fn render(text: &str, args: &[Argument]) -> Result<String, TemplateError> {
    let mut rendered = String::with_capacity(text.len());
    for piece in pieces(text) {
        rendered.push_str(match piece? {
            Piece::Text(text) => text,
            Piece::Argument(name) => value(args, name)?,
        });
        if rendered.len() > MAX_RENDERED {
            return Err(TemplateError::TooLong);
        }
    }
    Ok(rendered)
}

/// The arguments on which the host of a URL depends: all that stand before the end of scheme, user, host and
/// port. A text that is not a valid template has none.
pub(crate) fn of_host(url: &str) -> Vec<&str> {
    // The host starts after `//`. A separator ends it only after its first character, since parsers of URLs skip
    // further slashes before it.
    let (mut slashes, mut inside, mut names) = (0, false, Vec::new());
    for piece in pieces(url) {
        match piece {
            Ok(Piece::Argument(name)) => {
                inside = slashes >= 2;
                names.push(name);
            }
            Ok(Piece::Text(text)) => {
                for c in text.chars() {
                    let ends = matches!(c, '/' | '\\' | '?' | '#');
                    if inside && ends {
                        return names;
                    }
                    slashes = if matches!(c, '/' | '\\') { slashes + 1 } else { slashes };
                    inside = slashes >= 2 && !ends;
                }
            }
            Err(_) => return Vec::new(),
        }
    }
    names
}

enum Piece<'a> {
    Text(&'a str),
    Argument(&'a str),
}

/// The text, split at its placeholders. Values are inserted later and never searched for placeholders.
fn pieces(text: &str) -> impl Iterator<Item = Result<Piece<'_>, TemplateError>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let here = rest.filter(|here| !here.is_empty())?;
        let piece = match here.find("{{") {
            Some(0) => tag(here, text.len() - here.len()),
            end => Ok((Piece::Text(&here[..end.unwrap_or(here.len())]), end.unwrap_or(here.len()))),
        };
        rest = piece.as_ref().ok().map(|(_, length)| &here[*length..]);
        Some(piece.map(|(piece, _)| piece))
    })
}

/// The placeholder at the beginning of `here`, and its length.
fn tag(here: &str, at: usize) -> Result<(Piece<'_>, usize), TemplateError> {
    let end = here.find("}}").ok_or(TemplateError::Unclosed(at))?;
    let inner = here[2..end].trim();
    let name = inner.strip_prefix("args.").filter(|name| is_name(name));
    let name = name.ok_or_else(|| TemplateError::Tag(inner.chars().take(64).collect()))?;
    Ok((Piece::Argument(name), end + 2))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || matches!(c, '{' | '}'))
}

fn value<'a>(args: &'a [Argument], name: &str) -> Result<&'a str, TemplateError> {
    args.iter()
        .find(|arg| arg.name == name)
        .and_then(|arg| arg.value.as_deref())
        .ok_or_else(|| TemplateError::Unknown(name.chars().take(64).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn args() -> Vec<Argument> {
        let arg = |name: &str, value: Option<&str>| Argument {
            name: name.to_owned(),
            value: value.map(str::to_owned),
        };
        vec![
            arg("PodIP", Some("10.0.0.7")),
            arg("PodContainer[0]", Some("app")),
            arg("service-name", Some("{{ args.PodIP }}")),
            arg("bare", None),
        ]
    }

    #[test]
    fn placeholders_become_values_as_they_are() {
        for (text, expect) in [
            ("http://{{ args.PodIP }}:9091", "http://10.0.0.7:9091"),
            ("{{args.PodIP}}{{   args.PodIP\t}}", "10.0.0.710.0.0.7"),
            ("{{ args.PodContainer[0] }}", "app"),
            ("{{ args.service-name }}", "{{ args.PodIP }}"),
            ("no placeholder }} { }", "no placeholder }} { }"),
            ("", ""),
        ] {
            assert_eq!(render(text, &args()).unwrap(), expect, "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_and_nothing_is_rendered() {
        for (text, expect) in [
            ("a{{ args.PodIP", "`{{` at byte 1 is never closed by `}}`"),
            ("{{ args.Nobody }}", "`args.Nobody` is not declared"),
            ("{{ args.bare }}", "`args.bare` is not declared"),
            ("{{ PodIP }}", "`{{ PodIP }}` is not valid"),
            ("{{}}", "is not valid"),
            ("{{ args. }}", "is not valid"),
            ("{{ args.a b }}", "is not valid"),
            ("{{ {{ args.PodIP }} }}", "is not valid"),
        ] {
            let error = render(text, &args()).unwrap_err().to_string();
            assert!(error.contains(expect), "{text} -> {error}");
        }
    }

    #[test]
    fn the_arguments_of_a_host_end_with_it() {
        for (url, expect) in [
            ("http://a/{{args.p}}", &[] as &[&str]),
            ("http://a:80?{{args.q}}", &[]),
            ("http://{{args.h}}:{{args.port}}/{{args.p}}", &["h", "port"]),
            ("{{args.s}}://a.{{args.d}}#{{args.p}}", &["s", "d"]),
            ("{{args.url}}", &["url"]),
            ("http:///{{args.h}}/{{args.p}}", &["h"]),
            ("http:/{{args.h}}", &["h"]),
            ("http:\\\\{{args.h}}\\{{args.p}}", &["h"]),
            ("http://u:{{args.pw}}@a/{{args.p}}", &["pw"]),
        ] {
            assert_eq!(of_host(url), expect, "{url}");
        }
    }

    #[test]
    fn what_comes_out_is_bounded() {
        let long = [Argument { name: "a".into(), value: Some("x".repeat(100_000)) }];
        assert_eq!(render(&"{{args.a}}".repeat(3), &long), Err(TemplateError::TooLong));
    }

    proptest! {
        #[test]
        fn a_text_without_placeholders_is_itself(text in "[^{]{0,64}") {
            prop_assert_eq!(render(&text, &[]).unwrap(), text);
        }

        #[test]
        fn any_text_is_rendered_whole_or_not_at_all(text in r"[{} a-z.\[\]]{0,40}") {
            if let Ok(rendered) = render(&text, &args()) {
                prop_assert!(!text.contains("{{") || rendered != text);
            }
        }
    }
}
