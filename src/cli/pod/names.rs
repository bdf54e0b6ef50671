//! How a pod is written on the command line: `web`, `pod/web`, `pods/web` or `po/web`, as kubectl takes it.
//!
//! The namespace is never part of it; it comes from `-n` or the kubeconfig's context.

use std::fmt;
use std::str::FromStr;

use crate::api::image::ImageRef;
use crate::api::request::Target;

/// The name of a pod. Displays as `pod/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodName(pub(super) String);

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = match text.split_once('/') {
            None => text,
            Some(("pod" | "pods" | "po", name)) => name,
            Some((kind, _)) => {
                return Err(format!(
                    "`{kind}` is not understood: write pod/NAME, and the namespace after -n"
                ));
            }
        };
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let valid = (1..=253).contains(&name.len())
            && name.starts_with(edge)
            && name.ends_with(edge)
            && name.chars().all(|c| edge(c) || c == '-' || c == '.');
        if valid { Ok(Self(name.to_owned())) } else { Err(format!("`{name}` is not a pod's name")) }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod/{}", self.0)
    }
}

/// A positional argument of commands that take pods and images side by side: no pod's name holds a `=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `pod/web`.
    Pod(PodName),
    /// `app=repo/app:v2`.
    Image(Target),
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((name, image)) = text.split_once('=') else { return text.parse().map(Self::Pod) };
        ImageRef::parse(image).map_err(|error| error.to_string())?;
        Ok(Self::Image(Target { name: name.to_owned(), image: Some(image.to_owned()) }))
    }
}

/// The pods and the images among `words`, each in their order.
pub(super) fn sorted(words: Vec<Word>) -> (Vec<PodName>, Vec<Target>) {
    let (mut pods, mut images) = (Vec::new(), Vec::new());
    for word in words {
        match word {
            Word::Pod(pod) if pods.contains(&pod) => {}
            Word::Pod(pod) => pods.push(pod),
            Word::Image(image) => images.push(image),
        }
    }
    (pods, images)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_written_as_kubectl_takes_it() {
        for text in ["web.0", "pod/web.0", "pods/web.0", "po/web.0"] {
            assert_eq!(text.parse::<PodName>().unwrap().to_string(), "pod/web.0", "{text}");
        }
        for (text, says) in [
            ("deploy/web", "`deploy` is not understood"),
            ("default/web", "the namespace after -n"),
            ("pod/", "not a pod's name"),
            ("Web", "not a pod's name"),
            ("pod/a/b", "not a pod's name"),
            ("-web", "not a pod's name"),
        ] {
            assert!(text.parse::<PodName>().unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn pods_and_images_stand_side_by_side() {
        let words = ["pod/web", "app=host:5000/app:v2", "po/web-2", "web"].map(|word| word.parse().unwrap());
        let (pods, images) = sorted(words.into());
        assert_eq!(pods, [PodName("web".into()), PodName("web-2".into())]);
        assert_eq!(images, [Target { name: "app".into(), image: Some("host:5000/app:v2".into()) }]);
        assert!("app=Not An Image".parse::<Word>().is_err());
    }
}
