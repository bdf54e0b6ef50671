//! Compares the `CustomResourceDefinition`s of the API server with those of this release, at the start and from time to
//! time. A package manager that upgrades the controller may leave the old ones, whose API server removes new fields
//! from what users apply without an error.
//!
//! Only reports: the controller works on with what the API server keeps of each object, because a workload that nobody
//! reconciles would lose its pods one after the other.

use std::time::Duration;

use kube::core::Request;
use kube::core::params::GetParams;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::api::{crd, crd_fields};
use crate::cluster::error::Error;
use crate::cluster::server::Server;
use crate::failure::Class;
use crate::process::log::chain;

/// The interval between two comparisons.
const INTERVAL: Duration = Duration::from_secs(300);
/// How many missing fields a message names.
const MAX_NAMED: usize = 5;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Definition {
    definition: String,
}

/// The metrics of the comparison; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    missing: Family<Definition, Gauge>,
}

impl Metrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self { missing: Family::default() };
        registry.register(
            "crd_missing_fields",
            "Fields of this release that the CustomResourceDefinition in the API server does not have: the API server \
             removes them from objects",
            metrics.missing.clone(),
        );
        metrics
    }

    /// Forgets what was found: this process does not compare any more.
    pub(super) fn reset(&self) {
        self.missing.clear();
    }
}

/// Compares until `stop`.
pub(super) async fn run(server: Server, metrics: Metrics, stop: CancellationToken) {
    let Ok(all) = crd::all() else { return };
    let mut before = vec![None; all.len()];
    loop {
        for ((_, own), before) in all.iter().zip(&mut before) {
            let name = own.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let found = tokio::select! {
                () = stop.cancelled() => return,
                found = server.definition(name) => found.map(|found| crd_fields::missing(own, &found)),
            };
            let reported = report(&metrics, name, found);
            // The same message is logged once.
            if *before != reported
                && let Some(message) = &reported
            {
                tracing::error!("{message}");
            }
            *before = reported;
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
    }
}

/// Sets the metric, and returns the message for the log.
fn report(metrics: &Metrics, name: &str, found: Result<Vec<String>, Error>) -> Option<String> {
    let gauge = metrics.missing.get_or_create(&Definition { definition: name.to_owned() });
    let missing = match found {
        Ok(missing) => missing,
        // The watch of the kind reports that it does not exist; an API server that is away is reported elsewhere.
        Err(error) if error.class() == Class::Gone || error.class().is_unavailable() => return None,
        Err(error) => {
            return Some(format!(
                "whether CustomResourceDefinition {name} is that of this release is unknown: {}",
                chain(&error)
            ));
        }
    };
    gauge.set(i64::try_from(missing.len()).unwrap_or(i64::MAX));
    let more = if missing.len() > MAX_NAMED { " and more" } else { "" };
    let named = missing.get(..MAX_NAMED).unwrap_or(&missing).join(", ");
    (!missing.is_empty()).then(|| {
        format!(
            "CustomResourceDefinition {name} is older than this release and lacks {named}{more}: the API server removes these \
             fields from objects without an error. Apply the definitions of this release: `inplace crds | kubectl apply \
             --server-side --force-conflicts -f -` (`helm upgrade` does not change them)"
        )
    })
}

impl Server {
    /// Reads a `CustomResourceDefinition`.
    async fn definition(&self, name: &str) -> Result<Value, Error> {
        let request = Request::new("/apis/apiextensions.k8s.io/v1/customresourcedefinitions");
        let doing = format!("reading CustomResourceDefinition {name}");
        self.ask(&doing, request.get(name, &GetParams::default())).await
    }
}
