//! Expands `$(NAME)` in commands, arguments and environment values, as Kubernetes does.
//!
//! `$(NAME)` becomes the value, or stays unchanged if there is no such variable; `$$` becomes `$`; a `$` before
//! anything else, or an unclosed `$(`, stays unchanged. Inserted values are not expanded again.

use std::collections::HashMap;

use crate::api::manifest::EnvVar;

/// A container's variables, each expanded with those before it; the last one of the same name wins.
pub(super) fn variables(env: &[EnvVar]) -> Vec<(&str, String)> {
    let mut values = HashMap::new();
    let mut expanded = Vec::with_capacity(env.len());
    for variable in env {
        let value = expand(&variable.value, &values);
        values.insert(variable.name.as_str(), value.clone());
        expanded.push((variable.name.as_str(), value));
    }
    expanded
}

/// Expands the references in `text`.
pub(super) fn expand(text: &str, values: &HashMap<&str, String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(then) = after.strip_prefix('$') {
            out.push('$');
            rest = then;
        } else if let Some((name, then)) = after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            match values.get(name) {
                Some(value) => out.push_str(value),
                None => out.push_str(&rest[at..rest.len() - then.len()]),
            }
            rest = then;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_kubernetes_does() {
        let values = HashMap::from([("A", "1".to_owned()), ("B", "$(A)".to_owned()), ("E", String::new())]);
        for (text, expected) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(A)"),
            ("[$(E)]", "[]"),
            ("$(NONE)!", "$(NONE)!"),
            ("$()", "$()"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$", "$$"),
            ("$A ${A} $", "$A ${A} $"),
            ("$(A", "$(A"),
            ("é$(A)é", "é1é"),
            ("$(A)$", "1$"),
        ] {
            assert_eq!(expand(text, &values), expected, "{text}");
        }
    }

    #[test]
    fn variables_see_those_before_them() {
        let env: Vec<_> = [("A", "1"), ("B", "$(A)$(C)"), ("C", "3"), ("A", "$(A)2")]
            .map(|(name, value)| EnvVar { name: name.into(), value: value.into() })
            .into();
        let values: Vec<_> = variables(&env).into_iter().map(|(_, value)| value).collect();
        assert_eq!(values, ["1", "1$(C)", "3", "12"]);
    }
}
