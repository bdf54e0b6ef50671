//! The folder of Pod manifests and hooks: what is wished in it now, by which templates, and a hint when that may have changed.
//!
//! The folder is read again after every hint and every few seconds anyway: a hint may be lost. A file that cannot be
//! read keeps the wishes it had, so that a half-written one withdraws nothing.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::Notify;

use crate::agent::request_source::{Key, PodRequest};
use crate::api::hook_manifest;
use crate::api::hook_template::{HookTemplate, HookTemplateSpec};
use crate::api::manifest::PodEntry;
use crate::api::request::Request;
use crate::process::clock;

/// How often the folder is read without a hint.
const RESCAN: Duration = Duration::from_secs(10);
/// How old a change has to be before its stamp is trusted.
const SETTLES: SignedDuration = SignedDuration::from_secs(1);
/// Larger files are no manifests.
const MAX_FILE: u64 = 1 << 20;

/// The folder as it was read last.
#[derive(Debug)]
pub(super) struct PodsDir {
    folder: PathBuf,
    hints: Arc<Notify>,
    files: HashMap<PathBuf, Known>,
}

/// What is known of one file.
#[derive(Debug)]
struct Known {
    stamp: Stamp,
    /// False when the file was so young that it may have been changed again without another stamp.
    settled: bool,
    requests: Vec<PodEntry>,
    templates: Vec<HookTemplate>,
    problem: Option<String>,
}

/// What tells one content of a file from the next: the time of its change, its size, and which file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    size: u64,
    inode: u64,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self { modified: meta.modified().ok(), size: meta.len(), inode: meta.ino() }
    }

    /// Clocks of file systems are coarse: within a moment, two changes look like one.
    fn is_settled(&self) -> bool {
        let modified = self.modified.and_then(|at| Timestamp::try_from(at).ok());
        modified.is_some_and(|at| clock::now().duration_since(at) > SETTLES)
    }
}

/// Everything the folder says.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// One wish per pod.
    pub(super) requests: BTreeMap<Key, PodRequest>,
    /// The templates of hooks, by namespace and name.
    pub(super) templates: BTreeMap<(String, String), HookTemplateSpec>,
    /// Files that say nothing that can be used: name and reason.
    pub(super) problems: BTreeMap<String, String>,
}

impl PodsDir {
    /// Watches `folder`, which must be there.
    pub(super) fn watch(folder: &Path) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
        let flags = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(folder, flags)?;
        let hints = Arc::new(Notify::new());
        let hint = Arc::clone(&hints);
        // A thread of its own that sleeps in the kernel: it ends with the process, or when there is nothing to read any
        // more, and then the regular reading has to do.
        std::thread::Builder::new().name("pods-dir".to_owned()).spawn(move || {
            while inotify.read_events().is_ok() {
                hint.notify_one();
            }
        })?;
        Ok(Self { folder: folder.to_owned(), hints, files: HashMap::new() })
    }

    /// Waits until the folder may have changed.
    pub(super) async fn changed(&self) {
        let _ = tokio::time::timeout(RESCAN, self.hints.notified()).await;
    }

    /// Reads what has changed, and says what all files together wish.
    pub(super) fn scan(&mut self) -> io::Result<Scan> {
        let mut seen = HashMap::new();
        for item in std::fs::read_dir(&self.folder)? {
            let path = item?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let manifest = matches!(path.extension().and_then(|e| e.to_str()), Some("yaml" | "yml" | "json"));
            if name.starts_with('.') || !manifest {
                continue;
            }
            // A link is followed, as in a mounted ConfigMap.
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            if !meta.is_file() {
                continue;
            }
            let stamp = Stamp::of(&meta);
            let known = match self.files.remove(&path) {
                Some(known) if known.stamp == stamp && known.settled => known,
                before => read(&path, stamp, before),
            };
            seen.insert(path, known);
        }
        self.files = seen;
        Ok(self.together())
    }

    fn together(&self) -> Scan {
        let mut scan = Scan::default();
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(path, _)| path.as_path());
        for (path, known) in files {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(problem) = &known.problem {
                scan.problems.insert(file.clone(), problem.clone());
            }
            for template in &known.templates {
                let (namespace, name) = (&template.metadata.namespace, &template.metadata.name);
                let namespace = namespace.as_deref().filter(|text| !text.is_empty()).unwrap_or("default");
                let name = name.as_deref().unwrap_or_default();
                let key = (namespace.to_owned(), name.to_owned());
                if scan.templates.contains_key(&key) {
                    let problem =
                        format!("HookTemplate {namespace}/{name} is there twice: the first one counts");
                    scan.problems.insert(file.clone(), problem);
                    continue;
                }
                scan.templates.insert(key, template.spec.clone());
            }
            for pods_file in &known.requests {
                let key =
                    Key { namespace: pods_file.namespace.clone(), name: pods_file.name.clone(), uid: None };
                let request = match Request::parse(pods_file.request.as_deref()) {
                    Ok(None) => continue,
                    Ok(Some(request)) => Ok(request),
                    Err(error) => Err(error),
                };
                if scan.requests.contains_key(&key) {
                    let problem = format!("pod {key} is in another file too, which counts");
                    scan.problems.insert(file.clone(), problem);
                    continue;
                }
                scan.requests.insert(key, PodRequest { uid: pods_file.uid.clone(), held: false, request });
            }
        }
        scan
    }
}

fn read(path: &Path, stamp: Stamp, before: Option<Known>) -> Known {
    let settled = stamp.is_settled();
    let text = if stamp.size > MAX_FILE {
        Err(format!("it is larger than {MAX_FILE} bytes"))
    } else {
        std::fs::read_to_string(path).map_err(|error| error.to_string())
    };
    let (requests, templates) = before.map(|known| (known.requests, known.templates)).unwrap_or_default();
    let kept = Known { stamp, settled, requests, templates, problem: None };
    let text = match text {
        Ok(text) => text,
        Err(problem) => return Known { problem: Some(problem), ..kept },
    };
    // Nothing yet: somebody is about to write.
    if text.trim().is_empty() {
        return kept;
    }
    let requests = PodEntry::parse(&text).map_err(|error| error.to_string());
    let templates = hook_manifest::read_all(&text).map_err(|error| format!("HookTemplate: {error}"));
    match (requests, templates) {
        (Ok(requests), Ok(templates)) => Known { requests, templates, ..kept },
        (Err(problem), _) => Known { problem: Some(problem), ..kept },
        (Ok(requests), Err(problem)) => Known { requests, problem: Some(problem), ..kept },
    }
}
