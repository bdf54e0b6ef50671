//! Beside a simulated kubelet: the fence holds the name, and the kubelet's second container never runs.
//!
//! The pod has a kubelet's labels and annotations and is created directly on the runtime. A thread acts like a
//! kubelet: it observes the newest container, and if that does not run, creates and starts the next attempt.

use std::{
    cell::Cell,
    fs,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use inplace::{
    api::{annotation, manifest::Manifest, status::Phase},
    cri::{
        client::Client,
        clone::{Source, sandbox_config},
        endpoint::Endpoint,
        error::{Error, is_canceled_start},
        proto::v1::{Container, ContainerState, ContainerStatus, PodSandboxConfig},
    },
    failure::Class,
    node::launch::{self, Dirs},
};
use tempfile::TempDir;
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, timeout},
};

use crate::{
    pod::{Ended, wrapped},
    support::wait::eventually,
    support::{hold::Holds, lab::Lab},
};

/// A pod that appears to be created by a kubelet.
struct Kubelets {
    lab: &'static Lab,
    tokio: Runtime,
    state: TempDir,
    name: &'static str,
    uid: String,
    sandbox: String,
    /// A start was canceled: containerd may have left its process running, and then removes neither it nor its sandbox. The
    /// lab ends both.
    may_leave_a_process: Cell<bool>,
}

impl Kubelets {
    fn make(name: &'static str) -> Self {
        let (lab, tokio) = (Lab::shared(), Builder::new_current_thread().enable_all().build().unwrap());
        let state = tempfile::tempdir().unwrap();
        let image = lab.image("app:v1");
        let manifest = Manifest::parse(&format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 3, \
             containers: [{{name: app, image: '{image}'}}]}}}}"
        ))
        .unwrap();
        let (uid, dirs) = (format!("uid-{name}"), Dirs::new(state.path().to_owned()).unwrap());
        let sandbox = tokio.block_on(async {
            let client = client(lab);
            let mut config = launch::sandbox_config(&manifest, &uid, &dirs);
            config.labels.remove(annotation::NODE_RUN);
            config.annotations.insert(annotation::CONFIG_SOURCE.to_owned(), "api".to_owned());
            fs::create_dir_all(&config.log_directory).unwrap();
            client.pull(&image, None, Duration::from_secs(60)).await.unwrap();
            let id = client.image(&image, false).await.unwrap().unwrap().image.unwrap().id;
            let sandbox = client.run_sandbox(config.clone()).await.unwrap();
            let app = launch::container_config(&manifest, &manifest.containers[0], &id, &uid, &dirs);
            fs::create_dir_all(format!("{}/app", config.log_directory)).unwrap();
            let app = client.create(&sandbox, app, config).await.unwrap();
            client.start(&app).await.unwrap();
            sandbox
        });
        Self { lab, tokio, state, name, uid, sandbox, may_leave_a_process: Cell::new(false) }
    }

    fn program(&self, args: &[&str]) -> std::process::Command {
        let pod = format!("default/{}", self.name);
        let mut all = vec!["node", args[0], "-o", "json", "--pod", &pod];
        all.extend(&args[1..]);
        wrapped(self.lab, self.state.path(), &all)
    }

    /// Creates `attempt` as a kubelet does, and returns its ID.
    fn create(&self, attempt: u32) -> String {
        let source = &self.containers().0[0].id;
        let made = async {
            let client = client(self.lab);
            let configuration = Configuration::read(&client, &self.sandbox, source).await;
            configuration.create(&client, attempt).await
        };
        self.tokio.block_on(made).unwrap()
    }

    fn status(&self, id: &str) -> ContainerStatus {
        let answer = self.tokio.block_on(async { client(self.lab).container(id, false).await });
        answer.unwrap().unwrap().status.unwrap()
    }

    /// All containers, and the fences.
    fn containers(&self) -> (Vec<Container>, Vec<Container>) {
        let label = Some((annotation::POD_UID, self.uid.as_str()));
        let all = self.tokio.block_on(async { client(self.lab).containers(label).await }).unwrap();
        all.into_iter().partition(|one| one.labels[annotation::CONTAINER_NAME] != annotation::FENCE_NAME)
    }

    /// Asserts, by the runtime's own times, that no two instances have run at the same moment.
    fn one_at_a_time(&self) {
        let instances = self.containers().0;
        let mut spans = self.tokio.block_on(async {
            let client = client(self.lab);
            let mut spans = Vec::new();
            for instance in &instances {
                // The other thread's container may be removed meanwhile.
                let answer = client.container(&instance.id, false).await.unwrap();
                spans.extend(answer.and_then(|answer| answer.status).map(|status| {
                    let end = if status.finished_at == 0 { i64::MAX } else { status.finished_at };
                    (status.started_at, end)
                }));
            }
            spans
        });
        spans.retain(|(started, _)| *started != 0);
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{spans:?}");
    }

    fn running(&self) -> usize {
        let running = i32::from(ContainerState::ContainerRunning);
        self.containers().0.iter().filter(|instance| instance.state == running).count()
    }
}

impl Drop for Kubelets {
    fn drop(&mut self) {
        let ended = self.tokio.block_on(async {
            let client = client(self.lab);
            client.stop_sandbox(&self.sandbox).await?;
            client.remove_sandbox(&self.sandbox).await
        });
        let is_left = |error: &Error| {
            self.may_leave_a_process.get() && error.message.contains("cannot delete running task")
        };
        let has_ended = ended.is_ok() || ended.as_ref().is_err_and(is_left);
        assert!(thread::panicking() || has_ended, "{ended:?}");
    }
}

fn client(lab: &Lab) -> Client {
    Client::new(&Endpoint::parse(&lab.endpoint).unwrap(), None)
}

/// What a kubelet knows of a container and its pod before it looks at the runtime.
struct Configuration {
    sandbox: String,
    pod: PodSandboxConfig,
    container: Source,
}

impl Configuration {
    async fn read(client: &Client, sandbox: &str, container: &str) -> Self {
        let answer = client.container(container, true).await.unwrap().unwrap();
        let container = Source::read(&answer.status.unwrap(), &answer.info).unwrap();
        let answer = client.sandbox(sandbox, true).await.unwrap().unwrap();
        let pod = sandbox_config(&answer.info).unwrap();
        Self { sandbox: sandbox.to_owned(), pod, container }
    }

    /// Creates `attempt` and starts it, as a kubelet does.
    async fn make(&self, client: &Client, attempt: u32) -> Result<String, Class> {
        let id = self.create(client, attempt).await?;
        client.start(&id).await.map_err(|error| error.class).map(|()| id)
    }

    /// The same without the start.
    async fn create(&self, client: &Client, attempt: u32) -> Result<String, Class> {
        let mut config = self.container.replacement(attempt, None, "");
        config.labels.remove(annotation::OPERATION);
        client.create(&self.sandbox, config, self.pod.clone()).await.map_err(|error| error.class)
    }
}

#[test]
fn the_attempt_after_next_is_held_until_the_new_one_runs() {
    let pod = Kubelets::make("fenced");
    let holds = Holds::below(pod.state.path());
    holds.set(&pod.uid, "before effect Stop");
    let mut restart = pod.program(&["restart", "-c", "app"]);
    restart.env("INPLACE_FAULT_HOLD", holds.folder());
    let restart = thread::spawn(move || Ended::of(&restart.output().unwrap()));
    eventually("the stop to be next", || holds.held(&pod.uid));
    let (instances, fences) = pod.containers();
    assert_eq!(
        instances.len(),
        1,
        "nothing is created beside a running container of a kubelet: {instances:?}"
    );
    let make_next = async || {
        let client = client(pod.lab);
        Configuration::read(&client, &pod.sandbox, &instances[0].id).await.make(&client, 2).await
    };
    let refused = pod.tokio.block_on(make_next());
    assert_eq!(refused, Err(Class::NameTaken));
    assert_eq!(fences[0].metadata.as_ref().unwrap().attempt, 2);
    holds.release();
    let status = restart.join().unwrap().is(Phase::Succeeded);
    assert_eq!(status.containers[0].to.as_ref().unwrap().attempt, 1);
    assert!(pod.containers().1.is_empty() && pod.running() == 1);
    // The name is free again.
    let made = pod.tokio.block_on(make_next());
    assert!(made.is_ok(), "{made:?}");
}

#[test]
fn beside_a_kubelet_that_races_one_container_runs() {
    let pod = Kubelets::make("raced");
    let kubelet = Kubelet::watch(&pod);
    let restarted = |attempt: u32, output: &Output| {
        let status = Ended::of(output).is(Phase::Succeeded);
        assert_eq!(status.containers[0].to.as_ref().unwrap().attempt, attempt, "{status:?}");
        assert_eq!(pod.running(), 1, "{:?}", pod.containers());
        pod.one_at_a_time();
    };
    for attempt in 1..=8 {
        restarted(attempt, &pod.program(&["restart", "-c", "app"]).output().unwrap());
    }

    // Once more; this time the kubelet surely comes between the creation of the replacement and its start.
    let holds = Holds::below(pod.state.path());
    holds.set(&pod.uid, "before effect Start");
    kubelet.pause(true);
    let mut restart = pod.program(&["restart", "-c", "app"]);
    let output = thread::spawn({
        restart.env("INPLACE_FAULT_HOLD", holds.folder());
        move || restart.output().unwrap()
    });
    eventually("the replacement to be created", || holds.held(&pod.uid));
    let before = kubelet.refused();
    kubelet.pause(false);
    eventually("the fence to have the name", || (kubelet.refused() > before).then_some(()));
    holds.release();
    restarted(9, &output.join().unwrap());
    kubelet.end();
    assert!(pod.containers().1.is_empty() && pod.running() == 1, "{:?}", pod.containers());
}

#[test]
fn the_image_of_a_kubelets_pod_is_not_ours_to_change() {
    let pod = Kubelets::make("owned");
    let image = format!("app={}", pod.lab.image("app:v2"));
    let status = Ended::of(&pod.program(&["swap", &image]).output().unwrap()).is(Phase::Refused);
    assert_eq!(status.reason, "KubeletNamesImages");
    assert_eq!((pod.containers().0.len(), pod.running()), (1, 1));
}

/// Each limit ends the wait in another part of the start.
#[test]
fn a_start_goes_on_when_its_caller_stops_waiting() {
    let pod = Kubelets::make("unhurried");
    for attempt in 1..=40_u32 {
        let id = pod.create(attempt);
        let limit = Duration::from_millis(2 * u64::from(attempt));
        let started = pod.tokio.block_on(async { client(pod.lab).within(limit).start(&id).await });
        assert!(started.as_ref().err().is_none_or(|error| error.class == Class::Unavailable), "{started:?}");
        eventually("it runs", || (pod.status(&id).state() == ContainerState::ContainerRunning).then_some(()));
        let removed = pod.tokio.block_on(async { client(pod.lab).remove(&id).await });
        assert!(removed.is_ok(), "after {} ms: {removed:?}", 2 * attempt);
    }
}

/// A kubelet that is killed cancels the starts that it has requested. The agent distinguishes them by their error from those
/// that fail because of the image (`lost_start` in `operation::replace`).
#[test]
fn a_start_whose_caller_ends_is_reported_as_canceled() {
    let pod = Kubelets::make("abandoned");
    pod.may_leave_a_process.set(true);
    let mut canceled = 0;
    for attempt in 1..=40_u32 {
        let id = pod.create(attempt);
        let caller = Builder::new_current_thread().enable_all().build().unwrap();
        let limit = Duration::from_millis(2 * u64::from(attempt));
        let answer = caller.block_on(async {
            let client = client(pod.lab);
            // The connection is open before the start is requested.
            client.container(&id, false).await.unwrap();
            timeout(limit, client.start(&id)).await
        });
        // This closes the connection of the caller.
        drop(caller);
        // A request that did not arrive is made again. After one that did, this one is refused.
        drop(pod.tokio.block_on(async { client(pod.lab).start(&id).await }));
        let status = eventually("the start has ended", || {
            Some(pod.status(&id)).filter(|status| status.state() != ContainerState::ContainerCreated)
        });
        if status.started_at == 0 {
            canceled += 1;
            let end = (status.exit_code, status.reason.as_str(), is_canceled_start(&status.message));
            assert_eq!(end, (128, "StartError", true), "{answer:?}: {status:?}");
        }
    }
    assert!(canceled > 0);
}

/// A kubelet acts on what it has seen a moment ago: a fence stays for 250 ms after the start.
const OUTDATED: Duration = Duration::from_millis(100);

/// A thread that restarts a container that does not run.
struct Kubelet {
    signals: Arc<Signals>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Signals {
    stop: AtomicBool,
    pause: AtomicBool,
    /// How often the runtime refused it a container after one that was created and not started: the fence had the name.
    refused: AtomicU32,
}

impl Kubelet {
    fn watch(pod: &Kubelets) -> Self {
        let (lab, uid) = (pod.lab, pod.uid.clone());
        let source = &pod.containers().0[0].id;
        let configuration =
            pod.tokio.block_on(async { Configuration::read(&client(lab), &pod.sandbox, source).await });
        let signals = Arc::<Signals>::default();
        let own = Arc::clone(&signals);
        let thread = thread::spawn(move || {
            let tokio = Builder::new_current_thread().enable_all().build().unwrap();
            tokio.block_on(async {
                let client = client(lab);
                while !own.stop.load(Ordering::Relaxed) {
                    let listed_at = Instant::now();
                    let mut all = client.containers(Some((annotation::POD_UID, &uid))).await.unwrap();
                    all.retain(|one| one.labels[annotation::CONTAINER_NAME] == "app");
                    let newest = all.into_iter().max_by_key(|one| one.created_at).unwrap();
                    let runs = newest.state == i32::from(ContainerState::ContainerRunning);
                    if runs || own.pause.load(Ordering::Relaxed) {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        continue;
                    }
                    let attempt = newest.metadata.as_ref().unwrap().attempt + 1;
                    if listed_at.elapsed() > OUTDATED {
                        continue;
                    }
                    let made = configuration.make(&client, attempt).await;
                    if made == Err(Class::NameTaken) && newest.state() == ContainerState::ContainerCreated {
                        own.refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        });
        Self { signals, thread }
    }

    /// Makes it only watch, or lets it act again.
    fn pause(&self, pause: bool) {
        self.signals.pause.store(pause, Ordering::Relaxed);
    }

    fn refused(&self) -> u32 {
        self.signals.refused.load(Ordering::Relaxed)
    }

    fn end(self) {
        self.signals.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}
