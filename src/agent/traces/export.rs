//! Sends the spans of operations to a collector, several operations at a time. A collector that does not answer costs spans,
//! never an operation: the queue has a limit, and an operation that finds it full is dropped and counted.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use reqwest::{Client, StatusCode, Url, redirect};
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::agent::traces::otlp;
use crate::agent::traces::span::OperationSpans;
use crate::process::backoff::Backoff;
use crate::process::log::chain;

/// How many operations wait to be sent.
const QUEUE: usize = 256;
/// How many operations are sent in one request: with at most 64 effects each they are encoded within a few milliseconds.
const BATCH: usize = 8;
/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often one batch is sent at most.
const ATTEMPTS: u32 = 4;
/// The pauses between the attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(4));

/// How long the exporter goes on after the agent was asked to end: a node must not be without its agent for that of a collector.
const LAST: Duration = Duration::from_secs(2);

/// Where traces are sent.
#[derive(Debug, clap::Args)]
pub(in crate::agent) struct TraceArgs {
    /// Send a trace of each operation to the OpenTelemetry collector at this address (OTLP over HTTP, as JSON), such as
    /// <http://127.0.0.1:4318>
    #[arg(long, env = "INPLACE_OTLP_ENDPOINT", value_name = "URL", value_parser = traces_url)]
    otlp_endpoint: Option<Url>,
}

/// Takes the spans of operations that have ended. Cheap to clone; the exporter ends with the last clone.
#[derive(Clone, Debug)]
pub(in crate::agent) struct Traces {
    queue: Option<mpsc::Sender<OperationSpans>>,
    results: Family<SentLabel, Counter>,
}

/// Sends what [`Traces`] takes.
#[derive(Debug)]
pub(in crate::agent) struct Exporter {
    queue: mpsc::Receiver<OperationSpans>,
    results: Family<SentLabel, Counter>,
    collector: Option<(Client, Url)>,
    /// The name of the node, as an attribute of all spans; empty without a cluster.
    node: String,
    stop: CancellationToken,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SentLabel {
    result: &'static str,
}

/// A batch that the collector did not take.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("no answer")]
    NoAnswer(#[source] reqwest::Error),
    #[error("the collector answered {0}")]
    Refused(StatusCode),
}

impl TraceArgs {
    /// The two ends of the queue. Registers the metric of what was sent.
    ///
    /// # Errors
    /// If no HTTP client can be created.
    pub(in crate::agent) fn exporter(
        self,
        node: &str,
        registry: &mut Registry,
        stop: CancellationToken,
    ) -> Result<(Traces, Exporter), reqwest::Error> {
        let results = Family::default();
        registry.register(
            "traces",
            "Operations whose trace was sent to the collector (Sent), was not taken by it (Failed), or was dropped because the queue was full or the agent ended (Dropped)",
            results.clone(),
        );
        let (sender, queue) = mpsc::channel(QUEUE);
        let collector = match self.otlp_endpoint {
            None => None,
            Some(url) => {
                let client = Client::builder().redirect(redirect::Policy::none()).no_proxy().timeout(TIMEOUT);
                Some((client.build()?, url))
            }
        };
        let traces = Traces { queue: collector.is_some().then_some(sender), results: results.clone() };
        Ok((traces, Exporter { queue, results, collector, node: node.to_owned(), stop }))
    }
}

/// The address to which traces are sent: OTLP adds a fixed path to that of the collector.
fn traces_url(text: &str) -> Result<Url, String> {
    let mut url: Url = text.parse().map_err(|error| format!("not a URL: {error}"))?;
    if url.scheme() != "http" {
        return Err("only http:// is supported: use a collector on the node or in the cluster".to_owned());
    }
    if !url.username().is_empty()
        || url.password().is_some()
        || url.query().is_some()
        || url.fragment().is_some()
    {
        return Err("the URL has only a host, a port and a path".to_owned());
    }
    let path = url.path().trim_end_matches('/').trim_end_matches("/v1/traces").to_owned();
    url.set_path(&format!("{path}/v1/traces"));
    Ok(url)
}

impl Traces {
    /// True if a collector is configured.
    pub(super) fn is_enabled(&self) -> bool {
        self.queue.is_some()
    }

    /// Sends the spans later. Never waits.
    pub(super) fn send(&self, operation: OperationSpans) {
        if let Some(queue) = &self.queue
            && queue.try_send(operation).is_err()
        {
            count(&self.results, "Dropped", 1);
        }
    }
}

impl Exporter {
    /// Sends until no [`Traces`] is left, or for a short time after the stop.
    pub(in crate::agent) async fn run(mut self) {
        let Some((client, url)) = self.collector.take() else { return };
        let stop = self.stop.clone();
        tokio::select! {
            () = self.send_all(&client, &url) => {}
            () = async { stop.cancelled().await; sleep(LAST).await } => {}
        }
    }

    async fn send_all(&mut self, client: &Client, url: &Url) {
        let mut batch = Vec::new();
        let mut is_failing = false;
        while self.queue.recv_many(&mut batch, BATCH).await > 0 {
            let sent = send(client, url, &otlp::body(&self.node, &batch).to_string()).await;
            count(&self.results, if sent.is_ok() { "Sent" } else { "Failed" }, batch.len());
            match sent {
                Ok(()) => is_failing = false,
                Err(error) if is_failing => {
                    tracing::debug!(error = chain(&error), "traces could not be sent");
                }
                Err(error) => {
                    is_failing = true;
                    tracing::warn!(collector = %url, error = chain(&error), "traces could not be sent: they are lost");
                }
            }
            batch.clear();
        }
    }
}

/// Sends one batch, again if that may help.
async fn send(client: &Client, url: &Url, body: &str) -> Result<(), Error> {
    let mut pauses = PAUSES;
    for _ in 1..ATTEMPTS {
        match post(client, url, body).await {
            Err(error) if error.may_pass() => sleep(pauses.pause()).await,
            ended => return ended,
        }
    }
    post(client, url, body).await
}

async fn post(client: &Client, url: &Url, body: &str) -> Result<(), Error> {
    let request = client.post(url.clone()).header("content-type", "application/json").body(body.to_owned());
    let status = request.send().await.map_err(|error| Error::NoAnswer(error.without_url()))?.status();
    if status.is_success() { Ok(()) } else { Err(Error::Refused(status)) }
}

impl Error {
    /// The answers after which OTLP lets a client try again.
    fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer(_) => true,
            Self::Refused(status) => matches!(status.as_u16(), 429 | 502 | 503 | 504),
        }
    }
}

fn count(results: &Family<SentLabel, Counter>, result: &'static str, operations: usize) {
    let operations = u64::try_from(operations).unwrap_or(u64::MAX);
    results.get_or_create(&SentLabel { result }).inc_by(operations);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_otlp_follows_the_address() {
        let of = |text| traces_url(text).map(String::from);
        assert_eq!(of("http://127.0.0.1:4318").unwrap(), "http://127.0.0.1:4318/v1/traces");
        for given in ["http://collector.otel:4318/otlp/", "http://collector.otel:4318/otlp/v1/traces"] {
            assert_eq!(of(given).unwrap(), "http://collector.otel:4318/otlp/v1/traces");
        }
        for bad in [
            "collector:4318",
            "https://collector",
            "http://user:secret@collector",
            "http://collector?key=1",
            "",
        ] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
