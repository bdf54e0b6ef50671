//! Reads a folder of Pod and HookTemplate manifests: the current requests, the hook templates, and a hint when they
//! may have changed.
//!
//! The folder is read after every hint, and also every few seconds because a hint may be lost. A file that cannot
//! be read keeps its previous requests, so that a half-written file withdraws nothing. Must not write to the
//! folder.

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
/// The minimum age of a change before its stamp is trusted.
const SETTLES: SignedDuration = SignedDuration::from_secs(1);
/// The size limit of a manifest in bytes; a larger file is reported as a problem.
const MAX_FILE: u64 = 1 << 20;

/// The folder and its content at the last scan.
#[derive(Debug)]
pub(super) struct PodsDir {
    folder: PathBuf,
    hints: Arc<Notify>,
    files: HashMap<PathBuf, CachedFile>,
}

/// The cached content of one file.
#[derive(Debug)]
struct CachedFile {
    stamp: Stamp,
    /// False if the file was so young that it may have changed again without a change of its stamp.
    settled: bool,
    requests: Vec<PodEntry>,
    templates: Vec<HookTemplate>,
    problem: Option<String>,
}

/// Distinguishes the versions of a file: modification time, size, and inode.
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

    /// File system clocks are coarse: two changes within a short time can have the same timestamp.
    fn is_settled(&self) -> bool {
        let modified = self.modified.and_then(|at| Timestamp::try_from(at).ok());
        modified.is_some_and(|at| clock::now().duration_since(at) > SETTLES)
    }
}

/// The combined content of all files in the folder.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// One request per pod.
    pub(super) requests: BTreeMap<Key, PodRequest>,
    /// Hook templates by namespace and name.
    pub(super) templates: BTreeMap<(String, String), HookTemplateSpec>,
    /// Files that cannot be used: name and reason.
    pub(super) problems: BTreeMap<String, String>,
}

impl PodsDir {
    /// Watches `folder`, which must exist.
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
        // A dedicated thread that blocks in the kernel. It ends with the process, or when inotify fails; then only
        // the periodic scan remains.
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

    /// Reads the changed files, and returns the combined content of all files.
    pub(super) fn scan(&mut self) -> io::Result<Scan> {
        let mut seen = HashMap::new();
        for item in std::fs::read_dir(&self.folder)? {
            let path = item?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let manifest = matches!(path.extension().and_then(|e| e.to_str()), Some("yaml" | "yml" | "json"));
            if name.starts_with('.') || !manifest {
                continue;
            }
            // Symbolic links are followed: the files of a mounted ConfigMap are links.
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            if !meta.is_file() {
                continue;
            }
            let stamp = Stamp::of(&meta);
            let cached = match self.files.remove(&path) {
                Some(cached) if cached.stamp == stamp && cached.settled => cached,
                before => read(&path, stamp, before),
            };
            seen.insert(path, cached);
        }
        self.files = seen;
        Ok(self.together())
    }

    fn together(&self) -> Scan {
        let mut scan = Scan::default();
        let mut files: Vec<_> = self.files.iter().collect();
        files.sort_unstable_by_key(|(path, _)| path.as_path());
        for (path, cached) in files {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(problem) = &cached.problem {
                scan.problems.insert(file.clone(), problem.clone());
            }
            for template in &cached.templates {
                let (namespace, name) = (&template.metadata.namespace, &template.metadata.name);
                let namespace = namespace.as_deref().filter(|text| !text.is_empty()).unwrap_or("default");
                let name = name.as_deref().unwrap_or_default();
                let key = (namespace.to_owned(), name.to_owned());
                if scan.templates.contains_key(&key) {
                    let problem = format!(
                        "HookTemplate {namespace}/{name} is defined twice: the first definition is used"
                    );
                    scan.problems.insert(file.clone(), problem);
                    continue;
                }
                scan.templates.insert(key, template.spec.clone());
            }
            for pods_file in &cached.requests {
                let key =
                    Key { namespace: pods_file.namespace.clone(), name: pods_file.name.clone(), uid: None };
                let request = match Request::parse(pods_file.request.as_deref()) {
                    Ok(None) => continue,
                    Ok(Some(request)) => Ok(request),
                    Err(error) => Err(error),
                };
                if scan.requests.contains_key(&key) {
                    let problem = format!("pod {key} is also in another file, which is used instead");
                    scan.problems.insert(file.clone(), problem);
                    continue;
                }
                scan.requests.insert(
                    key,
                    PodRequest { uid: pods_file.uid.clone(), held: false, group: None, request },
                );
            }
        }
        scan
    }
}

fn read(path: &Path, stamp: Stamp, before: Option<CachedFile>) -> CachedFile {
    let settled = stamp.is_settled();
    let text = if stamp.size > MAX_FILE {
        Err(format!("it is larger than {MAX_FILE} bytes"))
    } else {
        std::fs::read_to_string(path).map_err(|error| error.to_string())
    };
    let (requests, templates) = before.map(|cached| (cached.requests, cached.templates)).unwrap_or_default();
    let unchanged = CachedFile { stamp, settled, requests, templates, problem: None };
    let text = match text {
        Ok(text) => text,
        Err(problem) => return CachedFile { problem: Some(problem), ..unchanged },
    };
    // An empty file is one that is about to be written.
    if text.trim().is_empty() {
        return unchanged;
    }
    let requests = PodEntry::parse(&text).map_err(|error| error.to_string());
    let templates = hook_manifest::read_all(&text).map_err(|error| format!("HookTemplate: {error}"));
    match (requests, templates) {
        (Ok(requests), Ok(templates)) => CachedFile { requests, templates, ..unchanged },
        (Err(problem), _) => CachedFile { problem: Some(problem), ..unchanged },
        (Ok(requests), Err(problem)) => CachedFile { requests, problem: Some(problem), ..unchanged },
    }
}
