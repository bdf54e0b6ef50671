//! A bounded cache of the templates in revisions. It needs no invalidation, because the content of a
//! `ControllerRevision` never changes.
//!
//! The templates are cached as text, which takes a fraction of the memory of the parsed form.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::api::pod_template::PodTemplate;

/// The limit for one namespace, in bytes.
const MAX_BYTES_OF_NAMESPACE: usize = 4 << 20;
/// The limit for all namespaces together, in bytes.
const MAX_BYTES: usize = 32 << 20;

/// Templates by the uids of their revisions.
#[derive(Debug, Default)]
pub(crate) struct Contents(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    texts: HashMap<String, Cached>,
    /// Incremented with every use, to find the least recently used entry.
    clock: u64,
}

#[derive(Debug)]
struct Cached {
    namespace: String,
    template: String,
    used: u64,
}

impl Contents {
    /// The template of the revision with this uid, and its size as text in bytes.
    pub(crate) fn get(&self, uid: &str) -> Option<(PodTemplate, usize)> {
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.clock += 1;
        let now = cache.clock;
        let found = cache.texts.get_mut(uid)?;
        found.used = now;
        Some((serde_json::from_str(&found.template).ok()?, found.template.len()))
    }

    /// Caches a template; evicts the least recently used ones if needed. Returns its size as text in bytes.
    pub(crate) fn put(&self, namespace: &str, uid: &str, template: &PodTemplate) -> usize {
        let text = template.0.to_string();
        let bytes = text.len();
        let mut cache = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cache.texts.remove(uid);
        if bytes > MAX_BYTES_OF_NAMESPACE {
            return bytes;
        }
        cache.evict(bytes, MAX_BYTES_OF_NAMESPACE, |text| text.namespace == namespace);
        cache.evict(bytes, MAX_BYTES, |_| true);
        cache.clock += 1;
        let cached = Cached { namespace: namespace.to_owned(), template: text, used: cache.clock };
        cache.texts.insert(uid.to_owned(), cached);
        bytes
    }
}

impl Cache {
    fn evict(&mut self, bytes: usize, most: usize, counts: impl Fn(&Cached) -> bool) {
        let mut total: usize =
            self.texts.values().filter(|text| counts(text)).map(|text| text.template.len()).sum();
        while total + bytes > most {
            let counted = self.texts.iter().filter(|(_, text)| counts(text));
            let Some((uid, size)) = counted
                .min_by_key(|(_, text)| text.used)
                .map(|(uid, text)| (uid.clone(), text.template.len()))
            else {
                return;
            };
            self.texts.remove(&uid);
            total -= size;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cache_of_one_namespace_and_of_all_is_bounded_and_the_oldest_goes_first() {
        let contents = Contents::default();
        let template = PodTemplate(json!({"a": "x".repeat(1 << 20)}));
        for at in 0..10 {
            contents.put("attacker", &format!("uid-{at}"), &template);
            assert!(contents.get("uid-0").is_some(), "it was used");
        }
        let held = |contents: &Contents| {
            let cache = contents.0.lock().unwrap();
            cache.texts.values().map(|text| text.template.len()).sum::<usize>()
        };
        assert!(held(&contents) <= MAX_BYTES_OF_NAMESPACE);
        assert_eq!(contents.get("uid-9").map(|(template, _)| template), Some(template.clone()));
        assert_eq!(contents.get("uid-5"), None);
        for at in 0..100 {
            contents.put(&format!("shop-{at}"), &format!("other-{at}"), &template);
        }
        assert!(held(&contents) <= MAX_BYTES);
        let huge = PodTemplate(json!("x".repeat(MAX_BYTES_OF_NAMESPACE)));
        contents.put("shop", "huge", &huge);
        assert_eq!(contents.get("huge"), None);
    }
}
