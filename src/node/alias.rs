//! Finds another name of the running image: a digest if the pod's spec names a tag, a tag if it names a digest. If its
//! kubelet asks the registry before each start, where a tag may refer to another image by now, the other name of a digest is
//! that digest with a tag, which a registry ignores, or without one.
//!
//! An alias is returned only if the runtime itself resolves both names to the same image ID. Nothing is pulled.

use crate::api::image::ImageRef;
use crate::cri::client::Client;
use crate::cri::error::Error;
use crate::cri::proto::v1;

/// Returns another reference to `image`, in the repository that `declared` names. `asks_registry`: the kubelet does, before
/// each start.
pub(super) async fn find(
    client: &Client,
    declared: &str,
    asks_registry: bool,
    image: &v1::Image,
) -> Result<Option<String>, Error> {
    for candidate in candidates(declared, asks_registry, image) {
        if is(client, &candidate, image).await? {
            return Ok(Some(candidate));
        }
    }
    Ok(None)
}

/// Whether the runtime resolves `name` to the image ID of `image`.
pub(super) async fn is(client: &Client, name: &str, image: &v1::Image) -> Result<bool, Error> {
    let named = client.image(name, false).await?.and_then(|answer| answer.image);
    Ok(named.is_some_and(|named| named.id == image.id))
}

/// Candidate references to `image` other than `declared`, spelled with the repository of `declared`. A kubelet that
/// records which pods may use an image compares this spelling.
fn candidates(declared: &str, asks_registry: bool, image: &v1::Image) -> Vec<String> {
    let Ok(declared) = ImageRef::parse(declared) else { return Vec::new() };
    let (repository, known_as) = (declared.repository(), declared.full_repository());
    let of_repository = |name: &String| {
        let parsed = ImageRef::parse(name).ok()?;
        let rest = name.strip_prefix(parsed.repository())?.to_owned();
        (parsed.full_repository() == known_as).then(|| format!("{repository}{rest}"))
    };
    let known = |names: &[String]| names.iter().filter_map(of_repository).collect::<Vec<_>>();
    let names = match declared.digest() {
        None => known(&image.repo_digests),
        Some(_) if !asks_registry => known(&image.repo_tags),
        // A tag that the node has is the one that people know. It may be gone, and any other is right as well.
        Some(digest) => {
            let has_tag = declared.as_str() != format!("{repository}@{digest}");
            let tags = if has_tag { Vec::new() } else { known(&image.repo_tags) };
            let tagged = tags.into_iter().map(|name| format!("{name}@{digest}"));
            tagged.chain(declared.respelled()).collect()
        }
    };
    names.into_iter().filter(|name| name != declared.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_the_same_repository_is_spelled_as_the_pod_spells_it() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let image = v1::Image {
            repo_tags: vec!["docker.io/library/app:v1".into(), "quay.io/other/app:v1".into()],
            repo_digests: vec![
                format!("quay.io/other/app@{digest}"),
                format!("docker.io/library/app@{digest}"),
            ],
            ..v1::Image::default()
        };
        for (declared, found) in [
            ("app:v1".to_owned(), vec![format!("app@{digest}")]),
            ("docker.io/library/app:v1".to_owned(), vec![format!("docker.io/library/app@{digest}")]),
            (format!("app@{digest}"), vec!["app:v1".to_owned()]),
            ("quay.io/other/app".to_owned(), vec![format!("quay.io/other/app@{digest}")]),
            ("localhost/app:v1".to_owned(), vec![]),
        ] {
            assert_eq!(candidates(&declared, false, &image), found, "{declared}");
        }
        let pinned = format!("app:v1@{digest}");
        for (declared, found) in [
            ("app:v1".to_owned(), vec![format!("app@{digest}")]),
            (format!("app@{digest}"), vec![pinned.clone(), format!("app:latest@{digest}")]),
            (pinned, vec![format!("app@{digest}")]),
        ] {
            assert_eq!(candidates(&declared, true, &image), found, "{declared}, and the registry is asked");
        }
    }
}
