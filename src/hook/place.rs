//! The pod and namespace that the providers `kubernetes` and `exec` of a hook work on. Must not look the pod up.

use crate::cri::identity::{Asked, Origin, PodRef};

/// The namespace and pod on which `kubernetes` and `exec` work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The hook's namespace. A hook touches nothing in other namespaces.
    pub namespace: String,
    /// The pod; `None` for a hook without a pod.
    pub pod: Option<HookPod>,
    /// The containers whose commands run in their standbys.
    pub standbys: Vec<String>,
}

impl Place {
    /// The pod, as a query to the runtime.
    pub fn asked(&self) -> Option<Asked> {
        let HookPod { name, uid, origin } = self.pod.clone()?;
        Some(Asked { pod: PodRef { namespace: self.namespace.clone(), name, uid }, origin })
    }
}

/// The pod of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPod {
    /// The name of the pod.
    pub name: String,
    /// The uid at the runtime: a pod that was created again under the same name is another pod.
    pub uid: String,
    /// Where the API server says that the pod comes from; this decides how far the uid can be trusted.
    pub origin: Origin,
}
