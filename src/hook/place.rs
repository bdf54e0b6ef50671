//! Where a hook is measured: the pod it is about, in the words of this module.

/// Where `kubernetes` and `exec` work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The hook's namespace: nothing outside of it is touched.
    pub namespace: String,
    /// The pod; `None` for a hook that belongs to none.
    pub pod: Option<HookPod>,
}

/// The pod of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookPod {
    /// Its name.
    pub name: String,
    /// Its uid, as its runtime knows it: a pod of the same name made again is another pod.
    pub uid: String,
}
