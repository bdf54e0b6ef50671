//! Parses and checks image references: `[host/]path[:tag][@digest]`, before they are passed to a runtime.
//!
//! Accepts the reference grammar of container registries. Must not resolve a reference.

use std::fmt;

/// Longest reference accepted, in bytes.
const MAX_LENGTH: usize = 512;

/// A valid image reference. Its `Display` is the original text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRef {
    text: String,
    repository: usize,
    digest: Option<usize>,
}

/// Why a text is not an image reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImage {
    /// The text is empty.
    #[error("the image is empty")]
    Empty,
    /// More than 512 bytes.
    #[error("the image reference is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// A part does not follow the grammar.
    #[error("`{text}` is not an image reference: {what}")]
    Malformed {
        /// The whole text.
        text: String,
        /// The invalid part, and what is valid there.
        what: &'static str,
    },
}

impl ImageRef {
    /// Parses `text`.
    pub fn parse(text: &str) -> Result<Self, InvalidImage> {
        if text.is_empty() {
            return Err(InvalidImage::Empty);
        }
        if text.len() > MAX_LENGTH {
            return Err(InvalidImage::TooLong);
        }
        let wrong = |what| InvalidImage::Malformed { text: text.to_owned(), what };
        let (named, digest) = match text.split_once('@') {
            Some((named, digest)) => (named, Some(digest)),
            None => (text, None),
        };
        if let Some(digest) = digest {
            check_digest(digest).map_err(wrong)?;
        }
        let last = named.rfind('/').map_or(0, |slash| slash + 1);
        let (repository, tag) = match named[last..].find(':') {
            Some(colon) => (&named[..last + colon], Some(&named[last + colon + 1..])),
            None => (named, None),
        };
        if let Some(tag) = tag {
            let first_ok = tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
            let rest_ok = tag.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
            if !first_ok || !rest_ok || tag.len() > 128 {
                return Err(wrong(
                    "the tag after `:` may hold letters, digits, `_`, `.` and `-`, at most 128",
                ));
            }
        }
        check_repository(repository).map_err(wrong)?;
        Ok(Self {
            text: text.to_owned(),
            repository: repository.len(),
            digest: digest.map(|digest| text.len() - digest.len()),
        })
    }

    /// The reference without tag and digest.
    pub fn repository(&self) -> &str {
        &self.text[..self.repository]
    }

    /// The digest, `sha256:...`, if the reference has one.
    pub fn digest(&self) -> Option<&str> {
        self.digest.map(|at| &self.text[at..])
    }

    /// The repository with the registry and the folder that a short name of Docker Hub omits.
    pub fn full_repository(&self) -> String {
        let repository = self.repository();
        match repository.split_once('/') {
            None => format!("docker.io/library/{repository}"),
            Some((first, _)) if is_host(first) => repository.to_owned(),
            Some(_) => format!("docker.io/{repository}"),
        }
    }

    /// Another spelling of a reference with a digest: without its tag, or with the tag `latest` if it has none. Registries and
    /// runtimes ignore a tag beside a digest.
    pub fn respelled(&self) -> Option<String> {
        let (repository, digest) = (self.repository(), self.digest()?);
        let bare = format!("{repository}@{digest}");
        Some(if self.text == bare { format!("{repository}:latest@{digest}") } else { bare })
    }

    /// The reference as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// True if `text` is a reference without a digest: the image that it refers to may change.
pub fn may_move(text: &str) -> bool {
    ImageRef::parse(text).is_ok_and(|image| image.digest().is_none())
}

fn check_digest(digest: &str) -> Result<(), &'static str> {
    let (algorithm, hex) =
        digest.split_once(':').ok_or("the digest after `@` is `sha256:` and 64 hex digits")?;
    let length = match algorithm {
        "sha256" => 64,
        "sha512" => 128,
        _ => return Err("the digest algorithm is sha256 or sha512"),
    };
    if hex.len() == length && hex.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')) {
        Ok(())
    } else {
        Err("the digest has the wrong length or is not lower-case hex")
    }
}

fn check_repository(repository: &str) -> Result<(), &'static str> {
    let (host, path) = match repository.split_once('/') {
        Some((first, rest)) if is_host(first) => (Some(first), rest),
        _ => (None, repository),
    };
    if let Some(host) = host {
        let allowed = |c: char| c.is_ascii_alphanumeric() || ".-:[]".contains(c);
        if host.is_empty() || !host.chars().all(allowed) {
            return Err("the registry host holds characters that no host name has");
        }
    }
    if path.is_empty() {
        return Err("the repository is missing");
    }
    for part in path.split('/') {
        let edges = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let inner = |c: char| edges(c) || "._-".contains(c);
        if part.is_empty() || !part.starts_with(edges) || !part.ends_with(edges) || !part.chars().all(inner) {
            return Err(
                "each part of the repository is lower-case letters and digits, with `.`, `_` or `-` between them",
            );
        }
    }
    Ok(())
}

/// The first part is a host if it cannot be part of a repository of the default registry.
fn is_host(first: &str) -> bool {
    first == "localhost" || first.contains(['.', ':']) || first.chars().any(|c| c.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_split_into_repository_and_digest() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, repository, has_digest) in [
            ("nginx".to_owned(), "nginx", false),
            ("nginx:1.25".to_owned(), "nginx", false),
            ("127.0.0.1:5000/app:v1".to_owned(), "127.0.0.1:5000/app", false),
            ("127.0.0.1:5000/app".to_owned(), "127.0.0.1:5000/app", false),
            ("localhost/team/app_x-y.z:V1".to_owned(), "localhost/team/app_x-y.z", false),
            (format!("repo/app@{digest}"), "repo/app", true),
            (format!("repo/app:v1@{digest}"), "repo/app", true),
        ] {
            let image = ImageRef::parse(&text).unwrap();
            assert_eq!(image.repository(), repository);
            assert_eq!(image.digest(), has_digest.then_some(digest.as_str()), "{text}");
            assert_eq!(image.to_string(), text);
        }
    }

    #[test]
    fn a_reference_with_a_digest_has_another_spelling_and_one_without_may_move() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let spelled = |rest: &str| format!("repo/app{rest}@{digest}");
        for (text, respelled) in [
            (spelled(""), Some(spelled(":latest"))),
            (spelled(":v1"), Some(spelled(""))),
            ("repo/app:v1".to_owned(), None),
        ] {
            assert_eq!(may_move(&text), respelled.is_none(), "{text}");
            assert_eq!(ImageRef::parse(&text).unwrap().respelled(), respelled, "{text}");
        }
    }

    #[test]
    fn a_short_name_is_one_of_docker_hub() {
        for (text, full) in [
            ("app:v1", "docker.io/library/app"),
            ("team/app", "docker.io/team/app"),
            ("docker.io/library/app:v1", "docker.io/library/app"),
            ("r:5000/app", "r:5000/app"),
            ("localhost/app", "localhost/app"),
        ] {
            assert_eq!(ImageRef::parse(text).unwrap().full_repository(), full, "{text}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        let long = "a".repeat(513);
        for text in [
            "",
            " ",
            "app:",
            "app:-x",
            "App",
            "a//b",
            "/a",
            "a/",
            "app@sha256:abc",
            "app@md5:abc",
            "app@",
            "a b",
            "app:v1 ",
            "-app",
            "http://x/y",
            "host:5000/",
            &long,
            "app:v1:v2",
        ] {
            assert!(ImageRef::parse(text).is_err(), "{text:?}");
        }
    }
}
