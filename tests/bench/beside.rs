//! Part F: restarts beside a live kubelet, alternating with bare runtime calls for the same container, and
//! compared with the kubelet's own restart.

use std::thread;
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::status::{Engine, Phase};
use inplace::cri::client::Client;
use inplace::cri::clone::{self, Source};
use inplace::cri::endpoint::Endpoint;
use inplace::cri::proto::v1;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use crate::Scale;
use crate::agent::Agent;
use crate::cluster::{Cluster, block_on};
use crate::plot::{Figure, Figures};
use crate::pod::{Pod, container};
use crate::report::{Report, Samples};
use crate::test_node::{Instance, between};

/// Budget of the median restart, as a multiple of a bare stop, create and start.
const P50: f64 = 1.3;
/// Grace period of a stop.
const GRACE: Duration = Duration::from_secs(5);
/// The kubelet's longest back-off in this benchmark, with a reserve.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// How long a container runs before it is stopped again.
const LIFETIME: Duration = Duration::from_secs(3);
pub(crate) const SPEC: &str =
    "{terminationGracePeriodSeconds: 5, containers: [{name: app, image: lab/app:v1}]}";

/// Runs the part on a private Kubernetes. Returns the figures of the plot.
pub(crate) fn beside(scale: &Scale, report: &mut Report) -> Figures {
    report.title("F. Restarts beside a live kubelet, alternating with bare calls for the same container");
    let cluster = Cluster::own();
    let _agent = Agent::start(&cluster, &[]);
    let endpoint = Endpoint::parse(&cluster.node().endpoint).unwrap();
    let client = block_on(async { Client::new(&endpoint, None) });
    let [mut ours, mut bare, mut first, mut second] = <[Samples; 4]>::default();
    let pod = Pod::run(&cluster, "beside", SPEC);
    for cycle in 0..=scale.beside {
        let samples = [restart(&client, &pod, cycle), floor(&client, &pod, cycle)];
        // The first sample fills caches and is dropped.
        if cycle > 0 {
            ours.add_ms(samples[0]);
            bare.add_ms(samples[1]);
        }
    }
    // In parallel, because most of the time is waiting.
    let pods: Vec<_> = (0..scale.kubelets).map(|_| Pod::run(&cluster, "kubelets", SPEC)).collect();
    thread::scope(|scope| {
        let threads: Vec<_> = pods.iter().map(|pod| scope.spawn(|| stopped(&client, pod))).collect();
        for thread in threads {
            let [one, two] = thread.join().unwrap();
            first.add_ms(one);
            second.add_ms(two);
        }
    });
    report.distributions(
        "beside",
        &[
            ("inplace: old finished -> new started", &ours),
            ("bare: old finished -> stop, create, start -> new started", &bare),
            ("kubelet: StopContainer, for the first time", &first),
            ("kubelet: StopContainer again, 3 s later", &second),
        ],
    );
    report.title("   Ratios");
    let ratio = |value: f64| vec![format!("{value:.2}")];
    report.values(
        "beside ratios",
        &["", "x"],
        &[
            ("p50(inplace) / p50(bare)", ratio(ours.p50() / bare.p50())),
            ("p99(inplace) / p99(bare)", ratio(ours.p99() / bare.p99())),
            ("p50(kubelet, first) / p50(inplace)", ratio(first.p50() / ours.p50())),
            ("p50(kubelet, again) / p50(inplace)", ratio(second.p50() / ours.p50())),
        ],
    );
    report.budget("F beside the kubelet: p50, x bare stop, create, start", ours.p50() / bare.p50(), P50);
    let [kubernetes, containerd] = versions(&cluster, &client);
    Figures {
        kubernetes,
        containerd,
        inplace: figure(&ours),
        kubelet_first: figure(&first),
        kubelet_again: figure(&second),
    }
}

/// The versions of Kubernetes and containerd.
pub(crate) fn versions(cluster: &Cluster, client: &Client) -> [String; 2] {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let info = block_on(nodes.get(&cluster.node().name)).unwrap().status.unwrap().node_info.unwrap();
    [release(&info.kubelet_version), release(&block_on(client.version()).unwrap().version)]
}

/// A version without its prefix and without the suffix of a distribution.
fn release(version: &str) -> String {
    let version = version.trim_start_matches('v');
    version.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default().to_owned()
}

/// Whole milliseconds: more digits are noise.
fn figure(samples: &Samples) -> Figure {
    Figure { n: samples.count(), p50: samples.p50().round(), p99: samples.p99().round() }
}

/// Restarts through a request, and waits until the kubelet reports the new instance. Returns the downtime in
/// milliseconds.
pub(crate) fn restart(client: &Client, pod: &Pod<'_>, cycle: u32) -> f64 {
    let status = pod.ask(&format!("restart app #{cycle}"), Phase::Succeeded);
    let report = &status.containers[0];
    assert_eq!(report.engine, Engine::Recreate);
    let new = &report.to.as_ref().unwrap().container_id;
    reported(pod, new);
    between(instance(client, &report.from.container_id), instance(client, new))
}

/// Copies of a pod's container under a name that the kubelet ignores, made by bare calls.
pub(crate) struct Bare<'a> {
    client: &'a Client,
    source: Source,
    sandbox: String,
    sandbox_config: v1::PodSandboxConfig,
}

impl<'a> Bare<'a> {
    /// Reads the container that runs in the pod `uid`.
    pub(crate) async fn of(client: &'a Client, uid: &str) -> Self {
        let all = client.containers(Some((annotation::POD_UID, uid))).await.unwrap();
        let running = |container: &&v1::Container| container.state() == v1::ContainerState::ContainerRunning;
        let running = all.iter().find(running).unwrap();
        let answer = client.container(&running.id, true).await.unwrap().unwrap();
        let source = Source::read(&answer.status.unwrap(), &answer.info).unwrap();
        let sandbox = running.pod_sandbox_id.clone();
        let answer = client.sandbox(&sandbox, true).await.unwrap().unwrap();
        let sandbox_config = clone::sandbox_config(&answer.info).unwrap();
        Self { client, source, sandbox, sandbox_config }
    }

    /// Creates and starts copy `number`. Returns its ID.
    pub(crate) async fn start(&self, number: u32) -> String {
        let mut config = self.source.replacement(number, None, "bench");
        "bare".clone_into(&mut config.metadata.get_or_insert_default().name);
        config.labels.insert(annotation::CONTAINER_NAME.to_owned(), "bare".to_owned());
        config.labels.remove(annotation::OPERATION);
        config.log_path = format!("{number}.log");
        let id = self.client.create(&self.sandbox, config, self.sandbox_config.clone()).await.unwrap();
        self.client.start(&id).await.unwrap();
        id
    }

    pub(crate) async fn stop(&self, id: &str) {
        self.client.stop(id, GRACE).await.unwrap();
    }

    pub(crate) async fn remove(&self, id: &str) {
        self.client.remove(id).await.unwrap();
    }
}

/// The lower bound: a copy of the same container is created, then stopped and created again with nothing between the calls.
fn floor(client: &Client, pod: &Pod<'_>, cycle: u32) -> f64 {
    block_on(async {
        let bare = Bare::of(client, &pod.uid).await;
        let old = bare.start(2 * cycle).await;
        bare.stop(&old).await;
        let new = bare.start(2 * cycle + 1).await;
        let instances = [status(client, &old).await, status(client, &new).await];
        bare.stop(&new).await;
        for id in [old, new] {
            bare.remove(&id).await;
        }
        between(instances[0], instances[1])
    })
}

/// Stops the container twice and leaves its start to the kubelet.
fn stopped(client: &Client, pod: &Pod<'_>) -> [f64; 2] {
    [0, 1].map(|_| {
        thread::sleep(LIFETIME);
        let old = id(pod).unwrap();
        block_on(client.stop(&old, GRACE)).unwrap();
        let object = pod.wait_for(WAIT_LIMIT, "the kubelet has started it again", |object| {
            container(object, "app").is_some_and(|app| {
                app.ready && !app.container_id.as_ref().is_some_and(|id| id.ends_with(&old))
            })
        });
        let reported = container(&object, "app").unwrap().container_id.clone().unwrap();
        between(instance(client, &old), instance(client, reported.rsplit('/').next().unwrap()))
    })
}

/// The container id that the kubelet reports.
fn id(pod: &Pod<'_>) -> Option<String> {
    let object = pod.get();
    Some(container(&object, "app")?.container_id.as_ref()?.rsplit('/').next()?.to_owned())
}

fn reported(pod: &Pod<'_>, id: &str) {
    pod.wait("the kubelet reports it", |object| {
        container(object, "app").is_some_and(|app| {
            app.ready && app.container_id.as_ref().is_some_and(|reported| reported.ends_with(id))
        })
    });
}

fn instance(client: &Client, id: &str) -> Instance {
    block_on(status(client, id))
}

async fn status(client: &Client, id: &str) -> Instance {
    let status = client.container(id, false).await.unwrap().unwrap().status.unwrap();
    Instance { started_at: status.started_at, finished_at: status.finished_at }
}
