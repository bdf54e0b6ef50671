//! Limits the size of the cached objects of each namespace, for kinds of which users can create any number, and for some of
//! them the size of all. Objects beyond a limit are not cached. A namespace that uses little is not affected by the others.

use std::collections::{BTreeSet, HashMap};

/// This part of its limit is left to each namespace, also if the others have used what there is for all.
const LEFT_TO_EACH: usize = 16;
/// The keys of refused objects that are remembered. Beyond them only the namespace is.
const MAX_REFUSED: usize = 1024;

/// The size of one object and the limits that it counts towards.
pub(crate) struct Share {
    pub(crate) namespace: String,
    pub(crate) bytes: usize,
    /// The limit for the objects of one namespace.
    pub(crate) most: usize,
    /// The limit for the objects of all namespaces.
    pub(crate) most_of_all: Option<usize>,
}

/// The size of the cached objects, by namespace.
#[derive(Default)]
pub(super) struct Quota {
    bytes: HashMap<String, usize>,
    /// The size of all.
    all: usize,
    /// Namespaces of which an object was not cached, as it was logged.
    full: BTreeSet<String>,
    /// Keys of the objects that were not cached and may still exist, and beginnings of keys (`namespace/`), which stay
    /// until the next list.
    refused: BTreeSet<String>,
}

impl Quota {
    /// Counts an object of this kind; false if it must not be cached. `is_new`: not a newer version of one that was
    /// cached. Such a one is never refused because of other namespaces: somebody may be working with it.
    pub(super) fn admits(&mut self, kind: &str, share: Option<Share>, is_new: bool) -> bool {
        let Some(Share { namespace, bytes, most, most_of_all }) = share else { return true };
        let used = self.bytes.get(&namespace).copied().unwrap_or_default() + bytes;
        let most_of_all = most_of_all.filter(|_| is_new && used > most / LEFT_TO_EACH);
        let exceeded =
            if used > most { Some(most) } else { most_of_all.filter(|all| self.all + bytes > *all) };
        if let Some(limit) = exceeded {
            if !self.full.contains(&namespace) {
                let of = if used > most { "one namespace" } else { "all namespaces" };
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

    /// Remembers an object that was not admitted.
    pub(super) fn refuse(&mut self, mut key: String) {
        if self.refused.len() >= MAX_REFUSED {
            key.truncate(key.find('/').map_or(0, |at| at + 1));
        }
        self.refused.insert(key);
    }

    /// Forgets that an object was not admitted: it is gone, or there is a newer version of it. False if it was not known.
    pub(super) fn forget(&mut self, key: &str) -> bool {
        self.refused.remove(key)
    }

    /// True if an object of this namespace, with which its key begins, was not cached and may still exist.
    pub(super) fn has_refused(&self, namespace: &str) -> bool {
        let within = format!("{namespace}/");
        let next = self.refused.range(within.clone()..).next();
        next.is_some_and(|key| key.starts_with(&within))
    }

    /// Takes over what was refused by `list`, the quota of a new list.
    pub(super) fn take_refused(&mut self, list: Self) {
        self.refused = list.refused;
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
        Share { namespace: namespace.to_owned(), bytes, most: 100, most_of_all: Some(200) }
    }

    #[test]
    fn the_excess_of_one_namespace_is_not_cached_and_no_other_namespace_is_affected() {
        let mut quota = Quota::default();
        assert!(quota.admits("Thing", Some(share("shop", 60)), true));
        assert!(!quota.admits("Thing", Some(share("shop", 60)), true), "too much");
        assert!(quota.admits("Thing", Some(share("shop", 40)), true), "as much as there may be");
        assert!(quota.admits("Thing", Some(share("other", 100)), true));
        assert!(quota.admits("Thing", None, true), "nobody counts");
        quota.give_back(Some(share("shop", 60)));
        assert!(quota.admits("Thing", Some(share("shop", 60)), true));
        quota.give_back(Some(share("other", 100)));
        assert!(!quota.bytes.contains_key("other"), "nothing is used of what is gone");
    }

    #[test]
    fn a_namespace_has_refused_objects_until_the_last_of_them_is_gone() {
        let mut quota = Quota::default();
        for key in ["shop/a", "shop/b", "shop-2/a"] {
            quota.refuse(key.to_owned());
        }
        assert!(quota.has_refused("shop") && !quota.has_refused("sho") && !quota.has_refused("other"));
        quota.forget("shop/a");
        assert!(quota.has_refused("shop"));
        quota.forget("shop/b");
        assert!(!quota.has_refused("shop") && quota.has_refused("shop-2"));
        for number in 0..2 * MAX_REFUSED {
            quota.refuse(format!("hostile/{number}"));
        }
        quota.refuse("shop/a".to_owned());
        assert_eq!(quota.refused.len(), MAX_REFUSED + 2, "of what is too much only the namespaces");
        quota.forget("shop/a");
        assert!(quota.has_refused("shop"), "not known before the next list");
        quota.take_refused(Quota::default());
        assert!(!quota.has_refused("shop") && !quota.has_refused("hostile"));
    }

    #[test]
    fn what_is_exchanged_is_given_back_as_what_it_is_now() {
        let mut quota = Quota::default();
        assert!(quota.admits("Thing", Some(share("shop", 90)), true));
        quota.exchange(Some(share("shop", 90)), Some(share("shop", 110)));
        assert!(!quota.admits("Thing", Some(share("shop", 1)), true));
        quota.give_back(Some(share("shop", 110)));
        assert_eq!((quota.all, quota.bytes.len()), (0, 0));
    }

    #[test]
    fn many_namespaces_fill_no_more_than_there_is_for_all_and_leave_a_part_to_each_other_one() {
        let mut quota = Quota::default();
        for namespace in 0..50 {
            for _ in 0..100 {
                quota.admits("Thing", Some(share(&format!("hostile-{namespace}"), 1)), true);
            }
        }
        assert_eq!(quota.all, 200 + 48 * (100 / LEFT_TO_EACH));
        assert!(quota.admits("Thing", Some(share("shop", 6)), true));
        assert!(!quota.admits("Thing", Some(share("shop", 1)), true), "the others use all");
        quota.give_back(Some(share("shop", 6)));
        assert!(quota.admits("Thing", Some(share("shop", 7)), false), "it was there before");
        let alone = Some(Share { most_of_all: None, ..share("shop", 50) });
        assert!(quota.admits("Thing", alone, true), "the kind has no limit for all");
        for namespace in ["hostile-0", "hostile-1"] {
            quota.give_back(Some(share(namespace, 100)));
        }
        assert!(!quota.admits("Thing", Some(share("bank", 70)), true), "this is more than became free");
    }
}
