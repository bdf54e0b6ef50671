//! HookRun objects against an API server that misbehaves, and a hook server that counts requests, over real HTTP
//! on loopback.

mod election;
mod failures;
mod orphaned;
mod running;
mod takeover;

use std::time::Duration;

use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::hooks::{HookRuns, Summary};
use inplace::cluster::server::Server;
use inplace::hook::address_policy::{AddressPolicy, Cidr};
use inplace::hook::executor::Executor;
use inplace::hook::place::Place;
use inplace::hook::runner::{Identity, Metrics, Ownership, RunSelection, Runner, RunnerContext, Terms};
use inplace::hook::settings::Settings;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::api_server::{ApiServer, Fault, Store};
use crate::support::http_server::{HttpServer, answer_json, never};

/// The agent's name on a HookRun.
const AGENT: &str = "node/node-1";
const CONTROLLER: &str = "controller";

/// A fake cluster with a hook server.
struct Fixture {
    api: ApiServer,
    hook_server: HttpServer,
    terms: Terms,
}

/// One runner; it is aborted when this is dropped, as if killed.
struct Running {
    /// The ownership that its selection returns for every HookRun.
    ownership: watch::Sender<Ownership>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _kill: DropGuard,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Reported(watch::Receiver<Ownership>);

impl RunSelection for Reported {
    fn ownership(&mut self, _run: &Summary) -> Ownership {
        *self.0.borrow_and_update()
    }

    fn place(&self, run: &Summary) -> Result<Place, String> {
        Ok(Place { namespace: kube::ResourceExt::namespace(run).unwrap(), ..Place::default() })
    }

    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Limit of the bytes of large HookRuns at the same time.
const MAX_BYTES: usize = 512 << 10;

/// Durations in the same order as the real ones. A busy machine answers before a lease lapses.
const TERMS: Terms =
    Terms { confirm: Duration::from_secs(2), lapse: Duration::from_secs(6), fence: Duration::from_secs(12) };
/// The same for tests that wait until a lease has lapsed or was taken over.
const SHORT: Terms = Terms {
    confirm: Duration::from_millis(500),
    lapse: Duration::from_millis(1500),
    fence: Duration::from_secs(3),
};

/// A server for hooks; a path that ends with `/hang` is never answered.
fn hook_server() -> HttpServer {
    HttpServer::start("127.0.0.1:0", |request, stream| {
        if request.path().ends_with("/hang") {
            return never(stream);
        }
        answer_json(stream, r#"{"name":"bryan","male":"yes","age":45}"#)
    })
}

impl Fixture {
    async fn start() -> Self {
        // `main` does the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self { api: ApiServer::start().await, hook_server: hook_server(), terms: TERMS }
    }

    /// The same with the durations of [`SHORT`].
    async fn short() -> Self {
        Self { terms: SHORT, ..Self::start().await }
    }

    /// Number of requests to the hook server so far.
    fn measurements(&self) -> u64 {
        self.hook_server.requests().len().try_into().unwrap()
    }

    /// The longest time between two requests to the hook server.
    fn longest_pause(&self) -> Duration {
        let requests = self.hook_server.requests();
        let pauses = requests.windows(2).map(|pair| pair[1].at.duration_since(pair[0].at).unsigned_abs());
        pauses.max().unwrap_or_default()
    }

    async fn server(&self) -> Server {
        let target = ConnectOptions { kubeconfig: Some(self.api.kubeconfig()), ..ConnectOptions::default() };
        Server::new(connect(&target).await.unwrap().0)
    }

    async fn runner(&self, runner: &str) -> Running {
        self.runner_with(runner, &self.api, 8, Duration::ZERO).await
    }

    /// A runner that reaches the API server at `api`, which may be a different route to it.
    async fn runner_with(
        &self,
        runner: &str,
        api: &ApiServer,
        max_runs: usize,
        release_timeout: Duration,
    ) -> Running {
        let target = ConnectOptions { kubeconfig: Some(api.kubeconfig()), ..ConnectOptions::default() };
        let server = Server::new(connect(&target).await.unwrap().0);
        let (ownership, reported) = watch::channel(Ownership::Ours);
        let (stop, watching) = (CancellationToken::new(), CancellationToken::new());
        let settings = Settings {
            role: "this test".to_owned(),
            runtime: None,
            server: None,
            address_policy: AddressPolicy::new(Cidr::LOOPBACK.to_vec()),
            max_at_once: 8,
            exec: true,
        };
        let context = RunnerContext {
            server: server.clone(),
            executor: Executor::new(settings),
            runs: HookRuns::watch(server, "HookRuns", "!inplace.dev/operation", watching.clone()),
            identity: Identity { runner: runner.to_owned(), host: "here".to_owned(), release_timeout },
            terms: self.terms,
            max_runs,
            max_bytes: MAX_BYTES,
            metrics: Metrics::default(),
            stop: stop.clone(),
        };
        let task = tokio::spawn(Runner::new(context, Reported(reported)).run());
        Running { ownership, stop, task, _kill: watching.drop_guard() }
    }

    /// A metric that sends requests to the hook server.
    fn metric(&self, path: &str, more: &Value) -> Value {
        let url = format!("http://{}{path}", self.hook_server.address);
        let mut metric = json!({"name": "webtest", "successCondition": "asInt(result) > 30",
            "provider": {"web": {"url": url, "jsonPath": "{$.age}"}}});
        metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        metric
    }

    /// A HookRun of one metric.
    fn put(&self, name: &str, metric: &Value) -> Value {
        self.put_as(name, &json!({"metrics": [metric]}), &json!({}))
    }

    fn put_as(&self, name: &str, spec: &Value, meta: &Value) -> Value {
        let mut metadata = json!({"namespace": "shop", "name": name});
        metadata.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        self.api.put(json!({"apiVersion": "tkex.tencent.com/v1alpha1", "kind": "HookRun",
            "metadata": metadata, "spec": spec}))
    }

    fn run(&self, name: &str) -> Value {
        self.api.get("hookruns", "shop", name).unwrap()
    }

    async fn until(&self, what: &str, name: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let is = |store: &Store| store.get("hookruns", "shop", name).is_some_and(|run| condition(&run));
        self.api.until(what, is).await;
        self.run(name)
    }

    /// Waits until it ends, which must be with this phase.
    async fn phase(&self, name: &str, phase: &str) -> Value {
        let ended = |run: &Value| !matches!(run["status"]["phase"].as_str(), None | Some("Running"));
        let run = self.until(&format!("{name} is {phase}"), name, ended).await;
        assert_eq!(run["status"]["phase"], phase, "{run:#}");
        run
    }

    /// The measurements in the status that have ended.
    fn measured(run: &Value) -> usize {
        let results = run["status"]["metricResults"].as_array();
        let all = results.into_iter().flatten().filter_map(|result| result["measurements"].as_array());
        all.flatten().filter(|measurement| !measurement["finishedAt"].is_null()).count()
    }

    /// The number of successful measurements of its first metric, as stored.
    fn successful(run: &Value) -> u64 {
        run["status"]["metricResults"][0]["successful"].as_u64().unwrap_or(0)
    }

    fn runner_of(run: &Value) -> Option<&str> {
        run["metadata"]["annotations"]["inplace.dev/runner"].as_str()
    }
}
