//! Decides whether the memory of a pod and of its node is enough for a second container of an application, before one is
//! started beside it.
//!
//! It is an estimate: what the container has allocated by itself, a second one is expected to allocate as well. It must not
//! refuse what is unknown.

use std::collections::BTreeMap;

/// What stays available on the node, in bytes: a kubelet evicts pods when less than 100 MiB is (its default
/// `memory.available`), and it looks only every ten seconds.
const NODE_RESERVE: u64 = 256 << 20;

/// The memory that a pod uses, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What all containers of the pod use together: their working sets, which include the page cache in recent use.
    pub used: u64,
    /// What each container has allocated by itself, without page cache and shared memory, by name.
    pub allocated: BTreeMap<String, u64>,
    /// What is available on the node; `None` if this is unknown.
    pub available: Option<u64>,
}

impl Memory {
    /// Describes what a second `container` in a pod with this memory limit leaves free.
    ///
    /// # Errors
    /// Why there is no room for it.
    pub(super) fn room(&self, container: &str, limit: Option<u64>) -> Result<String, String> {
        let needed = self.allocated.get(container).copied().unwrap_or_default();
        let needs = format!("a second {container} is expected to need {}", mib(needed));
        let used = mib(self.used);
        if let Some(limit) = limit.filter(|limit| self.used.saturating_add(needed) > *limit) {
            return Err(format!("the pod uses {used} of its memory limit of {}, and {needs}", mib(limit)));
        }
        if let Some(available) =
            self.available.filter(|available| needed.saturating_add(NODE_RESERVE) > *available)
        {
            return Err(format!(
                "its node has {} of memory available, of which {} stay free, and {needs}",
                mib(available),
                mib(NODE_RESERVE)
            ));
        }
        Ok(match (limit, self.available) {
            (Some(limit), _) => format!("the pod uses {used} of its memory limit of {}; {needs}", mib(limit)),
            (None, Some(available)) => {
                format!("the pod has no memory limit and its node {} available; {needs}", mib(available))
            }
            (None, None) => format!("the pod has no memory limit; {needs}"),
        })
    }
}

/// What is said about the memory for both when it was not observed. The agent of the pod's node observes it.
pub(super) fn unobserved(limit: Option<u64>) -> String {
    let limit = limit.map_or_else(
        || "the memory of the node".to_owned(),
        |limit| format!("the pod's memory limit of {}", mib(limit)),
    );
    format!(
        "both count against {limit}, and the agent refuses the request if what is in use leaves no room for both"
    )
}

/// The amount in MiB, rounded up.
fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn memory(used: u64, allocated: u64, available: Option<u64>) -> Memory {
        let allocated = [("app".to_owned(), allocated * MIB)].into();
        Memory { used: used * MIB, allocated, available: available.map(|available| available * MIB) }
    }

    #[test]
    fn there_is_room_for_what_fits_into_the_pod_and_the_node() {
        for (used, allocated, available, limit, fits, said) in [
            (60, 50, Some(1000), Some(128), true, "uses 60 MiB of its memory limit of 128 MiB"),
            (60, 68, Some(1000), Some(128), true, "a second app is expected to need 68 MiB"),
            (60, 69, Some(1000), Some(128), false, "uses 60 MiB of its memory limit of 128 MiB, and"),
            (60, 50, Some(305), Some(128), false, "its node has 305 MiB of memory available"),
            (60, 50, Some(306), None, true, "its node 306 MiB available"),
            (60, 50, Some(305), None, false, "of which 256 MiB stay free"),
            (60, 50, None, None, true, "no memory limit; a second"),
            (u64::MAX / MIB, 1, None, Some(128), false, "memory limit of 128 MiB"),
        ] {
            let room = memory(used, allocated, available).room("app", limit.map(|limit| limit * MIB));
            assert_eq!(room.is_ok(), fits, "{room:?}");
            let text = room.unwrap_or_else(|why| why);
            assert!(text.contains(said), "{text}");
        }
        // The allocation of another container says nothing.
        assert!(memory(100, 100, Some(256)).room("side", Some(128 * MIB)).is_ok());
    }
}
