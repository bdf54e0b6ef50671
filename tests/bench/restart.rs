//! Parts A and B: restarts by the engine, alternating with bare runtime calls.

use std::time::Duration;

use inplace::api::annotation;
use inplace::api::status::Phase;
use inplace::cri::clone::{self, Source};
use inplace::cri::proto::v1;
use inplace::node::launch::Started;
use tokio::time::Instant;

use crate::Scale;
use crate::parts::{self, Parts};
use crate::report::{Report, Samples};
use crate::test_node::{TestNode, between};

/// Budgets of a restart: p50 and p99, as multiples of a bare create and start.
const P50: f64 = 1.3;
const P99: f64 = 2.5;
/// Grace period of a stop.
const GRACE: Duration = Duration::from_secs(5);

/// Part A: one restart after the other.
pub(crate) async fn many(test_node: &TestNode, scale: &Scale, report: &mut Report) {
    report.title("A. Restarts by the engine, alternating with bare calls for the same container");
    let pod = test_node.pod("restart", &test_node.lab.image("app:v1")).await;
    let mut run = Run::new(test_node, &pod).await;
    run.cycle().await;
    let mut run = Run { seen: Seen::default(), ..run };
    for _ in 0..scale.restarts {
        run.cycle().await;
    }
    let Seen { downtime, raw, create, start, floor, whole, parts } = &run.seen;
    report.distributions(
        "restart",
        &[
            ("engine: old finished -> new started", downtime),
            ("bare: create + start", raw),
            ("bare: create", create),
            ("bare: start", start),
            ("bare: old finished -> stop, create, start -> new started", floor),
            ("engine: whole operation, with its 250 ms of watching", whole),
        ],
    );
    report.title("   Where the engine's downtime goes");
    parts::compare(report, "breakdown", &[("engine", parts)]);
    let base = raw.p50();
    let ratio = |value: f64| vec![format!("{value:.2}")];
    let rows = [
        ("p50(engine) / p50(bare)", ratio(downtime.p50() / base)),
        ("p99(engine) / p50(bare)", ratio(downtime.p99() / base)),
        ("p99(engine) / p99(bare)", ratio(downtime.p99() / raw.p99())),
        ("p50(engine) / p50(bare stop, create, start)", ratio(downtime.p50() / floor.p50())),
        ("p99(bare) / p50(bare)", ratio(raw.p99() / base)),
    ];
    report.title("   Ratios (the budget is a multiple of the median of bare create + start)");
    report.values("ratios", &["", "x"], &rows);
    report.budget("A restart: p50, x bare create + start", downtime.p50() / base, P50);
    report.budget("A restart: p99, x bare create + start", downtime.p99() / base, P99);
    test_node.remove(&pod.pod).await;
}

/// Part B: ten restarts in a minute.
pub(crate) async fn minute(test_node: &TestNode, scale: &Scale, report: &mut Report) {
    report.title("B. Ten restarts of one container in a minute");
    let pod = test_node.pod("minute", &test_node.lab.image("app:v1")).await;
    let mut run = Run::new(test_node, &pod).await;
    let mut ticks = tokio::time::interval(scale.minute / 10);
    for _ in 0..10 {
        ticks.tick().await;
        run.cycle().await;
    }
    let Seen { downtime, raw, .. } = &run.seen;
    report.distributions(
        "minute",
        &[("engine: old finished -> new started", downtime), ("bare: create + start", raw)],
    );
    report.budget("B ten in a minute: p50, x bare create + start", downtime.p50() / raw.p50(), P50);
    report.budget("B ten in a minute: each, x bare create + start", downtime.max() / raw.p50(), P99);
    test_node.remove(&pod.pod).await;
}

#[derive(Default)]
struct Seen {
    downtime: Samples,
    raw: Samples,
    create: Samples,
    start: Samples,
    floor: Samples,
    whole: Samples,
    parts: Parts,
}

struct Run<'a> {
    test_node: &'a TestNode,
    pod: &'a Started,
    config: v1::ContainerConfig,
    sandbox: v1::PodSandboxConfig,
    attempt: u32,
    seen: Seen,
}

impl<'a> Run<'a> {
    /// Reads the container's configuration as the engine does.
    async fn new(test_node: &'a TestNode, pod: &'a Started) -> Self {
        let answer = test_node.client.container(&pod.containers[0].id, true).await.unwrap().unwrap();
        let source = Source::read(&answer.status.unwrap(), &answer.info).unwrap();
        let mut config = source.replacement(0, None, "bench");
        "bare".clone_into(&mut config.metadata.get_or_insert_default().name);
        config.labels.insert(annotation::CONTAINER_NAME.to_owned(), "bare".to_owned());
        config.labels.remove(annotation::OPERATION);
        let answer = test_node.client.sandbox(&pod.sandbox_id, true).await.unwrap().unwrap();
        let sandbox = clone::sandbox_config(&answer.info).unwrap();
        Self { test_node, pod, config, sandbox, attempt: 0, seen: Seen::default() }
    }

    /// One restart, and one bare container for comparison.
    async fn cycle(&mut self) {
        self.restart().await;
        self.bare().await;
    }

    async fn restart(&mut self) {
        let began = Instant::now();
        let (status, events) = self.test_node.carry_out(&self.pod.pod, "restart app", Phase::Succeeded).await;
        self.seen.whole.add(began.elapsed());
        let container = &status.containers[0];
        let old = self.test_node.instance(&container.from.container_id).await;
        let new = self.test_node.instance(&container.to.as_ref().unwrap().container_id).await;
        self.seen.downtime.add_ms(between(old, new));
        self.seen.parts.add(&events, old, new);
    }

    /// Creates and starts a container, then replaces it by another one with nothing between the calls.
    async fn bare(&mut self) {
        let first = self.create_and_start(true).await;
        self.test_node.client.stop(&first, GRACE).await.unwrap();
        let second = self.create_and_start(false).await;
        let instances = [self.test_node.instance(&first).await, self.test_node.instance(&second).await];
        self.seen.floor.add_ms(between(instances[0], instances[1]));
        self.test_node.client.stop(&second, GRACE).await.unwrap();
        for id in [first, second] {
            self.test_node.client.remove(&id).await.unwrap();
        }
    }

    async fn create_and_start(&mut self, counts: bool) -> String {
        let mut config = self.config.clone();
        config.metadata.get_or_insert_default().attempt = self.attempt;
        config.log_path = format!("bare-{}.log", self.attempt);
        self.attempt += 1;
        let sandbox = self.sandbox.clone();
        let began = Instant::now();
        let id = self.test_node.client.create(&self.pod.sandbox_id, config, sandbox).await.unwrap();
        let created = began.elapsed();
        self.test_node.client.start(&id).await.unwrap();
        let started = began.elapsed();
        if counts {
            self.seen.create.add(created);
            self.seen.start.add(started.checked_sub(created).unwrap());
            self.seen.raw.add(started);
        }
        id
    }
}
