//! The files on the node that belong to one container instance: its log, the link by which log shippers find the
//! log, and the file for its termination message.
//!
//! Names them only: `node` creates them.

use std::path::{Path, PathBuf};

use crate::api::pod_ref::PodRef;
use crate::cri::proto::v1;

/// The path of the termination message inside the container if the pod does not specify it.
pub(super) const DEFAULT_TERMINATION_LOG: &str = "/dev/termination-log";
/// The directory that log shippers read.
const LOG_LINKS: &str = "/var/log/containers";
/// The kubelet's maximum length of the name of such a link, without its extension.
const MAX_LINK: usize = 255 - ".log".len();

/// The file on the host that is mounted as a container's termination log, created by a kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TerminationLog {
    /// The file of the present container instance.
    pub old: PathBuf,
}

impl TerminationLog {
    /// Whether this process sees the directory of the file, under the path that the kubelet uses.
    pub fn is_visible(&self) -> bool {
        self.old.to_str().is_some() && self.old.parent().is_some_and(Path::is_dir)
    }

    /// Mounts `fresh` instead of the old file.
    pub fn replace_by(&self, fresh: &str, config: &mut v1::ContainerConfig) {
        let is_old = |mount: &&mut v1::Mount| Path::new(&mount.host_path) == self.old;
        for mount in config.mounts.iter_mut().filter(is_old) {
            fresh.clone_into(&mut mount.host_path);
        }
    }
}

/// The path for `attempt` in the directory of `old`. The name has eight hexadecimal digits, as with the kubelet, and
/// is always the same for the same attempt, so that a repetition leaves no second file.
pub fn fresh_termination_log(old: &Path, attempt: u32) -> PathBuf {
    let name = old.file_name().unwrap_or_default().as_encoded_bytes();
    // FNV-1a, 32 bits.
    let hash = name
        .iter()
        .chain(&attempt.to_be_bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    let fresh = old.with_file_name(format!("{hash:08x}"));
    if fresh == old { old.with_file_name(format!("{:08x}", hash.wrapping_add(1))) } else { fresh }
}

/// True for `.../pods/<uid>/containers/<name>/<8 hex digits>`.
pub(super) fn is_kubelets(path: &Path, uid: &str, name: &str) -> bool {
    let mut parts = path.iter().rev().map(|part| part.to_str().unwrap_or_default());
    let is_hex = |file: &str| file.len() == 8 && file.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.is_absolute()
        && parts.next().is_some_and(is_hex)
        && parts.next() == Some(name)
        && parts.next() == Some("containers")
        && parts.next() == Some(uid)
        && parts.next() == Some("pods")
}

/// The link by which log shippers find the log of a kubelet's container, and its target.
pub fn legacy_log_link(
    pod: &PodRef,
    name: &str,
    id: &str,
    log_dir: &str,
    log_path: &str,
) -> Option<(PathBuf, PathBuf)> {
    if log_dir.is_empty() || log_path.is_empty() {
        return None;
    }
    let mut link = format!("{}_{}_{name}-{id}", pod.name, pod.namespace);
    if link.len() > MAX_LINK {
        link = link.get(..MAX_LINK)?.to_owned();
    }
    Some((Path::new(LOG_LINKS).join(format!("{link}.log")), Path::new(log_dir).join(log_path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kubelets_file_is_the_kubelets() {
        let is = |path: &str| is_kubelets(Path::new(path), "6d1c", "app");
        assert!(is("/var/lib/kubelet/pods/6d1c/containers/app/0a1b2c3d"));
        assert!(!is("pods/6d1c/containers/app/0a1b2c3d"));
        assert!(!is("/var/lib/kubelet/pods/6d1c/containers/side/0a1b2c3d"));
        assert!(!is("/var/lib/kubelet/pods/ffff/containers/app/0a1b2c3d"));
        assert!(!is("/var/lib/kubelet/pods/6d1c/containers/app/message"));
        assert!(!is("/srv/0a1b2c3d"));
    }

    #[test]
    fn a_fresh_termination_log() {
        let mount = |path: &str| v1::Mount { host_path: path.to_owned(), ..Default::default() };
        let old = "/pods/u/containers/n/0a1b2c3d";
        let log = TerminationLog { old: PathBuf::from(old) };
        let fresh = fresh_termination_log(&log.old, 4);
        assert!(is_kubelets(&fresh, "u", "n"));
        assert_eq!(fresh, fresh_termination_log(&log.old, 4));
        assert_ne!(fresh, fresh_termination_log(&log.old, 5));
        let fresh = fresh.to_str().unwrap();
        let mut config =
            v1::ContainerConfig { mounts: vec![mount("/data"), mount(old)], ..Default::default() };
        log.replace_by(fresh, &mut config);
        assert_eq!(config.mounts, [mount("/data"), mount(fresh)]);
        assert!(!log.is_visible());
    }

    #[test]
    fn the_link_for_log_shippers() {
        let pod = PodRef { namespace: "shop".to_owned(), name: "web-0".to_owned(), uid: "6d1c".to_owned() };
        let (link, target) = legacy_log_link(&pod, "app", "4f5c", "/var/log/pods/x", "app/1.log").unwrap();
        assert_eq!(link, Path::new("/var/log/containers/web-0_shop_app-4f5c.log"));
        assert_eq!(target, Path::new("/var/log/pods/x/app/1.log"));
        assert_eq!(legacy_log_link(&pod, "app", "4f5c", "", "app/1.log"), None);
        let (link, _) = legacy_log_link(&pod, &"n".repeat(300), "4f5c", "/l", "0.log").unwrap();
        assert_eq!(link.file_name().unwrap().len(), 255);
    }
}
