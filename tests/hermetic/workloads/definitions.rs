//! An older `CustomResourceDefinition` in the API server is reported by the controller that leads, as long as it leads.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use inplace::api::crd;
use serde_json::Value;

use super::super::api_server::{ApiServer, Fault};
use super::pages::Controller;
use crate::support::{http_client, wait::eventually};

/// The metrics of the process at `address`.
fn metrics(address: SocketAddr) -> String {
    http_client::get(TcpStream::connect(address).unwrap(), "/metrics").unwrap().1
}

#[tokio::test]
async fn fields_that_the_api_server_would_remove_are_named_with_what_to_do() {
    let api = ApiServer::start().await;
    let mut names = Vec::new();
    for (file, mut definition) in crd::all().unwrap() {
        names.push(definition["metadata"]["name"].as_str().unwrap().to_owned());
        if file == "gamedeployments.yaml" {
            let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
            let fields = definition.pointer_mut(spec).and_then(Value::as_object_mut).unwrap();
            fields.remove("minReadySeconds").unwrap();
        }
        api.put(definition);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_inplace"));
    command.args(["controller", "--namespace=inplace-system", "--listen=127.0.0.1:0", "--kubeconfig"]);
    let child = command.arg(api.kubeconfig()).args(["--log-json"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut controller = Controller(child);
    let mut lines = BufReader::new(controller.0.stderr.take().unwrap()).lines();
    let found = tokio::task::spawn_blocking(move || {
        let mut address = None;
        for line in lines.by_ref().map_while(Result::ok) {
            let line: Value = serde_json::from_str(&line).ok()?;
            let fields = &line["fields"];
            let message = fields["message"].as_str().unwrap_or_default();
            if message.contains("/metrics") {
                address = fields["address"].as_str()?.parse().ok();
            } else if message.contains("CustomResourceDefinition") {
                return Some((message.to_owned(), address?, lines));
            }
        }
        None
    });
    let (message, address, _log) = api.patiently("it is reported", found).await.unwrap().unwrap();
    for part in
        ["gamedeployments.tkex.tencent.com", "lacks spec.minReadySeconds:", "`inplace crds | kubectl apply"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    api.arrived("GET customresourcedefinition", names.len()).await;
    let served = metrics(address);
    let missing = r#"inplace_crd_missing_fields{definition="gamedeployments.tkex.tencent.com"} 1"#;
    assert!(served.contains(missing) && served.contains("inplace_leader 1"), "{served}");

    // It cannot renew its lease. The process that leads then reports: nobody may act on what this one has found.
    api.on("PUT lease").times(1000).fault(Fault::Hang);
    let ended = tokio::task::spawn_blocking(move || {
        eventually("its metrics are those of a process that does not lead", || {
            let served = metrics(address);
            (served.contains("inplace_leader 0") && !served.contains("inplace_crd_missing_fields{"))
                .then_some(())
        });
    });
    ended.await.unwrap();
    drop(controller);
}
