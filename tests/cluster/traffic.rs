//! A client of a Service that behaves like a proxy: it follows the Service's endpoints and sends requests to
//! their addresses, each over a new connection, for an answer that takes half a second.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Endpoints;
use kube::{Api, runtime::watcher};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch::{self, Receiver, Sender},
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::StreamExt;

use crate::{
    cluster::{Cluster, block_on, runtime},
    support::wait::WAIT_LIMIT,
};

/// The container of a pod for [`Traffic`], without its name and further fields. An answer takes half a second,
/// and breaks off when the container ends.
pub(crate) const SERVING: &str = r#"
  image: lab/app:v1
  env: [{name: PORT, value: "8080"}]
  command:
  - sh
  - -c
  - |
    mkdir -p /www/cgi-bin
    printf '#!/bin/sh\necho Content-Type: text/plain; echo; sleep 0.5; echo served\n' >/www/cgi-bin/slow
    chmod +x /www/cgi-bin/slow
    exec app
  readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1, timeoutSeconds: 30}
"#;

/// Number of concurrent requests.
const AT_ONCE: usize = 6;
/// Pause between two requests of one sender.
const PAUSE: Duration = Duration::from_millis(20);

/// The client. It ends when dropped.
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    endpoints: Receiver<Vec<EndpointState>>,
    tasks: Vec<JoinHandle<()>>,
}

/// The addresses of the endpoints, from a moment on.
#[derive(Clone, Debug)]
pub(crate) struct EndpointState {
    pub(crate) at: Timestamp,
    pub(crate) addresses: BTreeSet<String>,
}

#[derive(Default)]
struct Shared {
    served: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Traffic {
    /// Starts to send requests to the Service when it has this number of addresses.
    pub(crate) fn to(cluster: &Cluster, service: &str, addresses: usize) -> Self {
        let api: Api<Endpoints> = Api::namespaced(cluster.client.clone(), "default");
        let (sender, endpoints) = watch::channel(Vec::new());
        let shared = Arc::new(Shared::default());
        let mut traffic = Self { shared, endpoints, tasks: Vec::new() };
        traffic.tasks.push(runtime().spawn(follow(api, service.to_owned(), sender)));
        traffic.until("all addresses are there", |cycles| {
            cycles.last().is_some_and(|cycle| cycle.addresses.len() == addresses)
        });
        for number in 0..AT_ONCE {
            let (shared, endpoints) = (Arc::clone(&traffic.shared), traffic.endpoints.clone());
            traffic.tasks.push(runtime().spawn(send(number, shared, endpoints)));
        }
        traffic
    }

    /// Waits until the endpoints fulfil, or have fulfilled, a condition; returns their history.
    pub(crate) fn until(
        &self,
        what: &str,
        mut wanted: impl FnMut(&[EndpointState]) -> bool,
    ) -> Vec<EndpointState> {
        let mut endpoints = self.endpoints.clone();
        let found = block_on(async {
            let found = endpoints.wait_for(|cycles| wanted(cycles));
            timeout(WAIT_LIMIT, found).await.map(|found| found.unwrap().clone())
        });
        found.unwrap_or_else(|_| panic!("in vain until {what}: {:#?}", self.endpoints.borrow().last()))
    }

    /// Waits for the address to leave the endpoints after `since` and to return; returns both times.
    pub(crate) fn absence(&self, address: &str, since: Timestamp) -> (Timestamp, Timestamp) {
        let find = |cycles: &[EndpointState]| {
            let mut later = cycles.iter().filter(|cycle| cycle.at > since);
            let left = later.find(|cycle| !cycle.addresses.contains(address))?.at;
            Some((left, later.find(|cycle| cycle.addresses.contains(address))?.at))
        };
        let cycles = self.until(&format!("{address} has left and is back"), |cycles| find(cycles).is_some());
        find(&cycles).unwrap()
    }

    /// Number of complete answers.
    pub(crate) fn served(&self) -> usize {
        self.shared.served.load(Ordering::Relaxed)
    }

    /// The errors of the other requests.
    pub(crate) fn failed(&self) -> Vec<String> {
        self.shared.failed.lock().unwrap().clone()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn follow(api: Api<Endpoints>, service: String, sender: Sender<Vec<EndpointState>>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={service}"));
    let events = watcher(api, config);
    tokio::pin!(events);
    while let Some(event) = events.next().await {
        let (watcher::Event::Apply(endpoints) | watcher::Event::InitApply(endpoints)) = event.unwrap() else {
            continue;
        };
        let ready = endpoints.subsets.iter().flatten().flat_map(|subset| subset.addresses.iter().flatten());
        let cycle = EndpointState { at: now(), addresses: ready.map(|address| address.ip.clone()).collect() };
        sender.send_modify(|cycles| cycles.push(cycle));
    }
}

async fn send(number: usize, shared: Arc<Shared>, endpoints: Receiver<Vec<EndpointState>>) {
    for count in number.. {
        let address = endpoints.borrow().last().and_then(|cycle| {
            let addresses = &cycle.addresses;
            addresses.iter().nth(count % addresses.len().max(1)).cloned()
        });
        let began = now();
        let answer = match &address {
            Some(address) => {
                timeout(WAIT_LIMIT, ask(address)).await.unwrap_or_else(|_| Err("no answer".into()))
            }
            None => Err("nobody to ask".into()),
        };
        match answer {
            Ok(()) => {
                shared.served.fetch_add(1, Ordering::Relaxed);
            }
            Err(why) => {
                let line = format!("{} at {began}: {why}", address.unwrap_or_default());
                shared.failed.lock().unwrap().push(line);
            }
        }
        sleep(PAUSE).await;
    }
}

/// One request over its own connection.
async fn ask(address: &str) -> Result<(), String> {
    let broken = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect((address, 8080)).await.map_err(broken)?;
    let request = format!("GET /cgi-bin/slow HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.map_err(broken)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let whole = answer.contains(" 200 OK\r\n") && answer.ends_with("served\n");
    if whole { Ok(()) } else { Err(format!("{answer:?}")) }
}

/// Sets the flag when dropped, so that the thread that sends requests stops even if the test fails.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Creates a Service for the pods with the label `app: NAME`; only its endpoints are used.
pub(crate) fn service(cluster: &Cluster, name: &str) {
    let mut text = String::new();
    writeln!(text, "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}").unwrap();
    writeln!(text, "spec: {{selector: {{app: {name}}}, ports: [{{port: 8080}}]}}").unwrap();
    cluster.apply(&text);
}

#[allow(clippy::disallowed_methods, reason = "the cluster's time is the machine's")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}
