//! Brings an image onto the node: checks the free disk space, pulls, and verifies that the pulled image is the
//! requested one and fits this machine.
//!
//! Must not touch a container.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use nix::unistd::syncfs;
use serde::Deserialize;

use crate::api::image::ImageRef;
use crate::cri::client::Client;
use crate::cri::error::Error;
use crate::cri::proto::v1;
use crate::failure::Class;
use crate::operation::effect::{EffectError, ImageChoice};
use crate::process::clock;
use crate::process::disk::Disk;

/// The disk space to require for an image, as a multiple of the compressed size of the image that runs now. The
/// compressed and the unpacked form side by side take about three times the compressed size; the new image is
/// assumed to be similar to the old one.
const UNPACKED: u64 = 3;
/// How long to wait for pulled data to reach the disk. After that the container is stopped all the same.
const FLUSH: Duration = Duration::from_secs(30);
/// Time limit for reading the free disk space.
const STAT_TIMEOUT: Duration = Duration::from_secs(5);
static STATS: LazyLock<Disk> = LazyLock::new(|| Disk::new(2));
/// A sync of a file system takes its full time even if its caller has stopped waiting, so at most one runs at a
/// time.
static SYNCS: LazyLock<Disk> = LazyLock::new(|| Disk::new(1));
/// The interval of progress reports.
const TICK: Duration = Duration::from_secs(1);

/// The image to pull.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// The image reference.
    pub(super) reference: &'a str,
    /// The image that runs now; its size serves as an estimate.
    pub(super) like: &'a str,
    /// Whether to ask the registry even if an image of that name is present.
    pub(super) anew: bool,
    /// The configuration of the sandbox that will use the image: a runtime may store images per runtime class.
    pub(super) sandbox: &'a v1::PodSandboxConfig,
    /// The credentials to try at the registry, in this order; if empty, the runtime uses its own.
    pub(super) credentials: &'a [v1::AuthConfig],
    /// Time limit of the pull.
    pub(super) limit: Duration,
    /// Bytes that must stay free by the estimate before the pull.
    pub(super) reserve: u64,
    /// The pull ends when fewer bytes are free. 0 for an operation, which needs the image.
    pub(super) floor: u64,
}

/// Returns the image if it is on the node and no registry has to be asked, so that the caller need not wait for a
/// pull permit.
///
/// # Errors
/// [`Class::Final`] when no repetition would help.
pub(super) async fn present(
    client: &Client,
    reference: &str,
    anew: bool,
) -> Result<Option<ImageChoice>, EffectError> {
    let final_ = |message: String| EffectError { class: Class::Final, message };
    let image = ImageRef::parse(reference).map_err(|error| final_(error.to_string()))?;
    match client.image(reference, true).await.map_err(EffectError::from)? {
        Some(present) if image.digest().is_some() || !(anew || moves(&image)) => {
            check(&image, present).map(Some)
        }
        _ => Ok(None),
    }
}

/// Verifies that `arrived` is the image that the name resolved to `before`, after that image had disappeared from
/// the node: a hook may have approved the earlier image, and containers may run it already.
///
/// # Errors
/// [`Class::Final`] when it is another image.
pub(super) fn same_as(
    before: Option<&ImageChoice>,
    arrived: ImageChoice,
) -> Result<ImageChoice, EffectError> {
    let Some(before) = before.filter(|before| before.id != arrived.id) else { return Ok(arrived) };
    let ImageChoice { reference, id, .. } = arrived;
    let message = format!(
        "{reference} resolved to {} before, which is no longer on the node, and resolves to {id} now",
        before.id
    );
    Err(EffectError { class: Class::Final, message })
}

/// Brings the image onto the node and returns its ID. Calls `progress` with one line per second.
///
/// # Errors
/// [`Class::Final`] when no repetition would help.
pub(super) async fn fetch(
    client: &Client,
    wanted: Wanted<'_>,
    progress: &(dyn Fn(String) + Send + Sync),
) -> Result<ImageChoice, EffectError> {
    let final_ = |message: String| EffectError { class: Class::Final, message };
    let image = ImageRef::parse(wanted.reference).map_err(|error| final_(error.to_string()))?;
    // Another pull may have brought the image meanwhile.
    if let Some(present) = present(client, wanted.reference, wanted.anew).await? {
        return Ok(present);
    }
    let disk = disk_of(client).await;
    if let Some(disk) = &disk {
        check_disk_space(client, &wanted, disk).await?;
    }
    let started = clock::now();
    let pull = pull(client, &wanted);
    tokio::pin!(pull);
    let mut ticks = tokio::time::interval(TICK);
    ticks.tick().await;
    loop {
        tokio::select! {
            done = &mut pull => {
                done.map_err(EffectError::from)?;
                break;
            }
            _ = ticks.tick() => {
                let seconds = clock::now().duration_since(started).as_secs();
                // The runtime does not report how much has arrived. Free space is only a hint, since other processes
                // write to the disk too.
                let left = match &disk {
                    Some(disk) => free(wanted.reference, disk).await,
                    None => None,
                };
                if let Some(left) = left.filter(|left| *left < wanted.floor) {
                    let free = left >> 20;
                    return Err(final_(format!("the image disk has only {free} MiB free during the pull")));
                }
                let left = left.map_or_else(String::new, |left| format!(", the disk has {} MiB free", left >> 20));
                progress(format!("pulling {image}: {seconds} s{left}"));
            }
        }
    }
    let arrived = client.image(wanted.reference, true).await.map_err(EffectError::from)?;
    if let Some(disk) = disk {
        progress(format!("waiting until {image} is written to disk"));
        let spent = Duration::try_from(clock::now().duration_since(started)).unwrap_or_default();
        come_to_rest(wanted.reference, disk, wanted.limit.saturating_sub(spent).min(FLUSH)).await;
    }
    match arrived {
        Some(present) => check(&image, present),
        None => Err(EffectError {
            class: Class::Refused,
            message: "the runtime reported a successful pull, but does not have the image".to_owned(),
        }),
    }
}

/// Tries each of the credentials until the registry accepts one.
async fn pull(client: &Client, wanted: &Wanted<'_>) -> Result<String, Error> {
    let sandbox = || Some(wanted.sandbox.clone());
    for credential in wanted.credentials {
        let auth = Some(credential.clone());
        match client.pull_as(auth, wanted.reference, sandbox(), wanted.limit).await {
            Err(error) if wants_credentials(&error.message) => {}
            done => return done,
        }
    }
    client.pull(wanted.reference, sandbox(), wanted.limit).await
}

/// Whether a registry asked for credentials, judged by the error text of the runtime: the HTTP codes 401 and 403,
/// and Docker's texts for them.
pub(super) fn wants_credentials(message: &str) -> bool {
    let words = [
        "401 Unauthorized",
        "403 Forbidden",
        "pull access denied",
        "insufficient_scope",
        "authorization failed",
    ];
    words.iter().any(|words| message.contains(words)) || message.contains("no basic auth credentials")
}

/// Flushes pending writes to the disk. The runtime syncs small files during stop and create, and would otherwise
/// wait for hundreds of megabytes there, while the container is down.
async fn come_to_rest(reference: &str, disk: PathBuf, limit: Duration) {
    let sync = move || File::open(&disk).map(syncfs);
    if SYNCS.run(reference, limit, sync).await.is_err() {
        tracing::warn!("the image disk was not flushed in time: the downtime may be longer");
    }
}

/// Kubernetes' rule for images without a pull policy: `latest` is pulled again, any other tag is used if it is
/// present.
fn moves(image: &ImageRef) -> bool {
    let after = &image.as_str()[image.repository().len()..];
    after.is_empty() || after == ":latest"
}

/// Verifies that the image has the requested digest and is built for this machine.
fn check(image: &ImageRef, present: v1::ImageStatusResponse) -> Result<ImageChoice, EffectError> {
    let final_ = |message: String| Err(EffectError { class: Class::Final, message });
    let Some(found) = present.image else {
        return final_(format!("the runtime does not have {image}"));
    };
    if let Some(digest) = image.digest()
        && !found.repo_digests.iter().any(|repo| repo.ends_with(&format!("@{digest}")))
        && found.id != digest
    {
        return final_(format!(
            "the runtime has {image} under another digest: {}",
            found.repo_digests.join(", ")
        ));
    }
    if let Some((system, machine)) = present.info.get("info").and_then(|info| platform(info)) {
        let (here_system, here_machine) = (std::env::consts::OS, go_arch(std::env::consts::ARCH));
        if (!system.is_empty() && system != here_system) || (!machine.is_empty() && machine != here_machine) {
            return final_(format!(
                "it is built for {system}/{machine}, this node is {here_system}/{here_machine}"
            ));
        }
    }
    Ok(ImageChoice { reference: image.to_string(), id: found.id, spec_hash: None })
}

/// The part of an image's verbose status that is read. The parser skips the rest without storing it: an image can have a
/// history of megabytes.
#[derive(Deserialize)]
struct Details {
    #[serde(rename = "imageSpec")]
    spec: Option<Spec>,
}

#[derive(Deserialize)]
struct Spec {
    os: Option<String>,
    architecture: Option<String>,
}

/// Operating system and architecture from the verbose status of an image, if the runtime reports them.
fn platform(info: &str) -> Option<(String, String)> {
    let Spec { os, architecture } = serde_json::from_str::<Details>(info).ok()?.spec?;
    Some((os.unwrap_or_default(), architecture.unwrap_or_default()))
}

/// Maps Rust's architecture name to Go's, which images use.
fn go_arch(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "powerpc64" => "ppc64le",
        other => other,
    }
}

/// The mount point of the runtime's image file system, if the runtime reports it.
async fn disk_of(client: &Client) -> Option<PathBuf> {
    let usage = client.images_fs().await.ok()?;
    let mountpoint = usage.into_iter().find_map(|usage| usage.fs_id)?.mountpoint;
    Some(PathBuf::from(mountpoint))
}

async fn free(reference: &str, disk: &Path) -> Option<u64> {
    let path = disk.to_owned();
    let observe = move || nix::sys::statvfs::statvfs(&path);
    let stat = STATS.run(reference, STAT_TIMEOUT, observe).await.ok()?.ok()?;
    Some(stat.blocks_available() * stat.fragment_size())
}

async fn check_disk_space(client: &Client, wanted: &Wanted<'_>, disk: &Path) -> Result<(), EffectError> {
    let Some(free) = free(wanted.reference, disk).await else {
        tracing::debug!(disk = %disk.display(), "the image disk is not visible here: its free space is not checked");
        return Ok(());
    };
    let like = client.image(wanted.like, false).await.map_err(EffectError::from)?;
    let packed = like.and_then(|like| like.image).map_or(0, |image| image.size);
    let needed = wanted.reserve.saturating_add(packed.saturating_mul(UNPACKED));
    if free >= needed {
        return Ok(());
    }
    Err(EffectError {
        class: Class::Final,
        message: format!(
            "the image disk {} has {} MiB free, {} MiB are needed: remove unused images or free some space",
            disk.display(),
            free >> 20,
            needed >> 20
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn present(digest: &str, machine: &str) -> v1::ImageStatusResponse {
        let image = v1::Image {
            id: "sha256:1".into(),
            repo_digests: vec![format!("repo/app@{digest}")],
            ..v1::Image::default()
        };
        let info = format!(r#"{{"imageSpec":{{"os":"linux","architecture":"{machine}"}}}}"#);
        v1::ImageStatusResponse { image: Some(image), info: [("info".to_owned(), info)].into() }
    }

    #[test]
    fn what_arrived_must_be_what_was_asked_for_and_fit_the_machine() {
        let here = go_arch(std::env::consts::ARCH);
        let (a, b) = (format!("sha256:{}", "a".repeat(64)), format!("sha256:{}", "b".repeat(64)));
        let pinned = ImageRef::parse(&format!("repo/app@{a}")).unwrap();
        assert_eq!(check(&pinned, present(&a, here)).unwrap().id, "sha256:1");
        assert!(check(&pinned, present(&b, here)).unwrap_err().message.contains("another digest"));
        assert!(check(&pinned, present(&a, "mips")).unwrap_err().message.contains("linux/mips"));
        assert!(check(&pinned, present(&a, "")).is_ok());
    }

    /// The nesting is deeper than a parser accepts that stores it.
    #[test]
    fn a_large_history_is_skipped() {
        let nested = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
        let history = format!("[{nested}{}]", ",{}".repeat(1_000_000));
        let info = |members: &str| format!(r#"{{"chainID":"a","imageSpec":{{{members}}}}}"#);
        let (os, arch) = (r#""os":"linux""#, r#""architecture":"mips""#);
        let large = info(&format!(r#"{os},"history":{history},{arch}"#));
        assert_eq!(platform(&large), Some(("linux".to_owned(), "mips".to_owned())));
        assert_eq!(platform(&info(os)), Some(("linux".to_owned(), String::new())));
        assert_eq!(platform("{}"), None);
    }

    #[test]
    fn only_latest_is_asked_for_again() {
        let image = |text| ImageRef::parse(text).unwrap();
        assert!(moves(&image("app")) && moves(&image("host:5000/app:latest")));
        assert!(!moves(&image("app:v1")) && !moves(&image(&format!("app@sha256:{}", "a".repeat(64)))));
    }
}
