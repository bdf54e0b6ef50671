//! Tests of the complete agent in a cluster, between a fake runtime and a fake API server that misbehave on demand.
//!
//! Each agent has its own thread and executor, which end with it as those of a process do.

mod annotations;
mod answers;
mod confined;
mod crio;
mod drains;
mod failures;
mod full_journal;
mod gates;
mod groups;
mod hook_runs;
mod identity;
mod many_operations;
mod pod_deletion;
mod prefetch;
mod requests;
mod traces;
mod unreachable_server;
mod users;

use std::thread::JoinHandle;

use clap::Parser;
use inplace::agent;
use inplace::api::annotation;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::api_server::{ApiServer, Store, pods};
use super::runtime::{Fake, Pod};

/// The node with its runtime, the API server, and the agent's state directory.
struct Fixture {
    runtime: Fake,
    api: ApiServer,
    state: tempfile::TempDir,
}

/// A running agent; killed when it is dropped.
struct Agent {
    stop: CancellationToken,
    kill: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    args: agent::Args,
}

impl Fixture {
    async fn found() -> Self {
        let (runtime, api) = (Fake::start().await, ApiServer::start().await);
        runtime.model(|model| model.remote_image("img:v2").size = 1 << 20);
        Self { runtime, api, state: tempfile::tempdir().unwrap() }
    }

    /// Creates a running pod `shop/NAME` with one container, on the node and at the API server, with an open gate.
    fn pod(&self, name: &str) {
        self.pod_with(name, |pod| close(pod, "True", annotation::GATE_READY));
    }

    /// The same without a condition of the gate; `change` is applied before the pod is stored.
    fn pod_with(&self, name: &str, change: impl FnOnce(&mut Value)) {
        self.made(name, Pod::new("shop", name), change);
    }

    fn made(&self, name: &str, pod: Pod, change: impl FnOnce(&mut Value)) {
        let made = self.runtime.put(pod.container("app", "img:v1").grace(1));
        let mut pod = pods::pod("shop", name, "node-1");
        pod["metadata"]["uid"] = json!(made.uid);
        pod["metadata"]["annotations"] = json!({});
        pod["spec"]["containers"][0]["image"] = json!("img:v1");
        show(&mut pod, made.id("app"), 0);
        change(&mut pod);
        self.api.put(pod);
    }

    /// Reports every new container instance as a kubelet does, for as long as the test lasts.
    fn kubelet(self: &std::sync::Arc<Self>, name: &'static str) {
        let (fixture, what) = (std::sync::Arc::clone(self), format!("{name}/app"));
        // Not in the task: that may begin only when an agent has replaced the instance.
        let mut shown = self.runtime.only(&what).id;
        tokio::spawn(async move {
            loop {
                let newest = |model: &super::runtime::Model| {
                    model.running(&what).first().map(|instance| (instance.id.clone(), instance.attempt()))
                };
                let mut found = None;
                fixture
                    .runtime
                    .until("another instance", |model| {
                        found = newest(model).filter(|(id, _)| *id != shown);
                        found.is_some()
                    })
                    .await;
                let (id, attempt) = found.unwrap();
                fixture.api.edit("shop", name, |pod| show(pod, &id, attempt));
                shown = id;
            }
        });
    }

    /// Starts an agent, and waits until it has listed the pods.
    async fn agent(&self) -> Agent {
        self.agent_with(&[]).await
    }

    /// The same with additional flags.
    async fn agent_with(&self, flags: &[&str]) -> Agent {
        let watches = self.api.count("WATCH pods");
        let agent = self.spawn(flags);
        self.api.arrived("WATCH pods", watches + 1).await;
        agent
    }

    /// Starts an agent without waiting for it, for example while the API server is unreachable.
    fn agent_in_the_dark(&self) -> Agent {
        self.spawn(&[])
    }

    fn spawn(&self, flags: &[&str]) -> Agent {
        let (kubeconfig, state) = (self.api.kubeconfig(), self.state.path().to_owned());
        let endpoint = self.runtime.endpoint();
        let has_reserve = flags.iter().any(|flag| flag.starts_with("--image-reserve"));
        let reserve: &[&str] = if has_reserve { &[] } else { &["--image-reserve=0"] };
        let line = [
            "agent",
            "--node-name=node-1",
            "--listen=127.0.0.1:0",
            &format!("--kubeconfig={}", kubeconfig.display()),
            &format!("--state-dir={}", state.display()),
            &format!("--runtime-endpoint={endpoint}"),
        ];
        let CommandLine { args } = CommandLine::try_parse_from([&line, reserve, flags].concat()).unwrap();
        let (stop, kill) = (CancellationToken::new(), CancellationToken::new());
        let tokens = (stop.clone(), kill.clone());
        let thread = std::thread::spawn(move || {
            let process = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            process.block_on(async {
                tokio::select! {
                    () = tokens.1.cancelled() => {}
                    ended = agent::run_until(args, tokens.0) => ended.unwrap(),
                }
            });
        });
        Agent { stop, kill, thread: Some(thread) }
    }

    /// Sets or removes the request annotation, as a user does.
    fn pod_request(&self, name: &str, request: Option<&str>) {
        self.api.edit("shop", name, |pod| {
            pod["metadata"]["annotations"][annotation::REQUEST] = json!(request);
            if request.is_none() {
                pod["metadata"]["annotations"].as_object_mut().unwrap().remove(annotation::REQUEST);
            }
        });
    }

    fn status(&self, name: &str) -> Option<Value> {
        status(&self.api.pod("shop", name))
    }

    /// Waits until the pod has a status with `phase` and an id that begins with `id`; returns it.
    async fn reported(&self, name: &str, id: &str, phase: &str) -> Value {
        let fits = |store: &Store| {
            let status = status(&store.pod("shop", name)?)?;
            let fits = status["id"].as_str()?.starts_with(id) && status["phase"] == phase;
            fits.then_some(status)
        };
        let mut found = None;
        self.api
            .until(&format!("{name}: {id} {phase}"), |store| {
                found = fits(store);
                found.is_some()
            })
            .await;
        found.unwrap()
    }

    /// Waits until this many events were written, and returns their reasons.
    async fn events(&self, count: usize) -> Vec<String> {
        self.api.until(&format!("{count} events"), |store| store.events.len() >= count).await;
        let reason = |event: &Value| event["reason"].as_str().unwrap().to_owned();
        self.api.events().iter().map(reason).collect()
    }

    fn attempt(&self, name: &str) -> u32 {
        self.runtime.only(&format!("{name}/app")).attempt()
    }
}

impl Agent {
    /// Ends the agent as SIGKILL does.
    fn kill(mut self) {
        self.end();
    }

    /// Ends the agent as SIGTERM does; returns when it has ended by itself.
    fn stop(mut self) {
        self.stop.cancel();
        self.thread.take().unwrap().join().unwrap();
    }

    fn end(&mut self) {
        self.kill.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            // A second panic during a failing test would only hide the first one.
            assert!(ended.is_ok() || std::thread::panicking(), "the agent has failed");
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// Writes the container's id and restart count to the pod's status, as its kubelet does.
fn show(pod: &mut Value, id: &str, attempt: u32) {
    let reported = &mut pod["status"]["containerStatuses"][0];
    reported["containerID"] = json!(format!("containerd://{id}"));
    reported["restartCount"] = json!(attempt);
}

/// Adds the condition of the gate to the pod's status.
fn close(pod: &mut Value, status: &str, reason: &str) {
    let condition = json!({ "type": annotation::GATE, "status": status, "reason": reason,
        "lastTransitionTime": "2026-11-20T10:00:05Z" });
    pod["status"]["conditions"].as_array_mut().unwrap().push(condition);
}

fn status(pod: &Value) -> Option<Value> {
    serde_json::from_str(pod["metadata"]["annotations"][annotation::STATUS].as_str()?).ok()
}

/// Status and reason of the gate's condition; `None` if the pod does not have it.
fn gate(pod: &Value) -> Option<(&str, &str)> {
    let mut conditions = pod["status"]["conditions"].as_array()?.iter();
    let gate = conditions.find(|condition| condition["type"] == annotation::GATE)?;
    Some((gate["status"].as_str()?, gate["reason"].as_str()?))
}
