//! The journal: one file per pod, written before each effect, so that an operation can continue after its process
//! dies at any point.
//!
//! A file holds the open operation, the effect that is about to run, the status of the last finished request, and
//! the IDs that must not run again. It holds no environment values: an operation has none. Does not decide how an
//! operation continues.
//!
//! # Compatibility
//!
//! A node may be upgraded to the next release and downgraded again in the middle of an operation.
//!
//! * `version` is raised only by a release that changes the meaning of existing content. A version higher than the
//!   program's own is not read.
//! * A release that only adds content leaves the version unchanged. Unknown fields inside an operation or a status
//!   are ignored; unknown fields at the top level are retained and written back. Added fields are optional, and
//!   omitted where they carry no information.
//! * A value of `intent`, `last`, `hashes`, `ended` or `owed_gate` that cannot be parsed is dropped.
//! * An `open` operation that cannot be parsed, because its request has an unknown field or an effect has an unknown
//!   kind, is not continued by guessing. It is set aside, which ends it ([`Entry::foreign`]).
//! * A file that cannot be read is an error for its pod alone: no operation begins on the pod until a person has
//!   moved the file away. The fences of the pod are removed all the same, once no process works on the pod.
//!
//! The file `<uid>.panics` beside it has one line, the request ID, for each panic that ended the process while it
//! worked on that request.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Permissions;
use std::io;
use std::mem;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use jiff::{SignedDuration, Timestamp};
use nix::fcntl::{Flock, FlockArg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::sync::Semaphore;

use crate::api::pod_ref::PodRef;
use crate::api::status::Status;
use crate::operation::effect::{Effect, GateAction};
use crate::operation::preflight::Hashes;
use crate::operation::state::Operation;
use crate::process::disk::Disk;
use crate::process::file::{self, Durability};
use crate::process::panics::{self, Noted};

/// The version of the file layout. A file with a higher version is not read.
const VERSION: u32 = 1;
/// Maximum number of finished IDs per pod.
const MAX_FINISHED: usize = 64;

/// Maximum number of hashes per container. A workload that needs them alternates between a few images.
const MAX_HASHES: usize = 16;

/// How long it is known which containers requests before the last one have ended: a container is looked at soon after its
/// end.
const RECENT: SignedDuration = SignedDuration::from_mins(10);

/// Maximum number of concurrent writes: each may hang, and they share the blocking threads with other calls.
const MAX_WRITES: usize = 12;
/// Maximum number of concurrent file system calls other than the writes of operations.
const MAX_CALLS: usize = 4;
/// Time limit of one such call.
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// The folder of all journal files. Clones share its limits.
#[derive(Clone, Debug)]
pub struct Journal {
    folder: PathBuf,
    disk: Disk,
    writes: Arc<Semaphore>,
}

/// The file that a call concerns. At most one call per file runs at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum File {
    Folder,
    /// The journal entry of a pod.
    Entry,
    /// The lock of a pod.
    Lock,
    /// The panics of a pod's requests.
    Panics,
}

/// The content of one journal file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    version: u32,
    /// The pod whose journal this is.
    pub pod: PodRef,
    /// The operation in progress.
    pub open: Option<Operation>,
    /// The effect that was about to run when this was written.
    pub intent: Option<Effect>,
    /// The status of the last finished request.
    pub last: Option<Status>,
    /// IDs of finished requests, oldest first.
    pub finished: Vec<String>,
    /// The container hashes that the pod's kubelet has written, by container name and by the image in the spec at
    /// that time.
    pub hashes: Hashes,
    /// The containers that requests before the last one have ended lately, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    ended: BTreeMap<String, EndedContainer>,
    /// The value that the pod's readiness gate still has to be set to, because the API server was unreachable at the
    /// end of the operation.
    pub owed_gate: Option<GateAction>,
    /// An open operation of another release that this release cannot parse.
    #[serde(skip)]
    pub foreign: Option<Foreign>,
    /// Fields that other releases have added.
    #[serde(flatten)]
    added: Map<String, Value>,
}

/// A container that an operation has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndedContainer {
    /// ID of the container in the runtime.
    pub id: String,
    /// When it ended, by the runtime's clock.
    at: Timestamp,
    /// When its successor started, by the runtime's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Timestamp>,
}

/// An open operation that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The ID of its request.
    pub id: String,
    /// What cannot be parsed.
    pub why: String,
    /// True if it has touched a container.
    pub touched: bool,
}

/// Why a journal file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file system call failed.
    #[error("the journal {path} cannot be {doing}: {source}")]
    Io {
        /// The affected file or folder.
        path: PathBuf,
        /// The failed action as a participle: `read`, `written`, ...
        doing: &'static str,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The file is torn or is not a journal file.
    #[error(
        "the journal {path} is damaged ({what}): check the pod, then move the file away; until then no request \
         is executed on this pod"
    )]
    Damaged {
        /// The damaged file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// The file was written by a newer release.
    #[error(
        "the journal {path} has version {found}, this program reads version {VERSION}: run the release that wrote it, \
         or move the file away"
    )]
    Version {
        /// The file that cannot be read.
        path: PathBuf,
        /// The version in the file.
        found: u64,
    },
    /// The file belongs to another pod.
    #[error("the journal {path} belongs to pod {of}, not to pod {pod}: it is used for neither")]
    OtherPod {
        /// The file that was read.
        path: PathBuf,
        /// The pod in the file.
        of: Box<PodRef>,
        /// The pod that was requested.
        pod: Box<PodRef>,
    },
    /// The name of the file is not that of its pod's file: it is a copy.
    #[error(
        "the journal {path} belongs to pod {of}, whose file has another name: it is not used; move it away"
    )]
    OtherName {
        /// The file that was read.
        path: PathBuf,
        /// The pod in the file.
        of: Box<PodRef>,
    },
    /// The disk has not answered in time.
    #[error("the disk did not answer in time for the journal {path}: it is slow or hangs")]
    Late {
        /// The file of the call that is late.
        path: PathBuf,
    },
    /// Another process works on the pod.
    #[error("another inplace process is working on pod {0}: wait until it ends")]
    Busy(PodRef),
}

impl JournalError {
    /// True for an error that may pass: the disk is full or slow, or another process works on the pod. False for a
    /// file that a person has to inspect.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Late { .. } | Self::Busy(_))
    }
}

impl Entry {
    /// An entry for a pod without history.
    pub fn new(pod: PodRef) -> Self {
        Self {
            version: VERSION,
            pod,
            open: None,
            intent: None,
            last: None,
            finished: Vec::new(),
            hashes: Hashes::new(),
            ended: BTreeMap::new(),
            owed_gate: None,
            foreign: None,
            added: Map::new(),
        }
    }

    /// True if the request `id` has ended and must not run again.
    pub fn has_finished(&self, id: &str) -> bool {
        self.finished.iter().any(|finished| finished == id)
    }

    /// Records the kubelet's container hashes of the spec before and after `operation`.
    pub fn remember_hashes(&mut self, operation: &Operation) {
        for (container, image, hash) in operation.hashes() {
            let hashes = self.hashes.entry(container.to_owned()).or_default();
            if hashes.len() >= MAX_HASHES && !hashes.contains_key(image) {
                hashes.clear();
            }
            hashes.insert(image.to_owned(), hash.to_owned());
        }
    }

    /// The container `name` that the last request which has ended one has ended.
    pub fn ended(&self, name: &str) -> Option<EndedContainer> {
        let last = self.last.iter().flat_map(ended_by).find(|(of, _)| of == name).map(|(_, ended)| ended);
        last.or_else(|| self.ended.get(name).cloned())
    }

    /// Records the end of a request.
    pub fn conclude(&mut self, status: Status) {
        self.open = None;
        self.intent = None;
        self.foreign = None;
        if !self.has_finished(&status.id) {
            self.finished.push(status.id.clone());
        }
        let surplus = self.finished.len().saturating_sub(MAX_FINISHED);
        self.finished.drain(..surplus);
        let mut ended = mem::take(&mut self.ended);
        ended.extend(self.last.iter().flat_map(ended_by));
        let of_status: BTreeMap<_, _> = ended_by(&status).collect();
        let is_recent = |at: Timestamp| status.finished_at.is_none_or(|now| now.duration_since(at) < RECENT);
        ended.retain(|name, one| !of_status.contains_key(name) && is_recent(one.at));
        self.ended = ended;
        self.last = Some(status);
    }
}

impl Journal {
    /// Opens the journal below `state`, and creates its folder.
    pub fn open(state: &Path) -> Result<Self, JournalError> {
        let folder = state.join("journal");
        // The files hold hook arguments and messages of programs, so only root may read them.
        let made = std::fs::create_dir_all(&folder).and_then(|()| make_private(&folder));
        made.map_err(|source| JournalError::Io {
            path: folder.clone(),
            doing: "created (run as root, or set another folder with --state-dir)",
            source,
        })?;
        Ok(Self { folder, disk: Disk::new(MAX_CALLS), writes: Arc::new(Semaphore::new(MAX_WRITES)) })
    }

    /// The path of the file of the pod `uid`.
    pub fn path(&self, uid: &str) -> PathBuf {
        // A uid comes from a label at the runtime; its content must not lead out of the folder.
        let safe: String =
            uid.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
        self.folder.join(format!("{safe}.json"))
    }

    /// Reads the entry of `pod`; a new entry if there is no file.
    pub fn load(&self, pod: &PodRef) -> Result<Entry, JournalError> {
        let path = self.path(&pod.uid);
        match read(&path)? {
            None => Ok(Entry::new(pod.clone())),
            Some(entry) if entry.pod == *pod => Ok(entry),
            Some(Entry { pod: of, .. }) => {
                Err(JournalError::OtherPod { path, of: Box::new(of), pod: Box::new(pod.clone()) })
            }
        }
    }

    /// Writes `entry` durably before it returns. Blocks on the disk.
    pub fn write(&self, entry: &Entry) -> Result<(), JournalError> {
        let path = self.path(&entry.pod.uid);
        let written = serde_json::to_vec(entry)
            .map_err(std::io::Error::other)
            .and_then(|text| file::replace(&path, &text, Durability::Durable));
        written.map_err(|source| JournalError::Io { path, doing: "written", source })
    }

    /// Runs [`Self::write`] in a thread, when a write permit is free.
    pub(super) async fn write_async(self, entry: Entry) -> Result<(), JournalError> {
        // The semaphore is never closed.
        let slot = Arc::clone(&self.writes).acquire_owned().await;
        let path = self.path(&entry.pod.uid);
        let written = tokio::task::spawn_blocking(move || {
            let _held = slot;
            self.write(&entry)
        });
        written.await.unwrap_or_else(|error| {
            Err(JournalError::Io { path, doing: "written", source: std::io::Error::other(error) })
        })
    }

    /// The uids of all pods that have a file with this ending.
    fn uids(&self, ending: &str) -> Result<BTreeSet<String>, JournalError> {
        let io = |source| JournalError::Io { path: self.folder.clone(), doing: "listed", source };
        let mut uids = BTreeSet::new();
        for item in std::fs::read_dir(&self.folder).map_err(io)? {
            let name = item.map_err(io)?.file_name();
            let name = name.to_string_lossy();
            let Some((uid, _)) = name.rsplit_once('.').filter(|(_, end)| *end == ending) else { continue };
            // A name that no pod's file has would lead to the file of another pod.
            if self.path(uid).with_extension(ending).file_name().is_some_and(|own| own == &*name) {
                uids.insert(uid.to_owned());
            }
        }
        Ok(uids)
    }

    /// The uids of all pods that have a lock or recorded panics and no entry.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub(super) async fn without_entry(&self) -> Result<BTreeSet<String>, JournalError> {
        let uids = self.run_blocking(File::Folder, "", |journal| {
            let (locks, panics) = (journal.uids("lock")?, journal.uids("panics")?);
            let entries = journal.uids("json")?;
            Ok(locks.into_iter().chain(panics).filter(|uid| !entries.contains(uid)).collect())
        });
        uids.await
    }

    /// Runs `work` on the file `of` the pod `uid` in a thread outside the executor, bounded by [`CALL_LIMIT`].
    pub(super) async fn run_blocking<T: Send + 'static>(
        &self,
        of: File,
        uid: &str,
        work: impl FnOnce(&Self) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let journal = self.clone();
        let done = self.disk.run(&format!("{of:?} {uid}"), CALL_LIMIT, move || work(&journal)).await;
        done.unwrap_or_else(|_| Err(JournalError::Late { path: self.path(uid) }))
    }

    /// Runs [`Self::load`] in a thread outside the executor.
    ///
    /// # Errors
    /// The errors of [`Self::load`], and [`JournalError::Late`].
    pub async fn load_async(&self, pod: &PodRef) -> Result<Entry, JournalError> {
        let of = pod.clone();
        self.run_blocking(File::Entry, &pod.uid, move |journal| journal.load(&of)).await
    }

    /// Runs [`Self::hold`] in a thread outside the executor.
    ///
    /// # Errors
    /// The errors of [`Self::hold`], and [`JournalError::Late`].
    pub(super) async fn hold_async(&self, pod: &PodRef) -> Result<PodLock, JournalError> {
        let of = pod.clone();
        self.run_blocking(File::Lock, &pod.uid, move |journal| journal.hold(&of)).await
    }

    /// Reads every file in threads outside the executor. Each result is an entry or the reason why its file cannot
    /// be read; a read that hangs does not prevent the others. A copy of a file under another name is such a reason, so that
    /// no pod has two entries.
    ///
    /// # Errors
    /// When the folder cannot be listed.
    pub async fn all(&self) -> Result<Vec<Result<Entry, JournalError>>, JournalError> {
        let uids = self.run_blocking(File::Folder, "", |journal| journal.uids("json")).await?;
        let entries = uids.iter().map(|uid| {
            let path = self.path(uid);
            self.run_blocking(File::Entry, uid, move |journal| match read(&path)? {
                Some(Entry { pod, .. }) if journal.path(&pod.uid) != path => {
                    Err(JournalError::OtherName { path, of: Box::new(pod) })
                }
                own => Ok(own),
            })
        });
        Ok(join_all(entries).await.into_iter().filter_map(Result::transpose).collect())
    }

    /// Deletes all files of `pod`. The lock comes last: whoever holds the next one finds nothing that is still deleted.
    pub fn forget(&self, pod: &PodRef) -> Result<(), JournalError> {
        let path = self.path(&pod.uid);
        for path in [self.panics_of(pod), path.clone(), path.with_extension("lock")] {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(JournalError::Io { path, doing: "removed", source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Runs `work` on the request `id`. A panic in it adds a line to the pod's panics file.
    pub(super) fn note_panics<F: Future>(&self, pod: &PodRef, id: &str, work: Pin<Box<F>>) -> Noted<F> {
        panics::noted(self.panics_of(pod), id, work)
    }

    /// How often a panic in the work on the request `id` has ended the process.
    pub(super) fn panics(&self, pod: &PodRef, id: &str) -> usize {
        panics::count(&self.panics_of(pod), id)
    }

    /// Deletes the recorded panics of a pod: the request in progress has ended.
    pub(super) fn forget_panics(&self, pod: &PodRef) {
        let _ = std::fs::remove_file(self.panics_of(pod));
    }

    fn panics_of(&self, pod: &PodRef) -> PathBuf {
        self.path(&pod.uid).with_extension("panics")
    }

    /// Locks `pod`: this process is the only one that works on it until the lock is dropped.
    pub fn hold(&self, pod: &PodRef) -> Result<PodLock, JournalError> {
        let path = self.path(&pod.uid).with_extension("lock");
        let file = lock_file(&path, std::fs::File::create(&path)).map_err(|source| JournalError::Io {
            path: path.clone(),
            doing: "locked",
            source,
        })?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
        // A process that has removed the file since it was opened held the lock.
        let lock = lock.filter(|file| is_at(file, &path));
        lock.map(PodLock).ok_or_else(|| JournalError::Busy(pod.clone()))
    }
}

/// The lock of the process that works on a pod. Released on drop.
#[derive(Debug)]
pub struct PodLock(#[expect(dead_code, reason = "held for its drop")] Flock<std::fs::File>);

/// Lets only root use `folder`. A folder that is private already is left as it is: it may be on a read-only disk.
fn make_private(folder: &Path) -> io::Result<()> {
    if std::fs::metadata(folder)?.mode() & 0o7777 == 0o700 {
        return Ok(());
    }
    std::fs::set_permissions(folder, Permissions::from_mode(0o700))
}

/// The lock file at `path`, as it was `created`. One that exists can be locked on a read-only disk as well.
fn lock_file(path: &Path, created: io::Result<std::fs::File>) -> io::Result<std::fs::File> {
    match created {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            std::fs::File::open(path).map_err(|_| error)
        }
        created => created,
    }
}

/// Whether `file` is still the one at `path`: another process would lock another file.
fn is_at(file: &std::fs::File, path: &Path) -> bool {
    let present = file.metadata().and_then(|own| Ok((own, std::fs::metadata(path)?)));
    present.is_ok_and(|(own, there)| (own.dev(), own.ino()) == (there.dev(), there.ino()))
}

/// Reads the file at `path`; `None` if there is none.
fn read(path: &Path) -> Result<Option<Entry>, JournalError> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(JournalError::Io { path: path.to_owned(), doing: "read", source }),
    };
    let damaged = |what: String| JournalError::Damaged { path: path.to_owned(), what };
    let value: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    match value.get("version").and_then(Value::as_u64) {
        Some(found) if found <= u64::from(VERSION) => {}
        Some(found) => return Err(JournalError::Version { path: path.to_owned(), found }),
        None => return Err(damaged("it has no version".to_owned())),
    }
    match value {
        Value::Object(fields) => entry(fields).map(Some).map_err(damaged),
        _ => Err(damaged("it is not a JSON object".to_owned())),
    }
}

/// Parses the fields of a file. Returns an error if no operation may run on the pod.
fn entry(mut fields: Map<String, Value>) -> Result<Entry, String> {
    let mut take = |name: &str| fields.remove(name).unwrap_or_default();
    let needed = |name: &str, why: serde_json::Error| format!("{name}: {}", description(&why));
    let pod = serde_json::from_value(take("pod")).map_err(|why| needed("pod", why))?;
    let finished = serde_json::from_value(take("finished")).map_err(|why| needed("finished", why))?;
    let open = take("open");
    let id = open["request"]["id"].as_str().map(str::to_owned);
    let is_touched = |target: &Value| target["touched"].as_bool().unwrap_or(true);
    let touched = open["targets"].as_array().is_none_or(|targets| targets.iter().any(is_touched));
    let (open, foreign) = match serde_json::from_value(open) {
        Ok(open) => (open, None),
        Err(why) => match id {
            Some(id) => (None, Some(Foreign { id, why: description(&why), touched })),
            None => return Err(needed("open", why)),
        },
    };
    let (intent, last) = (understood(take("intent")), understood(take("last")));
    let (hashes, owed_gate) = (understood(take("hashes")), understood(take("owed_gate")));
    let ended = understood(take("ended"));
    fields.remove("version");
    Ok(Entry {
        version: VERSION,
        pod,
        open,
        intent,
        last,
        finished,
        hashes,
        ended,
        owed_gate,
        foreign,
        added: fields,
    })
}

/// The containers that an operation with this status has ended, by name.
fn ended_by(status: &Status) -> impl Iterator<Item = (String, EndedContainer)> {
    status.containers.iter().filter_map(|report| {
        let (id, started_at) = (report.from.container_id.clone(), report.started_at);
        Some((report.name.clone(), EndedContainer { id, at: report.stopped_at?, started_at }))
    })
}

/// The parsed value, or the default if another release has written a value that cannot be parsed.
fn understood<T: DeserializeOwned + Default>(value: Value) -> T {
    serde_json::from_value(value).unwrap_or_default()
}

/// The part of a parse error that may be published. An error text quotes values, except in these three forms, which
/// quote names of fields and variants only.
fn description(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let named = ["unknown field `", "unknown variant `", "missing field `"].into_iter().find_map(|start| {
        let (name, _) = text.strip_prefix(start)?.split_once('`')?;
        Some(format!("{start}{name}`"))
    });
    named.unwrap_or_else(|| "a value has the wrong type".to_owned())
}

#[cfg(test)]
mod tests;
