//! Decides which pod a sandbox belongs to. Every lookup of a pod's sandbox and containers uses this module.
//!
//! The identity of a sandbox is its metadata, which the runtime stores apart from labels and annotations; those
//! contain what users write on their pods. A uid alone never suffices: namespace, name and uid are compared. If the
//! API server shows the mirror of a static pod, the sandbox must also be one that its kubelet created from a file or
//! URL.

use std::collections::HashSet;

use crate::api::annotation;
use crate::cri::client::Client;
use crate::cri::convert;
use crate::cri::error::Error;
use crate::cri::proto::v1;
use crate::operation::snapshot::Owner;

pub use crate::api::pod_ref::PodRef;
pub use crate::operation::snapshot::Origin;

/// The pod that a caller asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The namespace, name and uid of the pod.
    pub pod: PodRef,
    /// Where the pod comes from according to the API server.
    pub origin: Origin,
}

/// The sandbox on this node under the requested uid belongs to another pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the sandbox with the uid of pod {0} on this node belongs to another pod. The annotation \
     kubernetes.io/config.mirror is valid only on the mirror pod of a static pod: remove it from any other pod"
)]
pub struct Mismatch(pub PodRef);

/// The pod of a sandbox; `None` if the pod labels are missing or contradict the metadata.
pub fn pod_of(sandbox: &v1::PodSandbox) -> Option<PodRef> {
    let v1::PodSandboxMetadata { name, uid, namespace, .. } = sandbox.metadata.clone()?;
    let marked = |key: &str, value: &str| sandbox.labels.get(key).is_some_and(|label| label == value);
    let agrees = marked(annotation::POD_UID, &uid)
        && marked(annotation::POD_NAME, &name)
        && marked(annotation::POD_NAMESPACE, &namespace);
    agrees.then_some(PodRef { namespace, name, uid })
}

/// Those of `sandboxes` that belong to the requested pod. The caller passes the sandboxes under the requested uid.
/// An empty list is no mismatch.
pub fn own(asked: &Asked, sandboxes: Vec<v1::PodSandbox>) -> Result<Vec<v1::PodSandbox>, Mismatch> {
    let any = !sandboxes.is_empty();
    let own: Vec<_> = sandboxes.into_iter().filter(|sandbox| is_of(sandbox, asked)).collect();
    if any && own.is_empty() { Err(Mismatch(asked.pod.clone())) } else { Ok(own) }
}

fn is_of(sandbox: &v1::PodSandbox, asked: &Asked) -> bool {
    let is_static = convert::owner(sandbox) == Owner::KubeletStatic;
    let fits = match asked.origin {
        Origin::Api => !is_static,
        Origin::Mirror => is_static,
        Origin::Unknown => true,
    };
    fits && pod_of(sandbox).as_ref() == Some(&asked.pod)
}

/// The pod's newest sandbox and its containers, plus the fences in earlier sandboxes: a container name is unique in
/// the whole pod.
pub async fn look_up(
    client: &Client,
    asked: &Asked,
) -> Result<Result<Option<(v1::PodSandbox, Vec<v1::Container>)>, Mismatch>, Error> {
    let label = Some((annotation::POD_UID, asked.pod.uid.as_str()));
    let (sandboxes, containers) = tokio::try_join!(client.sandboxes(label), client.containers(label))?;
    Ok(belonging(asked, sandboxes, containers))
}

/// What of these sandboxes and containers belongs to the pod; see [`look_up`].
pub(super) fn belonging(
    asked: &Asked,
    sandboxes: Vec<v1::PodSandbox>,
    mut containers: Vec<v1::Container>,
) -> Result<Option<(v1::PodSandbox, Vec<v1::Container>)>, Mismatch> {
    own(asked, sandboxes).map(|sandboxes| {
        let all: HashSet<_> = sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
        let newest = newest(sandboxes)?;
        containers.retain(|container| {
            let earlier = all.contains(&container.pod_sandbox_id) && convert::is_fence(&container.labels);
            container.pod_sandbox_id == newest.id || earlier
        });
        Some((newest, containers))
    })
}

fn newest(sandboxes: Vec<v1::PodSandbox>) -> Option<v1::PodSandbox> {
    sandboxes.into_iter().max_by_key(|sandbox| {
        (sandbox.metadata.as_ref().map_or(0, |metadata| metadata.attempt), sandbox.created_at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str, uid: &str) -> PodRef {
        PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() }
    }

    fn sandbox(pod: &PodRef, source: &str) -> v1::PodSandbox {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        v1::PodSandbox {
            id: format!("{pod} {source}"),
            metadata: Some(v1::PodSandboxMetadata {
                name: pod.name.clone(),
                namespace: pod.namespace.clone(),
                uid: pod.uid.clone(),
                attempt: 0,
            }),
            labels: [
                pair(annotation::POD_NAME, &pod.name),
                pair(annotation::POD_NAMESPACE, &pod.namespace),
                pair(annotation::POD_UID, &pod.uid),
            ]
            .into(),
            annotations: [pair(annotation::CONFIG_SOURCE, source)].into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_sandbox_is_that_of_the_pod_with_its_namespace_name_and_uid_alone() {
        let vault = pod("bank", "vault", "u1");
        for (asked, source, origin, fits) in [
            (vault.clone(), "api", Origin::Api, true),
            (vault.clone(), "api", Origin::Unknown, true),
            (vault.clone(), "file", Origin::Unknown, true),
            (vault.clone(), "file", Origin::Mirror, true),
            (vault.clone(), "http", Origin::Mirror, true),
            (vault.clone(), "api", Origin::Mirror, false),
            (vault.clone(), "", Origin::Mirror, false),
            (vault.clone(), "made up", Origin::Mirror, false),
            (vault.clone(), "file", Origin::Api, false),
            (pod("shop", "vault", "u1"), "api", Origin::Api, false),
            (pod("shop", "vault", "u1"), "file", Origin::Mirror, false),
            (pod("bank", "evil", "u1"), "file", Origin::Mirror, false),
            (pod("bank", "vault", "u2"), "api", Origin::Unknown, false),
        ] {
            let asked = Asked { pod: asked, origin };
            let own = own(&asked, vec![sandbox(&vault, source)]);
            assert_eq!(own.is_ok_and(|own| own.len() == 1), fits, "{asked:?} {source}");
        }
        assert_eq!(own(&Asked { pod: vault, origin: Origin::Mirror }, Vec::new()), Ok(Vec::new()));
    }

    #[test]
    fn labels_cannot_stand_in_for_the_metadata() {
        let (evil, vault) = (pod("shop", "evil", "u2"), pod("bank", "vault", "u1"));
        let mut shadowed = sandbox(&evil, "api");
        assert_eq!(pod_of(&shadowed), Some(evil));
        shadowed.labels = sandbox(&vault, "api").labels;
        assert_eq!(pod_of(&shadowed), None);
        let asked = Asked { pod: vault.clone(), origin: Origin::Api };
        assert_eq!(own(&asked, vec![shadowed.clone()]), Err(Mismatch(vault.clone())));
        // It does not affect the lookup of the real pod either.
        let all = vec![shadowed, sandbox(&vault, "api")];
        assert_eq!(own(&asked, all).map(|own| own.len()), Ok(1));
        let mut bare = sandbox(&vault, "api");
        bare.metadata = None;
        assert_eq!(pod_of(&bare), None);
    }
}
