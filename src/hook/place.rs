//! Where a hook is measured: the pod it is about, in the words of this module.

use crate::cri::identity::{Asked, Origin, PodRef};

/// Where `kubernetes` and `exec` work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The hook's namespace: nothing outside of it is touched.
    pub namespace: String,
    /// The pod; `None` for a hook that belongs to none.
    pub pod: Option<HookPod>,
}

impl Place {
    /// The pod, as the runtime is asked for it.
    pub fn asked(&self) -> Option<Asked> {
        let HookPod { name, uid, origin } = self.pod.clone()?;
        Some(Asked { pod: PodRef { namespace: self.namespace.clone(), name, uid }, origin })
    }
}

/// The pod of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPod {
    /// Its name.
    pub name: String,
    /// Its uid, as its runtime knows it: a pod of the same name made again is another pod.
    pub uid: String,
    /// Where the API server says that it comes from: what the uid is worth.
    pub origin: Origin,
}
