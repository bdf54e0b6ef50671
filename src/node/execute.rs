//! Carries out one effect. Makes no decisions: each arm does what its effect says and reports the result.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use crate::api::pod_ref::PodRef;
use crate::cluster;
use crate::cluster::pods::NodePods;
use crate::cri::client::Client;
use crate::cri::clone::{self, ImageUser, Source};
use crate::cri::proto::v1;
use crate::failure::Class;
use crate::node::Node;
use crate::node::fence;
use crate::node::files;
use crate::node::holder::Holder;
use crate::node::image::{self, Wanted};
use crate::node::permit::Permit;
use crate::node::pre_stop;
use crate::node::pull_source;
use crate::node::pulls::Pulls;
use crate::operation::effect::{Effect, EffectError, EffectOutput, ImageChoice, Leftover};
use crate::operation::report;
use crate::operation::snapshot::UserSource;
use crate::operation::state::Operation;
use crate::process::clock;

/// Ensures that the log says only once that the kubelet's folder is not visible: the cause is the same for all containers.
static UNSEEN: Once = Once::new();
/// Time limit for reading a configuration again while a container is down.
const READ_AGAIN: Duration = Duration::from_millis(500);
/// Time limit for the links of containers that others have started.
const LINK_LIMIT: Duration = Duration::from_secs(2);

/// Executes the effects of one operation.
#[derive(Debug)]
pub(super) struct EffectExecutor {
    pub(super) client: Client,
    pulls: Pulls,
    permit: Permit,
    image_reserve: u64,
    cluster: Option<NodePods>,
    pub(super) holder: Option<Holder>,
    allow_pull_secrets: bool,
    pub(super) pod: PodRef,
    sandbox_id: String,
    pub(super) operation_id: String,
    /// Where the kubelet takes the user of each container from.
    users: HashMap<String, UserSource>,
    /// Configurations of containers, including secrets. Read before the stop, so that no request is necessary while
    /// the container is down. In memory only.
    sources: HashMap<String, Source>,
    sandbox: Option<v1::PodSandboxConfig>,
    /// The log link to create once the created container runs.
    link: Option<Link>,
    /// The containers that this process has started and created the link of.
    linked: HashSet<String>,
}

/// The symbolic link to the log of a new container.
#[derive(Debug)]
struct Link {
    /// The ID of the new container.
    id: String,
    /// The link of the previous container.
    old: PathBuf,
    new: PathBuf,
    target: PathBuf,
}

/// Callback that reports slow progress.
pub(super) type Progress<'a> = &'a (dyn Fn(String) + Send + Sync);

impl EffectExecutor {
    pub(super) fn new(node: &Node, operation: &Operation) -> Self {
        Self {
            client: node.client.clone(),
            pulls: node.pulls.clone(),
            permit: node.permit.clone(),
            image_reserve: node.image_reserve,
            cluster: node.cluster.clone(),
            holder: node.holder.clone().filter(|_| !operation.unsupervised),
            allow_pull_secrets: node.allow_pull_secrets,
            pod: operation.pod.clone(),
            sandbox_id: operation.sandbox_id.clone(),
            operation_id: operation.request.id.clone(),
            users: operation.targets.iter().map(|target| (target.name.clone(), target.user)).collect(),
            sources: HashMap::new(),
            sandbox: None,
            link: None,
            linked: HashSet::new(),
        }
    }

    /// False once the pod runs in another sandbox.
    pub(super) fn is_for(&self, operation: &Operation) -> bool {
        self.sandbox_id == operation.sandbox_id
    }

    /// Carries out `effect` within `limit`.
    pub(super) async fn execute(
        &mut self,
        operation: &Operation,
        effect: &Effect,
        limit: Duration,
        progress: Progress<'_>,
    ) -> Result<EffectOutput, EffectError> {
        let client = self.client.within(limit);
        match effect {
            Effect::Pull { container, image, like, anew, again } => {
                if let Some(before) = again
                    && self.client.image(&before.id, false).await?.is_some()
                {
                    return Ok(EffectOutput::Image(before.clone()));
                }
                let touched = operation.touched();
                let arrived = self.pull(image, like, *anew, touched, limit, progress).await?;
                let pulled = image::same_as(again.as_ref(), arrived)?;
                // Its kubelet would refuse an image of root only after it has stopped the container.
                self.image_user(container, Some(&pulled)).await?;
                Ok(EffectOutput::Image(pulled))
            }
            Effect::Fence { container, source, attempt, image, test_create, by_process } => {
                let (attempt, image, left) = (*attempt, image.as_ref(), clock::until(operation.deadline_at));
                let (test_create, by_process) = (*test_create, *by_process);
                let wanted =
                    fence::Wanted { container, source, attempt, image, test_create, by_process, left };
                self.fence(&client, wanted).await
            }
            Effect::PreStop { container, id, budget_seconds } => {
                self.pre_stop(container, id, Duration::from_secs(*budget_seconds).min(limit)).await
            }
            Effect::Stop { id, timeout_seconds, .. } => {
                client.stop(id, Duration::from_secs(*timeout_seconds)).await?;
                Ok(EffectOutput::Nothing)
            }
            Effect::Create { container, source, attempt, image, limits } => {
                let (image, limits) = (image.as_ref(), limits.as_deref());
                self.replacement(&client, container, source, *attempt, image, limits).await
            }
            Effect::Start { container, id } => {
                let started = client.start(id).await;
                // Also without an answer: the container may run.
                self.link_log(operation, container, id).await;
                started?;
                Ok(EffectOutput::Nothing)
            }
            Effect::Standby { container, source, attempt, image } => {
                // What the cluster's admission refuses must not run, not even beside the container.
                if let Some(images) = operation.new_image(container) {
                    let status = report::status(operation);
                    bounded(limit, self.cluster()?.may_respec(&self.pod, container, images, &status)).await?;
                }
                self.standby(&client, container, source, *attempt, image.as_ref()).await
            }
            Effect::StopStandby { container, id, grace_seconds, pre_stop, .. } => {
                let grace = Duration::from_secs(*grace_seconds);
                self.stop_standby(container, id, grace, *pre_stop, limit).await
            }
            Effect::Remove { id, what, .. } => self.remove(&client, id, *what).await,
            Effect::Respec { container, from, to } => {
                let status = report::status(operation);
                bounded(limit, self.cluster()?.respec(&self.pod, container, from, to, &status)).await
            }
            Effect::Gate { gate } => {
                let (open, reason, message) = gate.condition();
                bounded(limit, self.cluster()?.set_gate(&self.pod, open, reason, message)).await
            }
        }
    }

    async fn pull(
        &mut self,
        reference: &str,
        like: &str,
        anew: bool,
        touched: bool,
        limit: Duration,
        progress: Progress<'_>,
    ) -> Result<ImageChoice, EffectError> {
        if let Some(present) = image::present(&self.client, reference, anew).await? {
            return Ok(present);
        }
        // An operation that has touched a container keeps its permit: it waits for no other operation.
        if !touched {
            self.permit.give_back();
        }
        let pulls = self.pulls.clone();
        if pulls.is_full(reference, &self.pod.namespace) {
            progress(format!("waiting for a permit to pull {reference}"));
        }
        let began = tokio::time::Instant::now();
        let Ok(Some(_permit)) =
            tokio::time::timeout(limit, pulls.acquire(reference, &self.pod.namespace)).await
        else {
            let message = "no permit to pull was available in time".to_owned();
            return Err(EffectError { class: Class::Final, message });
        };
        let limit = limit.saturating_sub(began.elapsed());
        let client = self.client.clone();
        let named = self.names_pull_secrets();
        let credentials = if named && self.allow_pull_secrets {
            pull_source::credentials(self.cluster()?, &self.pod, reference).await?
        } else {
            Vec::new()
        };
        let sandbox = &pull_source::sandbox_config(&self.client, &self.sandbox_id).await?;
        let wanted = Wanted {
            reference,
            like,
            anew,
            sandbox,
            credentials: &credentials,
            limit,
            reserve: self.image_reserve,
            floor: 0,
        };
        let fetched = image::fetch(&client, wanted, progress).await;
        let lacks = |effect_error: &EffectError| {
            credentials.is_empty() && image::wants_credentials(&effect_error.message)
        };
        match fetched {
            Err(effect_error) if named && lacks(&effect_error) => {
                Err(EffectError { class: Class::Credentials, ..effect_error })
            }
            other => other,
        }
    }

    fn names_pull_secrets(&self) -> bool {
        let declared = self.cluster.as_ref().and_then(|pods| pods.declared(&self.pod));
        declared.is_some_and(|declared| declared.has_pull_secrets)
    }

    fn cluster(&self) -> Result<&NodePods, EffectError> {
        let message = "there is no API server".to_owned();
        self.cluster.as_ref().ok_or(EffectError { class: Class::Final, message })
    }

    pub(super) async fn pre_stop(
        &self,
        container: &str,
        id: &str,
        budget: Duration,
    ) -> Result<EffectOutput, EffectError> {
        let gone = || EffectError { class: Class::Gone, message: format!("{container} is gone") };
        let result = pre_stop::run(&self.client, &self.sandbox_id, id, budget).await?;
        Ok(match result.ok_or_else(gone)? {
            Ok(()) => EffectOutput::Nothing,
            Err(why) => EffectOutput::Remark(format!("preStop of {container} failed: {why}")),
        })
    }

    async fn replacement(
        &mut self,
        client: &Client,
        container: &str,
        source: &str,
        attempt: u32,
        image: Option<&ImageChoice>,
        limits: Option<&str>,
    ) -> Result<EffectOutput, EffectError> {
        let operation_id = self.operation_id.clone();
        let source_id = source;
        let user = self.image_user(container, image).await?;
        self.read_again(source_id).await;
        let newest = match limits {
            Some(id) => self.newest(container, id).await,
            None => None,
        };
        let source = self.source(source_id).await?;
        let mut config = source.replacement(attempt, image, &operation_id);
        if let Some(user) = user {
            user.give(&mut config);
        }
        if let Some(newest) = newest {
            newest.limit(&mut config);
        }
        if let Some(log) = source.termination_log() {
            let (file, of) = (log.old.display().to_string(), log.clone());
            match files::run_blocking(&file, move || files::make_termination_log(&of, attempt)).await {
                Ok(Some(fresh)) => log.replace_by(&fresh, &mut config),
                Ok(None) => UNSEEN.call_once(|| {
                    tracing::warn!(
                        container,
                        file,
                        "the kubelet's folder is not visible under its own path: a new container shares the \
                         termination message file of the old one"
                    );
                }),
                Err(error) => {
                    tracing::warn!(
                        container,
                        %error,
                        "a new termination message file cannot be created: the old file is used"
                    );
                }
            }
        }
        let (log_directory, log_path) =
            (self.sandbox().await?.log_directory.clone(), config.log_path.clone());
        let id = self.create(client, config).await?;
        let link = |id: &str| clone::legacy_log_link(&self.pod, container, id, &log_directory, &log_path);
        self.link =
            link(source_id).zip(link(&id)).map(|((old, _), (new, target))| Link { id, old, new, target });
        Ok(EffectOutput::Nothing)
    }

    /// Creates the symbolic link by which log shippers find a container. A kubelet creates such links only for
    /// containers that it starts itself; here one is created where they do (`link_like`). Called after the start,
    /// because an earlier call would prolong the downtime.
    async fn link_log(&mut self, operation: &Operation, container: &str, id: &str) {
        let link = match self.link.take_if(|link| link.id == id) {
            Some(link) => Some(link),
            None => self.link_of(operation, container, id).await,
        };
        let Some(link) = link else { return };
        self.linked.insert(id.to_owned());
        self.make_link(operation, container, link).await;
    }

    /// Creates the links of the new containers that this process has not started. Who started one may have died before it
    /// created the link: another process of this program, or a kubelet, which creates it only when it starts the
    /// container. The end of the operation does not wait for a runtime or a disk that hangs.
    pub(super) async fn link_others(&self, operation: &Operation) {
        let all = async {
            for target in &operation.targets {
                let Some(reached) = &target.reached else { continue };
                let (container, id) = (target.name.as_str(), reached.to.container_id.as_str());
                if !self.linked.contains(id)
                    && let Some(link) = self.link_of(operation, container, id).await
                {
                    self.make_link(operation, container, link).await;
                }
            }
        };
        let _ = tokio::time::timeout(LINK_LIMIT, all).await;
    }

    async fn make_link(&self, operation: &Operation, container: &str, link: Link) {
        let Link { old, new, target, .. } = link;
        let (file, by_kubelet) = (new.display().to_string(), !operation.unsupervised);
        let linked = move || files::link_like(&old, &new, &target, by_kubelet);
        if let Err(error) = files::run_blocking(&file, linked).await {
            tracing::warn!(pod = %self.pod, container, %error, "the symbolic link for log shippers could not be created");
        }
    }

    /// The link for a container whose creation was not answered, or not in this process.
    async fn link_of(&self, operation: &Operation, container: &str, id: &str) -> Option<Link> {
        let old =
            operation.targets.iter().find(|target| target.name == container)?.from.container_id.as_str();
        let log = match self.client.container(id, false).await {
            Ok(answer) => answer?.status?.log_path,
            Err(error) => {
                tracing::warn!(pod = %self.pod, container, %error, "a symbolic link for log shippers is missing");
                return None;
            }
        };
        // It is an absolute path.
        let link = |id: &str| clone::legacy_log_link(&self.pod, container, id, "/", &log);
        let ((old, _), (new, target)) = link(old).zip(link(id))?;
        Some(Link { id: id.to_owned(), old, new, target })
    }

    pub(super) async fn create(
        &mut self,
        client: &Client,
        config: v1::ContainerConfig,
    ) -> Result<String, EffectError> {
        let sandbox_id = self.sandbox_id.clone();
        let sandbox = self.sandbox().await?.clone();
        Ok(client.create(&sandbox_id, config, sandbox).await?)
    }

    async fn remove(&self, client: &Client, id: &str, what: Leftover) -> Result<EffectOutput, EffectError> {
        let log = match what {
            Leftover::Old => client.container(id, false).await?.and_then(|answer| answer.status),
            Leftover::NeverStarted => None,
            Leftover::Fence | Leftover::Standby => {
                fence::remove(client, id).await?;
                return Ok(EffectOutput::Nothing);
            }
        };
        client.remove(id).await?;
        // Without a kubelet nothing else rotates or removes the logs of a pod.
        if let Some(log) = log.filter(|status| !status.log_path.is_empty()) {
            files::remove(log.log_path.into()).await;
        }
        Ok(EffectOutput::Nothing)
    }

    /// The user of a clone of `container` from `image`, where its kubelet would take it from the image. `None` if the
    /// clone keeps the user of its source.
    pub(super) async fn image_user(
        &self,
        container: &str,
        image: Option<&ImageChoice>,
    ) -> Result<Option<ImageUser>, EffectError> {
        let from = self.users.get(container).copied().unwrap_or_default();
        let Some(image) = image.filter(|_| from != UserSource::Spec) else { return Ok(None) };
        let found = self.client.image(&image.id, false).await?.and_then(|answer| answer.image);
        let Some(found) = found else {
            let message = format!("the image {} ({}) is no longer on the node", image.reference, image.id);
            return Err(EffectError { class: Class::Gone, message });
        };
        let user = ImageUser::of(found);
        if from == UserSource::ImageNotRoot && user.may_be_root() {
            let message = format!(
                "the image {} runs as root, or its user is not a number: its kubelet refuses it (runAsNonRoot)",
                image.reference
            );
            return Err(EffectError { class: Class::Final, message });
        }
        Ok(Some(user))
    }

    /// The configuration of the container `id`, read once.
    pub(super) async fn source(&mut self, id: &str) -> Result<&Source, EffectError> {
        if !self.sources.contains_key(id) {
            let source = read_source(&self.client, id).await?;
            self.sources.insert(id.to_owned(), source);
        }
        let lost = || EffectError { class: Class::Gone, message: format!("container {id} is gone") };
        self.sources.get(id).ok_or_else(lost)
    }

    /// The configuration of the container `id`, for its limits. `None` if the container is gone or the runtime does not
    /// answer soon: the limits of the source are used, because the container is down.
    async fn newest(&self, container: &str, id: &str) -> Option<Source> {
        let why = match tokio::time::timeout(READ_AGAIN, read_source(&self.client, id)).await {
            Ok(Ok(newest)) => return Some(newest),
            Ok(Err(error)) => error.message,
            Err(_) => "the runtime did not answer in time".to_owned(),
        };
        tracing::warn!(
            pod = %self.pod,
            container,
            why,
            "the limits of the container that is taken back could not be read: a resize during its time is lost"
        );
        None
    }

    /// Reads the configuration again, to include changes since the first read, such as a resize during preStop or
    /// the stop. If the container is gone or the runtime does not answer soon, the earlier configuration is used.
    async fn read_again(&mut self, id: &str) {
        if !self.sources.contains_key(id) {
            return;
        }
        let reading = read_source(&self.client, id);
        if let Ok(Ok(source)) = tokio::time::timeout(READ_AGAIN, reading).await {
            self.sources.insert(id.to_owned(), source);
        }
    }

    /// The configuration of the sandbox, read once, passed back to the runtime unchanged.
    async fn sandbox(&mut self) -> Result<&v1::PodSandboxConfig, EffectError> {
        let config = if let Some(config) = self.sandbox.take() {
            config
        } else {
            read_sandbox(&self.client, &self.sandbox_id).await?
        };
        Ok(self.sandbox.insert(config))
    }
}

/// Runs a change through the API server, bounded by `limit`.
async fn bounded(
    limit: Duration,
    change: impl Future<Output = Result<(), cluster::error::Error>>,
) -> Result<EffectOutput, EffectError> {
    let Ok(changed) = tokio::time::timeout(limit, change).await else {
        let message = format!("the API server did not answer within {} s", limit.as_secs());
        return Err(EffectError { class: Class::Unavailable, message });
    };
    Ok(changed.map(|()| EffectOutput::Nothing)?)
}

/// Reads a container's configuration as the source of a clone.
pub(super) async fn read_source(client: &Client, id: &str) -> Result<Source, EffectError> {
    let gone = || EffectError { class: Class::Gone, message: format!("container {id} is gone") };
    let answer = client.container(id, true).await?.ok_or_else(gone)?;
    let status = answer.status.ok_or_else(gone)?;
    Source::read(&status, &answer.info)
        .map_err(|error| EffectError { class: Class::Final, message: error.to_string() })
}

/// Reads the configuration of a sandbox.
pub(super) async fn read_sandbox(client: &Client, id: &str) -> Result<v1::PodSandboxConfig, EffectError> {
    let gone = || EffectError { class: Class::Gone, message: "the sandbox is gone".to_owned() };
    let answer = client.sandbox(id, true).await?.ok_or_else(gone)?;
    clone::sandbox_config(&answer.info)
        .map_err(|error| EffectError { class: Class::Final, message: error.to_string() })
}

impl From<cluster::error::Error> for EffectError {
    fn from(error: cluster::error::Error) -> Self {
        Self { class: error.class(), message: error.to_string() }
    }
}
