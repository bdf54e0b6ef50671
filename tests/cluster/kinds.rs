//! Installs this project's CRDs on an API server.

use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use tokio::time::timeout;

use crate::support::wait::WAIT_LIMIT;

/// The folder of the CRDs.
pub(crate) fn definitions() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("daemonset/crds").to_str().unwrap().to_owned()
}

/// Waits until the API server serves all of them. (Old releases of `kubectl wait` fail on a definition without a
/// status.)
pub(crate) async fn await_kinds(client: Client) {
    let all: Api<CustomResourceDefinition> = Api::all(client);
    let ours = ["hooktemplates", "hookruns", "gamedeployments", "gamestatefulsets"];
    let ours = ours.map(|kind| format!("{kind}.tkex.tencent.com"));
    for name in ours.into_iter().chain(["inplacerollouts.inplace.dev".to_owned()]) {
        let established = await_condition(all.clone(), &name, is_crd_established());
        timeout(WAIT_LIMIT, established).await.unwrap_or_else(|_| panic!("{name} is not served")).unwrap();
    }
}
