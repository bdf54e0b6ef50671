//! An older `CustomResourceDefinition` in the API server is reported by the controller.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use inplace::api::crd;
use serde_json::Value;

use super::super::api_server::ApiServer;

struct Controller(Child);

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
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
    let lines = BufReader::new(controller.0.stderr.take().unwrap()).lines();
    let message = tokio::task::spawn_blocking(move || {
        let messages = lines.map_while(Result::ok).filter_map(|line| {
            let line: Value = serde_json::from_str(&line).ok()?;
            line["fields"]["message"].as_str().map(str::to_owned)
        });
        messages.into_iter().find(|message| message.contains("CustomResourceDefinition"))
    });
    let message = api.patiently("it is reported", message).await.unwrap().unwrap();
    for part in
        ["gamedeployments.tkex.tencent.com", "lacks spec.minReadySeconds:", "`inplace crds | kubectl apply"]
    {
        assert!(message.contains(part), "{part}: {message}");
    }
    api.arrived("GET customresourcedefinition", names.len()).await;
    drop(controller);
}
