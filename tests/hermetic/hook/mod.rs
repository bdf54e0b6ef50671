//! Hooks against servers that misbehave: real HTTP over loopback.

mod command;
mod drive;
mod kubernetes;
mod prometheus;
mod server;
mod tls;
mod web;

use inplace::api::hook_run::{HookPhase, HookRunSpec, HookRunStatus, Measurement};
use inplace::cluster::client::{ConnectOptions, connect};
use inplace::cluster::server::Server as ApiClient;
use inplace::cri::identity::Origin;
use inplace::hook::address_policy::{AddressPolicy, Cidr};
use inplace::hook::executor::Executor;
use inplace::hook::place::{HookPod, Place};
use inplace::hook::settings::Settings;
use serde_json::{Value, json};

use super::api_server::ApiServer;

/// An executor that may reach loopback.
fn executor() -> Executor {
    Executor::new(settings())
}

fn settings() -> Settings {
    // `main` does the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Settings {
        role: "this test".to_owned(),
        runtime: None,
        server: None,
        address_policy: AddressPolicy::new(Cidr::LOOPBACK.to_vec()),
        max_at_once: 8,
        exec: true,
    }
}

/// A client of the fake API server.
async fn api_client(api: &ApiServer) -> ApiClient {
    let target = ConnectOptions { kubeconfig: Some(api.kubeconfig()), ..ConnectOptions::default() };
    ApiClient::new(connect(&target).await.unwrap().0)
}

/// A HookRun of metrics that are written as in YAML.
fn spec(metrics: &Value) -> HookRunSpec {
    serde_json::from_value(json!({
        "metrics": metrics,
        "args": [{"name": "path", "value": "age"}, {"name": "token", "value": "s3cret"}],
    }))
    .unwrap()
}

/// Measures one provider once, without conditions; an error ends the run.
async fn once(provider: Value) -> (HookPhase, Measurement) {
    once_with(&executor(), &Place::default(), provider, &json!({})).await
}

async fn once_with(
    executor: &Executor,
    place: &Place,
    provider: Value,
    more: &Value,
) -> (HookPhase, Measurement) {
    let mut metric = json!({"name": "m", "consecutiveErrorLimit": 0, "provider": provider});
    metric.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let status = executor.run(&spec(&json!([metric])), HookRunStatus::default(), place, |_| {}).await;
    let result = status.metric_results.first().unwrap_or_else(|| panic!("{status:?}"));
    (status.phase.unwrap(), result.measurements[0].clone())
}

/// The same for a measurement that must end as an error: its message, which contains no secret.
async fn error(provider: Value) -> String {
    let (phase, measurement) = once(provider).await;
    assert_eq!(phase, HookPhase::Error, "{measurement:?}");
    assert!(!measurement.message.contains("s3cret"), "{measurement:?}");
    measurement.message
}

fn shop(name: &str, uid: &str) -> Place {
    let pod = HookPod { name: name.to_owned(), uid: uid.to_owned(), origin: Origin::Api };
    Place { namespace: "shop".to_owned(), pod: Some(pod), ..Place::default() }
}
