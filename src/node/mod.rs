//! Operations on a node: accepts a request for a pod, plans it, and carries it out through the runtime, with a journal.
//!
//! The agent and `inplace node` use it; it depends on neither. `operation` makes the decisions; `cri` has the protocol of the
//! runtime.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::api::annotation;
use crate::api::group::GroupTask;
use crate::api::pod_ref::PodRef;
use crate::api::request::{Order, Request};
use crate::api::status::{Phase, Status};
use crate::cluster::groups::GroupRestarts;
use crate::cluster::pods::NodePods;
use crate::cri::client::Client;
use crate::cri::convert;
use crate::cri::identity::{self, Asked};
use crate::failure::Class;
use crate::node::drive::{ControlHandle, Observer};
use crate::node::holder::Holder;
use crate::node::hook::Hooks;
use crate::node::journal::{Entry, File, Journal, JournalError, PodLock};
use crate::node::permit::Permit;
use crate::node::pulls::Pulls;
use crate::node::slot::Slot;
use crate::operation::effect::EffectError;
use crate::operation::group::GroupMembership;
use crate::operation::plan::Plan;
use crate::operation::preflight::{self, Refusal, Runtime, Situation, Source};
use crate::operation::snapshot::{Origin, PullPolicy, Snapshot, State};
use crate::process::clock;

mod alias;
mod changes;
mod concurrency;
pub mod drive;
mod execute;
pub mod failed;
mod fence;
mod fences;
mod files;
pub mod holder;
pub mod hook;
mod image;
pub mod journal;
mod journal_writer;
pub mod launch;
pub mod lock;
mod lost_time;
mod memory;
mod obsolete;
pub mod permit;
mod pre_stop;
pub mod prefetch;
mod pull_source;
pub mod pulls;
mod reread;
mod set_aside;
pub mod settings;
pub mod slot;
mod standby;
pub mod sweep;
mod time_limits;

/// Carries out operations on a node, with these dependencies and limits.
#[derive(Clone, Debug)]
pub struct Node {
    /// The client of the runtime.
    pub client: Client,
    /// The state that must survive this process.
    pub journal: Journal,
    /// The limit on concurrent image pulls.
    pub pulls: Pulls,
    /// The permit of the operation that this value carries out; the default is without a limit.
    pub permit: Permit,
    /// The slot of the same operation; the default is without a limit.
    pub slot: Slot,
    /// Bytes that must stay free on the image disk by the estimate before a pull.
    pub image_reserve: u64,
    /// The API server's view of the node's pods, and the way to change them; `None` without an API server.
    pub cluster: Option<NodePods>,
    /// Whether Secrets that pods name may be read to pull their images.
    pub allow_pull_secrets: bool,
    /// The image for processes that hold container names beside a kubelet; `None` without a kubelet.
    pub holder: Option<Holder>,
    /// What running hooks requires; `None` if hooks are not run.
    pub hooks: Option<Hooks>,
    /// The terminal status that was published for the pod, if there is one: an operation that has ended is not
    /// continued, whatever the journal holds.
    pub answered: Option<Status>,
    /// The group restart that the request is part of.
    pub group: Option<GroupTask>,
    /// The group restarts in progress; `None` without an API server.
    pub groups: Option<GroupRestarts>,
    /// How long the request has waited before it could begin. This time counts towards its deadline.
    pub waited: Duration,
}

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be carried out as written.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The runtime failed or did not answer.
    #[error(transparent)]
    Runtime(#[from] crate::cri::error::Error),
    /// An effect of the operation failed. The journal holds such failures as text, so there is no source.
    #[error("{}", .0.message)]
    Effect(EffectError),
    /// The template of a hook could not be read.
    #[error(transparent)]
    Hook(crate::cluster::error::Error),
    /// The journal does not permit it.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The process shuts down; the journal holds what remains to be done.
    #[error(
        "interrupted: the remaining work is in the journal and is done when inplace runs on this node again"
    )]
    Interrupted,
}

impl From<EffectError> for Error {
    fn from(effect_error: EffectError) -> Self {
        Self::Effect(effect_error)
    }
}

impl Error {
    /// One word for programs: status `reason`, metric label.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(refusal) => refusal.reason(),
            Self::Runtime(error) if error.class.is_unavailable() => "RuntimeAway",
            Self::Effect(error) if error.class.is_unavailable() => "RuntimeAway",
            Self::Runtime(_) | Self::Effect(_) => "RuntimeError",
            Self::Hook(_) => "HookTemplateUnreadable",
            Self::Journal(JournalError::Busy(_)) => "Busy",
            Self::Journal(_) => "JournalUnreadable",
            Self::Interrupted => "Interrupted",
        }
    }
}

impl Node {
    /// A node with the runtime behind `client` and the journal below `state`.
    pub fn new(
        client: Client,
        state: &Path,
        pulls: usize,
        image_reserve_mib: u64,
    ) -> Result<Self, JournalError> {
        let journal = Journal::open(state)?;
        let image_reserve = image_reserve_mib.saturating_mul(1 << 20);
        let (pulls, permit) = (Pulls::new(pulls), Permit::default());
        let (cluster, holder, hooks) = (None, None, None);
        let allow_pull_secrets = false;
        Ok(Self {
            client,
            journal,
            pulls,
            permit,
            slot: Slot::default(),
            image_reserve,
            cluster,
            allow_pull_secrets,
            holder,
            hooks,
            answered: None,
            group: None,
            groups: None,
            waited: Duration::ZERO,
        })
    }

    /// The same node beside a kubelet, with the API server's view of its pods.
    #[must_use]
    pub fn with_cluster(
        mut self,
        pods: NodePods,
        groups: GroupRestarts,
        holder: Holder,
        allow_pull_secrets: bool,
    ) -> Self {
        self.cluster = Some(pods);
        self.groups = Some(groups);
        self.holder = Some(holder);
        self.allow_pull_secrets = allow_pull_secrets;
        self
    }

    /// The same node with hooks.
    #[must_use]
    pub fn with_hooks(mut self, hooks: Hooks) -> Self {
        self.hooks = Some(hooks);
        self
    }

    /// The identity with which the runtime is asked for `pod`.
    fn asked(&self, pod: &PodRef) -> Asked {
        let origin = self.cluster.as_ref().map_or(Origin::Unknown, |pods| pods.origin(pod));
        Asked { pod: pod.clone(), origin }
    }

    /// Fails unless the sandbox under the uid of `pod` on this node belongs to that pod. Called before its journal
    /// is opened.
    async fn identify(&self, pod: &PodRef) -> Result<(), Error> {
        let asked = self.asked(pod);
        let sandboxes = self.client.sandboxes(Some((annotation::POD_UID, &pod.uid))).await?;
        match identity::own(&asked, sandboxes) {
            Err(mismatch) => Err(Refusal::IdentityMismatch(mismatch.to_string()).into()),
            // Only a sandbox proves which pod has the uid of a mirror pod.
            Ok(own) if own.is_empty() && asked.origin == Origin::Mirror => {
                Err(Refusal::PodNotFound(pod.to_string()).into())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Observes the pod through the runtime and the API server.
    async fn see(
        &self,
        client: &Client,
        pod: &PodRef,
        names: &[&str],
    ) -> Result<Snapshot, crate::cri::error::Error> {
        let snapshot = convert::observe(client, &self.asked(pod), Some(names)).await?;
        // The order matters: `has_synced` is read first, so that a pod that is then not found did not exist.
        let is_synced = self.cluster.as_ref().is_some_and(NodePods::has_synced);
        let declared = self.cluster.as_ref().and_then(|pods| pods.declared(pod));
        Ok(Snapshot { absent: is_synced && declared.is_none(), declared, ..snapshot })
    }

    /// The pod of that name on this node; the newest if there are several.
    pub async fn find(&self, namespace: &str, name: &str) -> Result<PodRef, Error> {
        let found = convert::find_pod(&self.client, namespace, name).await?;
        let missing = || Refusal::PodNotFound(format!("{namespace}/{name}"));
        Ok(found.into_iter().next().ok_or_else(missing)?)
    }

    /// Returns the plan for `request`. Touches nothing.
    pub async fn plan(&self, pod: &PodRef, request: Request) -> Result<Plan, Error> {
        self.identify(pod).await?;
        self.planned(pod, request).await
    }

    async fn planned(&self, pod: &PodRef, request: Request) -> Result<Plan, Error> {
        let situation = self.situation(pod, &request).await?;
        match preflight::admit(request, &situation) {
            Ok(admitted) => Ok(Plan::of(admitted)),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Carries out `request` on `pod` to its end. A request that has ended before is answered from the journal. An
    /// operation that an earlier process left open on this pod is completed first.
    pub async fn carry_out(
        &self,
        pod: &PodRef,
        request: Request,
        control: ControlHandle,
        observer: &Observer,
    ) -> Result<Status, Error> {
        self.identify(pod).await?;
        let held = self.hold(pod).await?;
        if let Some(status) = self.resume_held(pod, &held, control.clone(), observer).await?
            && status.id == request.id
        {
            return Ok(status);
        }
        let id = request.id.clone();
        let work = Box::pin(self.carry_out_held(pod, request, &held, control, observer));
        self.journal.note_panics(pod, &id, work).await
    }

    async fn carry_out_held(
        &self,
        pod: &PodRef,
        request: Request,
        _held: &PodLock,
        control: ControlHandle,
        observer: &Observer,
    ) -> Result<Status, Error> {
        let mut entry = self.load(pod).await?;
        if entry.has_finished(&request.id) {
            let last = entry.last.filter(|last| last.id == request.id);
            return last.ok_or_else(|| Refusal::AlreadyEnded(request.id).into());
        }
        if self.panics_too_often(pod, &request.id).await? {
            return Ok(Box::pin(self.set_request_aside(entry, &request.id, &control, observer)).await);
        }
        sweep::sweep(&self.client, &self.journal, Some(pod)).await?;
        let plan = self.planned(pod, request).await?;
        entry.owed_gate = plan.owed_gate(entry.owed_gate);
        let mut operation = plan.begin(clock::now(), entry.owed_gate);
        operation.group = self.group.clone().map(GroupMembership::new);
        operation.spend(self.waited);
        entry.open = Some(operation);
        Box::pin(drive::drive(self, entry, control, observer)).await.ok_or(Error::Interrupted)
    }

    /// Completes the operation that an earlier process left open on `pod`, if there is one.
    pub async fn resume(
        &self,
        pod: &PodRef,
        control: ControlHandle,
        observer: &Observer,
    ) -> Result<Option<Status>, Error> {
        let held = self.hold(pod).await?;
        self.resume_held(pod, &held, control, observer).await
    }

    async fn resume_held(
        &self,
        pod: &PodRef,
        _held: &PodLock,
        control: ControlHandle,
        observer: &Observer,
    ) -> Result<Option<Status>, Error> {
        let mut entry = self.load(pod).await?;
        if let Some(foreign) = entry.foreign.take() {
            return Ok(Some(Box::pin(self.set_foreign_aside(entry, &foreign, &control, observer)).await));
        }
        let Some(operation) = &mut entry.open else { return Ok(None) };
        let id = operation.request.id.clone();
        if let Some(status) = self.answered.as_ref().filter(|status| is_end_of(status, &id)) {
            let status = status.clone();
            return Ok(Some(Box::pin(self.conclude_answered(entry, status, &control)).await));
        }
        if self.panics_too_often(pod, &id).await? {
            return Ok(Some(Box::pin(self.set_operation_aside(entry, &control, observer)).await));
        }
        operation.resume(clock::now());
        tracing::info!(%pod, id, step = %operation.step, "resuming an unfinished operation");
        let work = Box::pin(drive::drive(self, entry, control, observer));
        self.journal.note_panics(pod, &id, work).await.map(Some).ok_or(Error::Interrupted)
    }

    /// Locks `pod`: this process is the only one that works on it until the lock is dropped.
    async fn hold(&self, pod: &PodRef) -> Result<PodLock, JournalError> {
        self.journal.hold_async(pod).await
    }

    async fn load(&self, pod: &PodRef) -> Result<Entry, JournalError> {
        self.journal.load_async(pod).await
    }

    /// Deletes the recorded panics of a pod: the request in progress has ended.
    async fn forget_panics(&self, pod: &PodRef) {
        let of = pod.clone();
        let forget = move |journal: &Journal| {
            journal.forget_panics(&of);
            Ok(())
        };
        if let Err(error) = self.journal.run_blocking(File::Panics, &pod.uid, forget).await {
            tracing::warn!(%pod, %error, "the count of earlier panics cannot be reset");
        }
    }

    /// Collects the input of the preflight.
    async fn situation(&self, pod: &PodRef, request: &Request) -> Result<Situation, Error> {
        let runtime = self.client.version().await?;
        let names: Vec<_> = request.containers.iter().map(|target| target.name.as_str()).collect();
        let snapshot = self.see(&self.client, pod, &names).await?;
        if self.cluster.is_some() && snapshot.declared.is_none() {
            // Without the pod's spec the declared containers are unknown, and no request for the pod exists any
            // more.
            return Err(Refusal::PodNotFound(pod.to_string()).into());
        }
        // A pod that its kubelet has refused never gets a sandbox.
        if snapshot.sandbox.is_none()
            && let Some(why) = snapshot.declared.as_ref().and_then(|declared| declared.ending.clone())
        {
            return Err(Refusal::Ending { pod: Box::new(pod.clone()), why }.into());
        }
        let mut sources = BTreeMap::new();
        let unusable = self.unusable_sandbox(&snapshot, &runtime).await;
        for name in names {
            if let Some(source) = self.source(&snapshot, name).await? {
                let not_cloneable = source.not_cloneable.or_else(|| unusable.clone());
                sources.insert(name.to_owned(), Source { not_cloneable, ..source });
            }
        }
        let hashes = self.load(pod).await?.hashes;
        let hooks = self.named_hooks(request, &snapshot).await?;
        let memory = match &snapshot.sandbox {
            Some(sandbox) if request.order == Order::StartFirst => {
                memory::observe(&self.client, &sandbox.id).await
            }
            _ => None,
        };
        let group = self.group.clone();
        Ok(Situation { snapshot, runtime, sources, hashes, hooks, memory, group, now: clock::now() })
    }

    /// Why nothing can be created in the sandbox: each creation passes its configuration back to the runtime in full. Asks only
    /// where something may be created; that it cannot be read now, for another reason, is found out by whoever creates.
    async fn unusable_sandbox(&self, snapshot: &Snapshot, runtime: &Runtime) -> Option<String> {
        let sandbox = snapshot.sandbox.as_ref().filter(|sandbox| sandbox.ready && runtime.has_fences())?;
        let error = execute::read_sandbox(&self.client, &sandbox.id).await.err()?;
        (error.class == Class::Final).then(|| format!("its sandbox: {}", error.message))
    }

    /// Reads the running container `name`, or the last one of that name, as the source of a clone.
    async fn source(&self, snapshot: &Snapshot, name: &str) -> Result<Option<Source>, Error> {
        let instances = snapshot.instances(name);
        let running = instances.iter().rev().find(|instance| instance.state == State::Running);
        let Some(instance) = running.or(instances.last()) else { return Ok(None) };
        let read = execute::read_source(&self.client, &instance.id).await;
        let mut facts = Source::default();
        match read {
            Ok(source) => {
                facts.has_assigned_cpus = source.has_assigned_cpus();
                facts.uses_devices = source.uses_devices();
                facts.uses_host_network = source.uses_host_network();
                facts.asks_own_pod = source.asks_own_pod();
                if let Some(log) = source.termination_log() {
                    let file = format!("see {}", log.old.display());
                    let is_visible = files::run_blocking(&file, move || Ok(log.is_visible())).await;
                    facts.shares_termination_log = !is_visible.unwrap_or(false);
                }
            }
            Err(effect_error) if effect_error.class == Class::Final => {
                facts.not_cloneable = Some(effect_error.message);
            }
            Err(effect_error) if effect_error.class == Class::Gone => return Ok(None),
            Err(effect_error) => return Err(effect_error.into()),
        }
        let image = self.client.image(&instance.image_id, false).await?.and_then(|answer| answer.image);
        let declared = snapshot.declared.as_ref().and_then(|declared| declared.container(name));
        let (alias, runs_declared) = match (declared, &image) {
            (Some(declared), Some(image)) => (
                alias::find(&self.client, &declared.image, declared.pull_policy == PullPolicy::Always, image)
                    .await?,
                alias::is(&self.client, &declared.image, image).await?,
            ),
            (Some(_), None) => (None, false),
            (None, _) => (None, true),
        };
        Ok(Some(Source { image_present: image.is_some(), alias, runs_declared, ..facts }))
    }
}

/// Whether `status` is the end of the operation `id`, and not only the answer to a request of that ID that could not
/// begin.
fn is_end_of(status: &Status, id: &str) -> bool {
    let has_begun = status.started_at.is_some();
    status.id == id && has_begun && status.phase.is_terminal() && status.phase != Phase::Refused
}
