//! A tenant: a user with rights in one namespace and in no other.

use std::{fs, process::Command};

use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Node},
    support::wait::eventually_or,
};

pub(super) const NAMESPACE: &str = "tenant";

/// The tenant, with the rights of its role and no others.
pub(super) struct Tenant<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) node: Node,
    kubeconfig: String,
}

impl<'a> Tenant<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        cluster.apply(&format!(
            r#"
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: tenant, namespace: {NAMESPACE}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: tenant, namespace: {NAMESPACE}}}
rules:
- {{apiGroups: [""], resources: [pods], verbs: [create, get]}}
- {{apiGroups: [tkex.tencent.com], resources: [hookruns], verbs: [create, get, list]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: tenant, namespace: {NAMESPACE}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: tenant}}
subjects: [{{kind: ServiceAccount, name: tenant, namespace: {NAMESPACE}}}]
"#
        ));
        let kubeconfig = cluster.kubeconfig_of(NAMESPACE, "tenant").to_str().unwrap().to_owned();
        let tenant = Self { cluster, node: cluster.node(), kubeconfig };
        // At first the API server may know neither its rights nor the service account of its pods.
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "first", "namespace": NAMESPACE},
            "spec": {"containers": [{"name": "app", "image": "lab/app:v1"}]},
        });
        eventually_or("the tenant may create pods", || tenant.try_create(&pod, &["--dry-run=server"]));
        tenant
    }

    /// `kubectl` with the tenant's rights, in the tenant's namespace.
    fn kubectl(&self, args: &[&str]) -> Command {
        let mut kubectl = self.cluster.kubectl_command(args);
        kubectl.args(["--kubeconfig", &self.kubeconfig, "--namespace", NAMESPACE]);
        kubectl
    }

    /// Creates an object, or a list of them; false when it already exists.
    pub(super) fn create(&self, object: &Value) -> bool {
        self.try_create(object, &[]).unwrap_or_else(|said| panic!("{said}"))
    }

    fn try_create(&self, object: &Value, more: &[&str]) -> Result<bool, String> {
        let name = object["metadata"]["name"].as_str().unwrap_or("list");
        let file = self.node.dir.join(format!("tenant-{name}.json"));
        fs::write(&file, self.cluster.named(&object.to_string())).unwrap();
        let args = [&["create", "-f", file.to_str().unwrap()], more].concat();
        let output = self.kubectl(&args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let done = output.status.success();
        if done || said.contains("AlreadyExists") { Ok(done) } else { Err(said) }
    }

    /// A HookRun in the tenant's namespace, read as the administrator.
    pub(super) fn run(&self, name: &str) -> Value {
        self.cluster.read(&format!("/apis/tkex.tencent.com/v1alpha1/namespaces/{NAMESPACE}/hookruns/{name}"))
    }
}
