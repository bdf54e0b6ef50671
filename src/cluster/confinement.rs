//! Finds out whether an admission policy confines an agent's token to its node, by a dry run of a write that such a
//! policy refuses.
//!
//! Only administrators can read policies, and an existing policy may apply to other subjects. The dry run shows the
//! policy's effect. Must not store anything.

use kube::Resource as _;
use kube::core::Request;
use kube::core::params::PostParams;
use serde::de::IgnoredAny;
use serde_json::json;

use crate::api::annotation;
use crate::api::hook_run::HookRun;
use crate::cluster::error::{Class, Error};
use crate::cluster::server::{MANAGER, Server};

/// The end of the policy's name, as it appears in the API server's message.
const POLICY: &str = "inplace-agent-hooks'";
/// The controllers' webhook, which the API server calls after all policies.
const WEBHOOK: &str = "validate.inplace.dev";
/// A name that no node has. Even if a node had it, the policy would refuse the run, because it belongs to no
/// operation.
const NOBODY: &str = "inplace-no-node";

/// The result of the dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// The policy refuses writes to objects of another node.
    Confined,
    /// No policy refuses them.
    Open,
    /// The write was refused before the policy was evaluated, or the API server did not answer.
    Unknown(String),
}

impl Server {
    /// Tries to create a HookRun of another node in `namespace`, as a dry run: nothing is stored, even if the write
    /// is allowed.
    pub async fn confinement(&self, namespace: &str) -> Confinement {
        let doing = "trying whether a policy keeps this token to its node";
        let run = json!({
            "apiVersion": HookRun::api_version(&()),
            "kind": HookRun::kind(&()),
            "metadata": {
                "namespace": namespace,
                "name": "inplace-confinement",
                "labels": { annotation::NODE: NOBODY },
            },
            "spec": { "terminate": true, "metrics": [{ "name": "none", "provider": { "web": { "url": "http://192.0.2.1/" } } }] },
        });
        let params = PostParams { dry_run: true, field_manager: Some(MANAGER.to_owned()) };
        let request = Request::new(HookRun::url_path(&(), Some(namespace)));
        let request = request.create(&params, run.to_string().into_bytes());
        judge(self.ask::<IgnoredAny>(doing, request).await.map(drop))
    }
}

fn judge(done: Result<(), Error>) -> Confinement {
    let Err(error) = done else { return Confinement::Open };
    let message = error.message();
    let denied = error.class() == Class::Denied;
    if denied && message.contains("ValidatingAdmissionPolicy '") && message.contains(POLICY) {
        return Confinement::Confined;
    }
    // Policies are evaluated before validating webhooks, so a refusal by the webhook means that no policy refused.
    if message.contains(WEBHOOK) { Confinement::Open } else { Confinement::Unknown(error.to_string()) }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn found(code: u16, message: &str) -> Confinement {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        judge(Err(Error::of("trying", kube::Error::Api(Box::new(status)))))
    }

    #[test]
    fn only_the_word_of_the_policy_itself_counts() {
        assert_eq!(judge(Ok(())), Confinement::Open);
        let ours = "hookruns.tkex.tencent.com \"inplace-confinement\" is forbidden: ValidatingAdmissionPolicy \
            'inplace-agent-hooks' with binding 'inplace-agent-hooks' denied request: the HookRun is not of node a";
        assert_eq!(found(403, ours), Confinement::Confined);
        // An overlay may prefix the policy's name.
        assert_eq!(found(403, &ours.replace("'inplace-", "'team-inplace-")), Confinement::Confined);
        for after in [
            "admission webhook \"validate.inplace.dev\" denied the request: no",
            "Internal error occurred: failed calling webhook \"validate.inplace.dev\": no endpoints",
        ] {
            assert_eq!(found(403, after), Confinement::Open, "{after}");
            assert_eq!(found(500, after), Confinement::Open, "{after}");
        }
        for (code, other) in [
            (403, "ValidatingAdmissionPolicy 'labels' with binding 'labels' denied request: no team"),
            (403, "hookruns is forbidden: User \"x\" cannot create resource \"hookruns\""),
            (404, "the server could not find the requested resource"),
            (403, "exceeded quota: count/hookruns.tkex.tencent.com=10"),
            (500, "etcdserver: request timed out: 'inplace-agent-hooks'"),
        ] {
            assert!(
                matches!(found(code, other), Confinement::Unknown(why) if why.contains(other)),
                "{other}"
            );
        }
    }
}
