//! Images: their names, and the behaviour of the processes that run from them.

use std::time::Duration;

use tonic::{Code, Status};

use super::model::Model;

/// An image, on the node or in a registry.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// The image ID, `sha256:...`.
    pub(crate) id: String,
    pub(crate) repo_tags: Vec<String>,
    pub(crate) repo_digests: Vec<String>,
    pub(crate) size: u64,
    pub(crate) architecture: String,
    pub(crate) env: Vec<String>,
    /// The user that it names: a number or else a name.
    pub(crate) uid: Option<i64>,
    pub(crate) username: String,
    /// True if the image is on the node. Otherwise it can be pulled.
    pub(crate) present: bool,
    /// If set, a pull fails with this error.
    pub(crate) pull_fails: Option<(Code, String)>,
    /// If set, the creation of a container fails with this message.
    pub(crate) refuses_create: Option<String>,
    /// If set, the start of a container fails with this message.
    pub(crate) refuses_start: Option<String>,
    /// If set, the process exits by itself this long after its start, with this exit code.
    pub(crate) dies_after: Option<(Duration, i32)>,
    /// If true, the process ignores the stop signal.
    pub(crate) ignores_stop: bool,
    /// How long the process takes to exit after the stop signal; `stop_code` is its exit code.
    pub(crate) stop_takes: Duration,
    pub(crate) stop_code: i32,
}

impl Image {
    fn new(reference: &str) -> Self {
        let name = normal(reference);
        let repository = repository(&name);
        let content = digits(&name);
        let (repo_tags, digest) = match name.split_once('@') {
            Some((_, digest)) => (Vec::new(), digest.to_owned()),
            None => (vec![name.clone()], format!("sha256:{}", digits(&content))),
        };
        Self {
            id: format!("sha256:{content}"),
            repo_tags,
            repo_digests: vec![format!("{repository}@{digest}")],
            size: 50_000_000,
            architecture: match std::env::consts::ARCH {
                "x86_64" => "amd64",
                "aarch64" => "arm64",
                other => other,
            }
            .to_owned(),
            env: vec!["PATH=/usr/local/bin:/usr/bin:/bin".to_owned()],
            uid: None,
            username: String::new(),
            present: true,
            pull_fails: None,
            refuses_create: None,
            refuses_start: None,
            dies_after: None,
            ignores_stop: false,
            stop_takes: Duration::ZERO,
            stop_code: 143,
        }
    }

    /// Whether `reference` names this image: by ID, tag or digest, in full or abbreviated form.
    pub(super) fn is(&self, reference: &str) -> bool {
        let name = normal(reference);
        self.id == reference
            || self.id.strip_prefix("sha256:") == Some(reference)
            || self.repo_tags.contains(&name)
            || self.repo_digests.contains(&name)
    }

    /// Adds another tag to the same content.
    pub(crate) fn tag(&mut self, reference: &str) -> &mut Self {
        self.repo_tags.push(normal(reference));
        self
    }

    /// The reference by digest.
    pub(crate) fn digest(&self) -> &str {
        self.repo_digests.first().map_or("", String::as_str)
    }
}

impl Model {
    /// The image of that name; if it is unknown, it is created on the node.
    pub(crate) fn image(&mut self, reference: &str) -> &mut Image {
        let assert_call = self.images.iter().position(|image| image.is(reference));
        let index = assert_call.unwrap_or_else(|| {
            self.images.push(Image::new(reference));
            self.images.len() - 1
        });
        &mut self.images[index]
    }

    /// Same as [`Self::image`], but the image is not on the node and has to be pulled.
    pub(crate) fn remote_image(&mut self, reference: &str) -> &mut Image {
        let image = self.image(reference);
        image.present = false;
        image
    }

    /// The image, if it is on the node.
    pub(crate) fn local_image(&self, reference: &str) -> Option<&Image> {
        self.images.iter().find(|image| image.present && image.is(reference))
    }

    /// Pulls an image as a caller does. Returns its ID.
    pub(crate) fn pull(&mut self, reference: &str) -> Result<String, Status> {
        let Some(image) = self.images.iter_mut().find(|image| image.is(reference)) else {
            let name = normal(reference);
            return Err(Status::not_found(format!(
                "failed to pull and unpack image {name:?}: failed to resolve reference {name:?}: {name}: not found"
            )));
        };
        if let Some((code, message)) = &image.pull_fails {
            return Err(Status::new(*code, message.clone()));
        }
        image.present = true;
        let id = image.id.clone();
        self.history.push(format!("pulled {reference}"));
        Ok(id)
    }
}

/// The full reference as containerd prints it: host, repository, and tag or digest.
fn normal(reference: &str) -> String {
    if reference.starts_with("sha256:") {
        return reference.to_owned();
    }
    let repository = repository(reference);
    let (first, below) = repository.split_once('/').unwrap_or(("", repository));
    let host = first.contains(['.', ':']) || first == "localhost";
    let full = match (host, first.is_empty()) {
        (true, _) => repository.to_owned(),
        (false, true) => format!("docker.io/library/{below}"),
        (false, false) => format!("docker.io/{repository}"),
    };
    // The tag of `name:tag@digest` is dropped.
    match (reference.split_once('@'), &reference[repository.len()..]) {
        (Some((_, digest)), _) => format!("{full}@{digest}"),
        (None, "") => format!("{full}:latest"),
        (None, tag) => format!("{full}{tag}"),
    }
}

/// The reference without tag and digest.
fn repository(reference: &str) -> &str {
    let name = reference.split_once('@').map_or(reference, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// 64 hexadecimal digits derived from `text` (FNV-1a, four times).
pub(super) fn digits(text: &str) -> String {
    let hash = |salt: u8| {
        std::iter::once(salt)
            .chain(text.bytes())
            .chain([salt])
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
    };
    format!("{:016x}{:016x}{:016x}{:016x}", hash(0), hash(1), hash(2), hash(3))
}
