//! Limits the size of the cached objects of each namespace and of all together, for kinds of which users can create any
//! number. Objects beyond a limit are not cached. A namespace that uses little is not affected by the others.

use std::collections::{BTreeSet, HashMap};

/// The limit for all namespaces together is that of so many.
const FULL_NAMESPACES: usize = 2;
/// This part of its limit is left to each namespace, also if the others have used what there is for all.
const LEFT_TO_EACH: usize = 32;

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
    /// The size of all.
    all: usize,
    /// Namespaces of which an object was not cached, as it was logged.
    full: BTreeSet<String>,
}

impl Quota {
    /// Counts an object of this kind; false if it must not be cached.
    pub(super) fn admits(&mut self, kind: &str, share: Option<Share>) -> bool {
        let Some(Share { namespace, bytes, most }) = share else { return true };
        let used = self.bytes.get(&namespace).copied().unwrap_or_default() + bytes;
        let is_left = used <= most / LEFT_TO_EACH || self.all + bytes <= most * FULL_NAMESPACES;
        if used > most || !is_left {
            if !self.full.contains(&namespace) {
                let (limit, of) = if used > most {
                    (most, "one namespace")
                } else {
                    (most * FULL_NAMESPACES, "all namespaces")
                };
                tracing::warn!(
                    "namespace {namespace} has more {kind}s than are cached ({} KiB of {of}): the others are ignored",
                    limit >> 10
                );
                self.full.insert(namespace);
            }
            return false;
        }
        self.count(namespace, bytes);
        true
    }

    fn count(&mut self, namespace: String, bytes: usize) {
        *self.bytes.entry(namespace).or_default() += bytes;
        self.all += bytes;
    }

    /// Counts an object in place of an admitted one that it does not differ from for any caller, whatever the limit: only
    /// what nobody uses can be larger.
    pub(super) fn exchange(&mut self, old: Option<Share>, new: Option<Share>) {
        if let Some(old) = old {
            self.subtract(&old);
        }
        if let Some(Share { namespace, bytes, .. }) = new {
            self.count(namespace, bytes);
        }
    }

    /// Subtracts an admitted object that is gone.
    pub(super) fn give_back(&mut self, share: Option<Share>) {
        let Some(share) = share else { return };
        self.full.remove(&share.namespace);
        self.subtract(&share);
    }

    fn subtract(&mut self, Share { namespace, bytes, .. }: &Share) {
        self.all = self.all.saturating_sub(*bytes);
        if let Some(used) = self.bytes.get_mut(namespace) {
            *used = used.saturating_sub(*bytes);
            if *used == 0 {
                self.bytes.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(namespace: &str, bytes: usize) -> Share {
        Share { namespace: namespace.to_owned(), bytes, most: 100 }
    }

    #[test]
    fn the_excess_of_one_namespace_is_not_cached_and_no_other_namespace_is_affected() {
        let mut quota = Quota::default();
        assert!(quota.admits("Thing", Some(share("shop", 60))));
        assert!(!quota.admits("Thing", Some(share("shop", 60))), "too much");
        assert!(quota.admits("Thing", Some(share("shop", 40))), "as much as there may be");
        assert!(quota.admits("Thing", Some(share("other", 100))));
        assert!(quota.admits("Thing", None), "nobody counts");
        quota.give_back(Some(share("shop", 60)));
        assert!(quota.admits("Thing", Some(share("shop", 60))));
        quota.give_back(Some(share("other", 100)));
        assert!(!quota.bytes.contains_key("other"), "nothing is used of what is gone");
    }

    #[test]
    fn what_is_exchanged_is_given_back_as_what_it_is_now() {
        let mut quota = Quota::default();
        assert!(quota.admits("Thing", Some(share("shop", 90))));
        quota.exchange(Some(share("shop", 90)), Some(share("shop", 110)));
        assert!(!quota.admits("Thing", Some(share("shop", 1))));
        quota.give_back(Some(share("shop", 110)));
        assert_eq!((quota.all, quota.bytes.len()), (0, 0));
    }

    #[test]
    fn many_namespaces_fill_no_more_than_two_and_leave_a_part_to_each_other_one() {
        let mut quota = Quota::default();
        for namespace in 0..50 {
            for _ in 0..100 {
                quota.admits("Thing", Some(share(&format!("hostile-{namespace}"), 1)));
            }
        }
        assert_eq!(quota.all, 100 * FULL_NAMESPACES + 48 * (100 / LEFT_TO_EACH));
        assert!(quota.admits("Thing", Some(share("shop", 3))));
        assert!(!quota.admits("Thing", Some(share("shop", 1))), "the others use all");
        for namespace in ["hostile-0", "hostile-1"] {
            for _ in 0..100 {
                quota.give_back(Some(share(namespace, 1)));
            }
        }
        assert!(quota.admits("Thing", Some(share("shop", 50))));
        assert!(!quota.admits("Thing", Some(share("shop", 4))), "this is more than became free");
    }
}
