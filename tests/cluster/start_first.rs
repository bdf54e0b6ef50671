//! `order: StartFirst` beside a real kubelet: a client that never stops asking notices nothing, and a container that
//! cannot run beside the old one is not felt either.

#![expect(clippy::print_stderr, reason = "figures for whoever reads the log")]

mod proof;
mod refused;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use inplace::api::status::{Engine, Phase, Status, Step};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    cluster::{Cluster, block_on},
    pod::{Pod, is_ready},
    request::{adopted, request, restored},
    support::release::{self, SIDECARS_SINCE},
    support::wait::eventually,
    traffic::now,
};

/// A server that shares its port. A connection that waits in the queue of a listener that ends goes to another one.
pub(crate) const SHARED: &str = "
terminationGracePeriodSeconds: 5
securityContext: {sysctls: [{name: net.ipv4.tcp_migrate_req, value: '1'}]}
containers:
- name: app
  image: lab/app:v1
  command: [serve, '8080']
  ports: [{containerPort: 8080}]
  readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
";

/// The same server without `SO_REUSEPORT`.
const ALONE: &str = "
terminationGracePeriodSeconds: 5
containers:
- name: app
  image: lab/app:v1
  command: [serve, '8080', alone]
  ports: [{containerPort: 8080}]
";

/// The same server; in its image v2, each instance after the first one exits.
const ONCE: &str = "
terminationGracePeriodSeconds: 5
securityContext: {sysctls: [{name: net.ipv4.tcp_migrate_req, value: '1'}]}
containers:
- name: app
  image: lab/app:v1
  command:
  - sh
  - -c
  - |
    if grep -q v2 /etc/version; then
      [ ! -e /dev/shm/began ] || exit 3
      touch /dev/shm/began
    fi
    exec serve 8080
  ports: [{containerPort: 8080}]
  readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
";

/// The same server; in its image v2, each instance after the first one never becomes Ready.
const UNREADY: &str = "
terminationGracePeriodSeconds: 5
securityContext: {sysctls: [{name: net.ipv4.tcp_migrate_req, value: '1'}]}
containers:
- name: app
  image: lab/app:v1
  command:
  - sh
  - -c
  - |
    if grep -q v1 /etc/version || [ ! -e /dev/shm/began ]; then touch /tmp/ready; fi
    if grep -q v2 /etc/version; then touch /dev/shm/began; fi
    exec serve 8080
  ports: [{containerPort: 8080}]
  readinessProbe:
    exec: {command: [test, -e, /tmp/ready]}
    periodSeconds: 1
    timeoutSeconds: 30
    failureThreshold: 1
";

/// A native sidecar that serves, beside a container that uses no port.
const SIDECAR: &str = "
terminationGracePeriodSeconds: 5
securityContext: {sysctls: [{name: net.ipv4.tcp_migrate_req, value: '1'}]}
initContainers:
- name: side
  image: lab/app:v1
  command: [serve, '8080']
  restartPolicy: Always
  ports: [{containerPort: 8080}]
  readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
containers:
- {name: app, image: lab/app:v1}
";

/// How many requests are sent at the same time.
const AT_ONCE: usize = 2;
/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(10);
/// Time limit of an operation in which a standby and then a new instance have [`READY_TIMEOUT`].
const BOTH: Duration = Duration::from_secs(300);
/// In seconds. The probe of a standby is a process in it, which starts late on a busy machine.
const READY_TIMEOUT: u32 = 60;
/// Pause of a sender between two requests, so that the load of several clients leaves the machine to the kubelet.
const PAUSE: Duration = Duration::from_millis(10);

/// A client that sends request after request, each over a connection of its own, until it is stopped.
pub(crate) struct Client {
    stop: Arc<AtomicBool>,
    answers: Arc<Mutex<Vec<Answer>>>,
    senders: Vec<JoinHandle<()>>,
}

/// The version that answered, or why none did.
struct Answer {
    at: Timestamp,
    version: Result<String, String>,
}

impl Client {
    /// Begins to send requests, and waits for the first answers.
    pub(crate) fn of(pod: &Pod<'_>) -> Self {
        Self::at(&pod.facts().ip)
    }

    /// The same for the pod with this address.
    pub(crate) fn at(ip: &str) -> Self {
        let address: SocketAddr = format!("{ip}:8080").parse().unwrap();
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let sender = |_| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let version = ask(address).map_err(|error| error.to_string());
                    answers.lock().unwrap().push(Answer { at: now(), version });
                    thread::sleep(PAUSE);
                }
            })
        };
        let client = Self { senders: (0..AT_ONCE).map(sender).collect(), stop, answers };
        eventually("the first answers", || client.count().checked_sub(AT_ONCE));
        client
    }

    fn count(&self) -> usize {
        self.answers.lock().unwrap().len()
    }

    /// Stops, and asserts that every request was answered. Prints the number of requests and the largest gap.
    pub(crate) fn was_always_served(mut self, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        self.senders.drain(..).for_each(|sender| sender.join().unwrap());
        let answers = std::mem::take(&mut *self.answers.lock().unwrap());
        let failure = |answer: &Answer| Some(format!("{}: {}", answer.at, answer.version.as_ref().err()?));
        let failed: Vec<_> = answers.iter().filter_map(failure).collect();
        let gaps = answers.iter().zip(answers.iter().skip(1));
        let gap = gaps.map(|(one, next)| next.at.duration_since(one.at)).max().unwrap_or_default();
        eprintln!(
            "{what}: {} requests, {} failed, largest gap {} ms",
            answers.len(),
            failed.len(),
            gap.as_millis()
        );
        assert!(failed.is_empty(), "{what}: {} of {} failed: {failed:?}", failed.len(), answers.len());
    }

    /// Waits until `version` answers.
    pub(crate) fn awaits(&self, version: &str) {
        eventually(&format!("an answer of {version}"), || {
            let answers = self.answers.lock().unwrap();
            answers.last()?.version.as_ref().ok().filter(|last| *last == version).map(drop)
        });
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.senders.drain(..).for_each(|sender| drop(sender.join()));
    }
}

pub(crate) fn ask(address: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let body = text.strip_prefix("HTTP/1.0 200 OK").and_then(|text| text.split("\r\n\r\n").nth(1));
    body.map(|body| body.trim().to_owned()).ok_or_else(|| std::io::Error::other(format!("answer {text:?}")))
}

/// Replaces a container, first a standby.
pub(crate) fn start_first(
    pod: &Pod<'_>,
    target: (&str, Option<&str>),
    mut more: Value,
    phase: Phase,
) -> Status {
    more["order"] = json!("StartFirst");
    pod.ask(&request(pod.cluster, &[target], more), phase)
}

#[test]
fn a_client_that_never_stops_asking_notices_neither_a_restart_nor_a_swap() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "served", SHARED);
    let client = Client::of(&pod);
    for (round, image) in
        [None, Some("lab/app:v2"), None, Some("lab/app:v1"), Some("lab/app:v2")].into_iter().enumerate()
    {
        let before = pod.facts().settled().running("app").clone();
        let status = start_first(&pod, ("app", image), json!({}), Phase::Succeeded);
        assert_eq!(
            status.containers[0].engine,
            if image.is_some() { Engine::Respec } else { Engine::Recreate }
        );
        let now = pod.facts().settled().running("app").clone();
        assert_ne!(now.id, before.id, "{round}");
        let tag = image.map_or(before.version.as_str(), |image| image.rsplit_once(':').unwrap().1);
        assert_eq!(now.version, tag, "{round}");
        client.awaits(tag);
        adopted(&pod, "app", &format!("lab/app:{tag}"));
    }
    client.was_always_served("restarts and swaps");
}

#[test]
fn what_cannot_run_beside_the_old_one_is_not_felt() {
    Agent::shared();
    let pod = Pod::run(Cluster::shared(), "unshared", ALONE);
    let client = Client::of(&pod);
    let before = pod.facts().settled();
    for image in [None, Some("lab/app:v2"), Some("lab/app:crash")] {
        let status = start_first(&pod, ("app", image), json!({}), Phase::Failed);
        assert_eq!(
            (status.reason.as_str(), status.step),
            ("NotStartedBeside", Some(Step::Standby)),
            "{status:#?}"
        );
        assert!(status.message.ends_with("The running containers were not touched"), "{}", status.message);
        eventually("an event with the message", || {
            pod.events().into_iter().find(|event| event.message.as_ref() == Some(&status.message)).map(drop)
        });
        eprintln!("{image:?}: {}", status.message);
        assert_eq!(pod.facts(), before);
    }
    assert!(pod.seen().versions().skip_while(|version| !is_ready(version)).all(is_ready));
    client.was_always_served("no standby");
}

#[test]
fn a_native_sidecar_and_the_container_beside_it_are_replaced_one_after_the_other() {
    let cluster = Cluster::shared();
    let version = block_on(cluster.client.apiserver_version()).unwrap().git_version;
    if !release::has("native sidecars", SIDECARS_SINCE, &version) {
        return;
    }
    Agent::shared();
    let pod = Pod::run(cluster, "sidecar", SIDECAR);
    let client = Client::of(&pod);
    for (name, other, image) in [
        ("side", "app", None),
        ("side", "app", Some("lab/app:v2")),
        ("side", "app", None),
        ("app", "side", None),
        ("app", "side", Some("lab/app:v2")),
        ("side", "app", Some("lab/app:v1")),
    ] {
        let before = pod.facts().settled();
        let status = start_first(&pod, (name, image), json!({}), Phase::Succeeded);
        let engine = if image.is_some() { Engine::Respec } else { Engine::Recreate };
        assert_eq!(status.containers[0].engine, engine, "{name} {image:?}");
        let after = pod.facts().settled();
        assert_ne!(after.running(name).id, before.running(name).id, "{name} {image:?}");
        assert_eq!(after.running(other), before.running(other), "{name} {image:?}");
        let tag =
            image.map_or(before.running(name).version.as_str(), |image| image.rsplit_once(':').unwrap().1);
        assert_eq!(after.running(name).version, tag, "{name} {image:?}");
        client.awaits(&after.running("side").version);
        adopted(&pod, name, &format!("lab/app:{tag}"));
    }
    client.was_always_served("a native sidecar and the container beside it");
}

#[test]
fn an_image_whose_standby_serves_and_whose_container_fails_is_rolled_back_and_that_is_not_felt() {
    Agent::shared();
    for (name, spec) in [("once", ONCE), ("unready", UNREADY)] {
        let pod = Pod::run(Cluster::shared(), name, spec);
        let client = Client::of(&pod);
        let before = pod.facts().settled().running("app").clone();
        let more = json!({"order": "StartFirst", "readyTimeoutSeconds": READY_TIMEOUT});
        let swap = request(pod.cluster, &[("app", Some("lab/app:v2"))], more);
        let status = pod.answer_within(BOTH, &pod.request(&swap));
        assert_eq!(status.phase, Phase::RolledBack, "{name}: {status:#?}");
        eprintln!("{name}: {} {}", status.reason, status.message);
        let instance = restored(&pod, &status.containers[0], "lab/app:v1");
        assert_eq!(instance.version, "v1", "{name}");
        assert_ne!(instance.id, before.id, "{name}");
        client.awaits("v1");
        client.was_always_served(name);
    }
}
