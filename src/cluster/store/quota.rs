//! Limits the size of the cached objects of each namespace, for kinds of which users can create any number. Objects
//! beyond the limit are not cached; only their own namespace is affected.

use std::collections::{BTreeSet, HashMap};

/// The size of one object and the limit that it counts towards.
pub(crate) struct Share {
    pub(crate) namespace: String,
    pub(crate) bytes: usize,
    /// The limit for the objects of one namespace.
    pub(crate) most: usize,
}

/// The size of the cached objects, by namespace.
#[derive(Default)]
pub(super) struct Quota {
    bytes: HashMap<String, usize>,
    /// Namespaces whose limit has been logged as exceeded.
    full: BTreeSet<String>,
}

impl Quota {
    /// Counts an object of this kind; false if it must not be cached.
    pub(super) fn admits(&mut self, kind: &str, share: Option<Share>) -> bool {
        let Some(Share { namespace, bytes, most }) = share else { return true };
        let used = self.bytes.get(&namespace).copied().unwrap_or_default();
        if used.saturating_add(bytes) > most {
            if !self.full.contains(&namespace) {
                tracing::warn!(
                    "namespace {namespace} has more {kind}s than the cache holds of one namespace ({} KiB): the others are \
                     ignored",
                    most >> 10
                );
                self.full.insert(namespace);
            }
            return false;
        }
        self.bytes.insert(namespace, used + bytes);
        true
    }

    /// Subtracts an admitted object that is gone.
    pub(super) fn give_back(&mut self, share: Option<Share>) {
        let Some(Share { namespace, bytes, .. }) = share else { return };
        self.full.remove(&namespace);
        if let Some(used) = self.bytes.get_mut(&namespace) {
            *used = used.saturating_sub(bytes);
            if *used == 0 {
                self.bytes.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_excess_of_one_namespace_is_not_cached_and_no_other_namespace_is_affected() {
        let mut quota = Quota::default();
        let share =
            |namespace: &str, bytes| Some(Share { namespace: namespace.to_owned(), bytes, most: 100 });
        assert!(quota.admits("Thing", share("shop", 60)));
        assert!(!quota.admits("Thing", share("shop", 60)), "too much");
        assert!(quota.admits("Thing", share("shop", 40)), "as much as there may be");
        assert!(quota.admits("Thing", share("other", 100)));
        assert!(quota.admits("Thing", None), "nobody counts");
        quota.give_back(share("shop", 60));
        assert!(quota.admits("Thing", share("shop", 60)));
        quota.give_back(share("other", 100));
        assert!(!quota.bytes.contains_key("other"), "nothing is used of what is gone");
    }
}
