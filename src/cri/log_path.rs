//! Decides whether a container's log path is safe beside a kubelet, and names the log of a fence.
//!
//! A kubelet that collects a dead container removes what `Glob(log path + "*")` finds (`removeContainerLog` in
//! `pkg/kubelet/kuberuntime`). For a container without a log path these are the files of the kubelet's own working
//! directory, which is `/` on most nodes. A runtime reports a log path only if both the container's log path and its
//! sandbox's log directory are given (containerd, `container_create.go`).

use std::path::{Component, Path};

use crate::api::annotation;
use crate::cri::proto::v1;

/// Prefix of the name of a fence's log. A kubelet counts restarts by log files whose names begin with a number
/// (`calcRestartCountByLogDir` in `pkg/kubelet/kuberuntime`), so a fence's log is not counted.
const FENCE: &str = "inplace-fence-";
/// The same for the log of a standby.
const STANDBY: &str = "inplace-standby-";
const ENDING: &str = ".log";

/// The container must not be created beside a kubelet, because its log path is not its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "container {name} (attempt {attempt}) is not created: a kubelet that removes a container with the log path \
     {path:?} in the log folder {folder:?} deletes unrelated files"
)]
pub struct NoLogOfItsOwn {
    name: String,
    attempt: u32,
    path: String,
    folder: String,
}

/// Succeeds for a container with a log path of its own, and for any container in a sandbox that no kubelet manages.
pub fn check(config: &v1::ContainerConfig, sandbox: &v1::PodSandboxConfig) -> Result<(), NoLogOfItsOwn> {
    let has_kubelet = sandbox.annotations.contains_key(annotation::CONFIG_SOURCE);
    let metadata = config.metadata.clone().unwrap_or_default();
    if !has_kubelet || is_own(&config.log_path, metadata.attempt) && is_folder(&sandbox.log_directory) {
        return Ok(());
    }
    Err(NoLogOfItsOwn {
        name: metadata.name,
        attempt: metadata.attempt,
        path: config.log_path.clone(),
        folder: sandbox.log_directory.clone(),
    })
}

/// The log of the fence for `attempt`, in the same folder as the log `path` of the fenced container.
pub(super) fn of_fence(path: &str, attempt: u32) -> String {
    with_name(path, &format!("{FENCE}{attempt}{ENDING}"))
}

/// The log of the standby for `attempt`, in the same folder as the log `path` of its container.
pub(super) fn of_standby(path: &str, attempt: u32) -> String {
    with_name(path, &format!("{STANDBY}{attempt}{ENDING}"))
}

/// True for a log that is removed together with its container: that of a fence or of a standby.
pub fn is_temporary(path: &Path) -> bool {
    is_numbered(path, FENCE) || is_numbered(path, STANDBY)
}

/// True for the log of a fence.
fn is_fences(path: &Path) -> bool {
    is_numbered(path, FENCE)
}

fn is_numbered(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let number = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(ENDING));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The log of attempt `new`, where `path` is the log of attempt `old` or of its fence. Any other path stays
/// unchanged.
pub(super) fn next(path: &str, old: u32, new: u32) -> String {
    let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
    if is_fences(Path::new(path)) {
        return with_name(path, &format!("{new}{ENDING}"));
    }
    match file.strip_prefix(&old.to_string()) {
        Some(ending) if ending.is_empty() || ending.starts_with('.') => {
            with_name(path, &format!("{new}{ending}"))
        }
        _ => path.to_owned(),
    }
}

fn with_name(path: &str, name: &str) -> String {
    path.rsplit_once('/').map_or_else(|| name.to_owned(), |(folder, _)| format!("{folder}/{name}"))
}

/// Whether the path is relative, named after this attempt, and free of glob patterns that would match other files.
fn is_own(path: &str, attempt: u32) -> bool {
    let parts_are_names = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let file = path.rsplit_once('/').map_or(path, |(_, file)| file);
    let prefixes = ["", FENCE, STANDBY];
    let names = prefixes.map(|prefix| format!("{prefix}{attempt}{ENDING}"));
    parts_are_names && names.iter().any(|name| name == file) && has_no_pattern(path)
}

fn is_folder(path: &str) -> bool {
    let mut parts = Path::new(path).components();
    parts.next() == Some(Component::RootDir)
        && parts.next().is_some()
        && parts.all(|part| matches!(part, Component::Normal(_)))
        && has_no_pattern(path)
}

fn has_no_pattern(path: &str) -> bool {
    !path.contains(['*', '?', '[', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(path: &str) -> v1::ContainerConfig {
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "app".to_owned(), attempt: 4 }),
            log_path: path.to_owned(),
            ..v1::ContainerConfig::default()
        }
    }

    fn sandbox(folder: &str, source: Option<&str>) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            log_directory: folder.to_owned(),
            annotations: source
                .map(|source| (annotation::CONFIG_SOURCE.to_owned(), source.to_owned()))
                .into_iter()
                .collect(),
            ..v1::PodSandboxConfig::default()
        }
    }

    #[test]
    fn beside_a_kubelet_every_container_has_a_log_of_its_own() {
        let pods = "/var/log/pods/shop_web_6d1c";
        for (folder, path, accepted) in [
            (pods, "app/4.log", true),
            (pods, "4.log", true),
            (pods, "app/inplace-fence-4.log", true),
            (pods, "", false),
            (pods, "app/3.log", false),
            (pods, "app/inplace-fence-3.log", false),
            (pods, "app/", false),
            (pods, "/4.log", false),
            (pods, "../4.log", false),
            (pods, "app/../4.log", false),
            (pods, "*/4.log", false),
            (pods, "[ab]/4.log", false),
            (pods, "a?/4.log", false),
            ("", "app/4.log", false),
            ("/", "app/4.log", false),
            ("logs", "app/4.log", false),
            ("/var/log/../..", "app/4.log", false),
            ("/var/log/*", "app/4.log", false),
        ] {
            for source in ["api", "file", "http"] {
                let checked = check(&config(path), &sandbox(folder, Some(source)));
                assert_eq!(checked.is_ok(), accepted, "{folder:?} {path:?}: {checked:?}");
            }
            assert_eq!(check(&config(path), &sandbox(folder, None)), Ok(()), "{folder:?} {path:?}");
        }
    }

    #[test]
    fn the_log_is_named_after_the_attempt() {
        for (path, expected) in [
            ("app/3.log", "app/4.log"),
            ("3.log", "4.log"),
            ("/3.log", "/4.log"),
            ("a/b/3", "a/b/4"),
            ("app/inplace-fence-3.log", "app/4.log"),
            ("app/inplace-fence-5.log", "app/4.log"),
            ("app/inplace-fence-.log", "app/inplace-fence-.log"),
            ("app/30.log", "app/30.log"),
            ("app/2.log", "app/2.log"),
            ("app/x.log", "app/x.log"),
            ("3/app.log", "3/app.log"),
            ("", ""),
        ] {
            assert_eq!(next(path, 3, 4), expected);
        }
    }

    #[test]
    fn the_log_of_a_fence_is_beside_that_of_its_container_and_nobody_elses() {
        assert_eq!(of_fence("app/3.log", 5), "app/inplace-fence-5.log");
        assert_eq!(of_fence("3.log", 5), "inplace-fence-5.log");
        assert_eq!(of_fence("app/inplace-fence-4.log", 5), "app/inplace-fence-5.log");
        assert!(is_fences(Path::new("/var/log/pods/shop_web_6d1c/app/inplace-fence-5.log")));
        for other in
            ["app/5.log", "app/inplace-fence-.log", "app/inplace-fence-5.log/x", "inplace-fence-x.log", ""]
        {
            assert!(!is_fences(Path::new(other)), "{other}");
        }
    }
}
