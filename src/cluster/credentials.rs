//! Reads registry credentials from the pull secrets of a pod, and matches them to images as the kubelet does.
//!
//! Rules: pkg/credentialprovider (`keyring.go`, `config.go`). Must not reveal a password: no content of a secret
//! may appear in an error, a log or a `Debug` output.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;

/// Keys of the two kinds of secrets (`kubernetes.io/dockerconfigjson`, `kubernetes.io/dockercfg`).
const CONFIG_JSON: &str = ".dockerconfigjson";
const CONFIG: &str = ".dockercfg";
/// The default registry, as image names and as docker's configuration spell it.
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_REGISTRY_INDEX: &str = "index.docker.io";
/// A longer scope matches no image: a name of a registry and of a repository is shorter.
const LONGEST_SCOPE: usize = 512;

/// A user name and a password for a registry or a part of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// `host[:port][/path]`; parts of the host may be patterns.
    scope: String,
    /// The user name.
    pub username: String,
    /// The password. Passed to the runtime only.
    pub password: String,
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl Credential {
    /// The images that the credential is for: `host[:port][/path]`.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    fn new(place: &str, username: String, password: String) -> Self {
        Self { scope: scope(place), username, password }
    }
}

/// The credentials that match `image`, in the order in which to try them. The credentials of the default registry's
/// index are used only if nothing else matches.
pub fn for_image<'a>(credentials: &'a [Credential], image: &str) -> Vec<&'a Credential> {
    let repository = repository(image);
    let fitting: Vec<_> = credentials.iter().filter(|one| fits(&one.scope, &repository)).collect();
    if !fitting.is_empty() || !repository.starts_with("docker.io/") {
        return fitting;
    }
    credentials.iter().filter(|one| one.scope == DEFAULT_REGISTRY_INDEX).collect()
}

/// Sorts the credentials: the more specific scopes come first.
pub(super) fn ordered(mut credentials: Vec<Credential>) -> Vec<Credential> {
    credentials.sort_by(|one, other| Reverse(&one.scope).cmp(&Reverse(&other.scope)));
    credentials
}

/// The credentials in a secret; none if it is of another kind or cannot be parsed.
pub(super) fn of(secret: &Secret) -> Vec<Credential> {
    let bytes =
        |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice());
    let entries = if let Some(bytes) = bytes(CONFIG_JSON) {
        serde_json::from_slice::<ConfigJson>(bytes).map(|config| config.auths)
    } else if let Some(bytes) = bytes(CONFIG) {
        serde_json::from_slice(bytes)
    } else {
        return Vec::new();
    };
    let entries: std::collections::BTreeMap<String, Entry> = entries.unwrap_or_default();
    entries.into_iter().filter_map(|(place, entry)| entry.credential(&place)).collect()
}

#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: std::collections::BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    /// User name and password in one base64 value; takes precedence over the other two fields.
    #[serde(default)]
    auth: String,
}

impl Entry {
    fn credential(self, place: &str) -> Option<Credential> {
        let (username, password) = if self.auth.trim().is_empty() {
            (self.username, self.password)
        } else {
            let text = String::from_utf8(decoded(self.auth.trim())?).ok()?;
            let (username, password) = text.split_once(':')?;
            (username.to_owned(), password.to_owned())
        };
        (!username.is_empty() || !password.is_empty()).then(|| Credential::new(place, username, password))
    }
}

/// Decodes base64 with or without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let bare = text.trim_end_matches('=');
    let padded = format!("{bare}{}", "=".repeat((4 - bare.len() % 4) % 4));
    let bytes: k8s_openapi::ByteString = serde_json::from_value(padded.into()).ok()?;
    Some(bytes.0)
}

/// Normalizes a registry: `https://host/v1/path` becomes `host/path`.
fn scope(place: &str) -> String {
    let bare = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(place);
    let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
    let path = format!("/{path}");
    let path = ["/v1/", "/v2/"].iter().find_map(|version| path.strip_prefix(version)).unwrap_or(&path[1..]);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// The image without tag and digest, with its registry: `nginx:1` becomes `docker.io/library/nginx`.
fn repository(image: &str) -> String {
    let named = image.split_once('@').map_or(image, |(named, _)| named);
    let last = named.rfind('/').map_or(0, |slash| slash + 1);
    let named = named[last..].find(':').map_or(named, |colon| &named[..last + colon]);
    match named.split_once('/') {
        Some((DEFAULT_REGISTRY | DEFAULT_REGISTRY_INDEX, path)) if path.contains('/') => {
            format!("{DEFAULT_REGISTRY}/{path}")
        }
        Some((DEFAULT_REGISTRY | DEFAULT_REGISTRY_INDEX, path)) => {
            format!("{DEFAULT_REGISTRY}/library/{path}")
        }
        Some((host, _)) if host == "localhost" || host.contains(['.', ':']) => named.to_owned(),
        Some(_) => format!("{DEFAULT_REGISTRY}/{named}"),
        None => format!("{DEFAULT_REGISTRY}/library/{named}"),
    }
}

/// True if the ports are equal, the hosts have the same number of parts and each part matches its pattern, and the
/// path of `scope` is a prefix of the path of `repository`.
fn fits(scope: &str, repository: &str) -> bool {
    let (wanted_host, wanted_path) = scope.split_once('/').unwrap_or((scope, ""));
    let (host, path) = repository.split_once('/').unwrap_or((repository, ""));
    let (wanted_host, wanted_port) = wanted_host.rsplit_once(':').unwrap_or((wanted_host, ""));
    let (host, port) = host.rsplit_once(':').unwrap_or((host, ""));
    let parts = || wanted_host.split('.').zip(host.split('.'));
    scope.len() <= LONGEST_SCOPE
        && wanted_port == port
        && wanted_host.split('.').count() == host.split('.').count()
        && parts().all(|(pattern, part)| matches(pattern.as_bytes(), part.as_bytes()))
        && path.starts_with(wanted_path)
}

/// Matches a pattern: `*` is any text, `?` any byte. Only the last `*` is tried with a longer text, because an earlier
/// one has the shortest text that fits: the time is at most the product of the two lengths.
fn matches(mut pattern: &[u8], mut text: &[u8]) -> bool {
    // What follows the last `*`, and the text from which that is tried next.
    let mut last: Option<(&[u8], &[u8])> = None;
    loop {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => {
                pattern = rest;
                last = Some((rest, text));
            }
            ([], []) => return true,
            ([letter, rest @ ..], [other, shorter @ ..]) if *letter == b'?' || letter == other => {
                (pattern, text) = (rest, shorter);
            }
            _ => {
                let Some((rest, [_, shorter @ ..])) = last else { return false };
                (pattern, text) = (rest, shorter);
                last = Some((rest, shorter));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scopes(places: &[&str], image: &str) -> Vec<String> {
        let all = places.iter().map(|place| Credential::new(place, "u".into(), "p".into())).collect();
        for_image(&ordered(all), image).iter().map(|one| one.scope().to_owned()).collect()
    }

    #[test]
    fn they_match_as_the_kubelets_do() {
        for (place, image, fitting) in [
            ("registry.example", "registry.example/app:v1", true),
            ("https://registry.example", "registry.example/app", true),
            ("https://registry.example/v1/", "registry.example/app", true),
            ("https://registry.example/v2/team", "registry.example/team/app", true),
            ("registry.example/team", "registry.example/team/app@sha256:00", true),
            ("registry.example/team", "registry.example/other/app", false),
            ("registry.example:5000", "registry.example:5000/app", true),
            ("registry.example:5000", "registry.example/app", false),
            ("registry.example", "registry.example:5000/app", false),
            ("*.example", "registry.example/app", true),
            ("*.example", "a.registry.example/app", false),
            ("*.*.example", "a.registry.example/app", true),
            ("reg*.example", "registry.example/app", true),
            ("reg?stry.example", "registry.example/app", true),
            ("reg?try.example", "registry.example/app", false),
            ("*.example:5000", "registry.example:5000/app:v1", true),
            ("127.0.0.1:5000", "127.0.0.1:5000/app:v1", true),
            ("localhost:5000/team", "localhost:5000/team/app:v1", true),
            ("https://index.docker.io/v1/", "nginx", true),
            ("https://index.docker.io/v1/", "team/app:v1", true),
            ("https://index.docker.io/v1/", "docker.io/team/app:v1", true),
            ("https://index.docker.io/v1/", "index.docker.io/team/app:v1", true),
            ("https://index.docker.io/v1/", "registry.example/app", false),
            ("docker.io", "nginx:1.25", true),
            ("docker.io/team", "team/app", true),
            ("docker.io/team", "nginx", false),
        ] {
            assert_eq!(!scopes(&[place], image).is_empty(), fitting, "{place} for {image}");
        }
    }

    /// With a step for each division of the text among the stars, this test takes years. It asserts no time: it only has
    /// to end.
    #[test]
    fn a_pattern_of_many_stars_is_matched_soon() {
        let stars = format!("{}x.b", "*a".repeat(12) + "*");
        let host = "a".repeat(200);
        assert!(scopes(&[&stars], &format!("{host}.b/app")).is_empty());
        assert_eq!(scopes(&[&stars], &format!("{host}x.b/app")), [stars.as_str()]);
        for (pattern, text, fitting) in [
            ("*", "", true),
            ("**", "a", true),
            ("", "a", false),
            ("a*", "", false),
            ("*ab", "aab", true),
            ("a*b*c", "a-b-b-c-c", true),
            ("a*b?c", "abbc-bxcd", false),
            ("*?", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), fitting, "{pattern} {text}");
        }
    }

    #[test]
    fn a_scope_that_is_longer_than_a_name_matches_nothing() {
        let scope = |length: usize| format!("{}.example", "*".repeat(length - ".example".len()));
        assert!(!scopes(&[&scope(512)], "registry.example/app").is_empty());
        assert!(scopes(&[&scope(513)], "registry.example/app").is_empty());
    }

    #[test]
    fn the_more_particular_is_tried_first_and_the_index_last() {
        let places = ["registry.example", "registry.example/team/app", "registry.example/team", "*.example"];
        assert_eq!(
            scopes(&places, "registry.example/team/app:v1"),
            ["registry.example/team/app", "registry.example/team", "registry.example", "*.example"]
        );
        assert_eq!(scopes(&["https://index.docker.io/v1/", "docker.io"], "nginx"), ["docker.io"]);
    }

    #[test]
    fn entries_of_every_spelling_are_read_and_none_shows() {
        let secret = |key: &str, text: &str| Secret {
            data: Some([(key.to_owned(), k8s_openapi::ByteString(text.as_bytes().to_vec()))].into()),
            ..Default::default()
        };
        for (key, text, expected) in [
            (CONFIG_JSON, r#"{"auths":{"r.example":{"username":"a","password":"b"}}}"#, Some(("a", "b"))),
            (CONFIG_JSON, r#"{"auths":{"r.example":{"auth":"YTpiOmM="}}}"#, Some(("a", "b:c"))),
            (
                CONFIG_JSON,
                r#"{"auths":{"r.example":{"auth":" YTpiOmM ","username":"x"}}}"#,
                Some(("a", "b:c")),
            ),
            (CONFIG_JSON, r#"{"auths":{"r.example":{"email":"me"}},"credsStore":"x"}"#, None),
            (CONFIG_JSON, r#"{"auths":{"r.example":{"auth":"!!!"}}}"#, None),
            (CONFIG_JSON, r#"{"auths":{"r.example":{"auth":"bm9jb2xvbg=="}}}"#, None),
            (CONFIG_JSON, "{}", None),
            (CONFIG_JSON, "no json", None),
            (CONFIG, r#"{"r.example":{"username":"a","password":"b","email":"me"}}"#, Some(("a", "b"))),
            ("token", r#"{"auths":{"r.example":{"username":"a","password":"b"}}}"#, None),
        ] {
            let found = of(&secret(key, text));
            let pairs: Vec<_> =
                found.iter().map(|one| (one.username.as_str(), one.password.as_str())).collect();
            assert_eq!(pairs, expected.into_iter().collect::<Vec<_>>(), "{key}: {text}");
            assert!(!format!("{found:?}").contains("b:c"));
        }
    }
}
