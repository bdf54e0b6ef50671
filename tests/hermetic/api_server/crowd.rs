//! A crowd of pods that the fake does not store: each one is written when it is listed, so that tens of thousands of
//! pods of a realistic size do not fill the memory of the test.

use serde_json::{Value, json};

use super::pods;

/// The pods of the crowd; the first `own` of them belong to a `GameDeployment`, the rest to `ReplicaSet`s.
#[derive(Clone, Debug)]
pub(crate) struct Crowd {
    own: usize,
    all: usize,
    /// A pod of a `GameDeployment`, and one of a `ReplicaSet`, with `@` for the number.
    texts: [String; 2],
}

impl Crowd {
    pub(crate) fn new(own: usize, foreign: usize) -> Self {
        let texts = [("tkex.tencent.com/v1alpha1", "GameDeployment"), ("apps/v1", "ReplicaSet")];
        Self { own, all: own + foreign, texts: texts.map(|(group, kind)| text(group, kind)) }
    }

    /// The size of a pod in bytes.
    pub(crate) fn pod_bytes(&self) -> usize {
        self.texts[0].len().min(self.texts[1].len())
    }

    pub(super) fn len(&self) -> usize {
        self.all
    }

    /// The pods with these numbers, as the items of a list.
    pub(super) fn items(&self, numbers: std::ops::Range<usize>) -> String {
        let pod =
            |number: usize| self.texts[usize::from(number >= self.own)].replace('@', &format!("{number:06}"));
        numbers.map(pod).collect::<Vec<_>>().join(",")
    }
}

/// A pod of about 7 KiB: most of it is what kubelets, CNI plugins and managed fields add.
fn text(group: &str, kind: &str) -> String {
    let mut pod = pods::pod("shop", "web-@", "node-@");
    let fields: Value = (0..60).map(|at| (format!("f:field-{at}"), json!({"f:value": {}}))).collect();
    let env: Vec<_> =
        (0..30).map(|at| json!({"name": format!("SETTING_{at}"), "value": "x".repeat(40)})).collect();
    pod["metadata"]["uid"] = json!("8f3c1c52-6a1e-4d0e-9a57-000000@");
    pod["metadata"]["resourceVersion"] = json!("1");
    pod["metadata"]["labels"] = json!({"app": "web", "team": "shop", "controller-revision-hash": "web-5d8f6c7b9",
        "tkex.bkbcs.tencent.com/gamedeployment-instance-id": "@"});
    pod["metadata"]["ownerReferences"] = json!([{"apiVersion": group, "kind": kind, "name": "web",
        "uid": "8f3c1c52-6a1e-4d0e-9a57-ffffffffffff", "controller": true, "blockOwnerDeletion": true}]);
    pod["metadata"]["managedFields"][0]["fieldsV1"] = fields;
    pod["spec"]["containers"][0]["env"] = json!(env);
    pod.to_string()
}
