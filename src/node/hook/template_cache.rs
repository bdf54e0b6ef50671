//! A cache of the hook templates that are defined in files.
//!
//! Filled by the watcher of the files; reads no file itself.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use crate::api::hook_template::HookTemplateSpec;

/// Templates by namespace and name. Clones share the content.
#[derive(Clone, Default)]
pub struct TemplateCache(Arc<RwLock<Templates>>);

type Templates = BTreeMap<(String, String), HookTemplateSpec>;

impl std::fmt::Debug for TemplateCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TemplateCache")
    }
}

impl TemplateCache {
    /// Replaces the whole content.
    pub fn fill(&self, templates: Templates) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = templates;
    }

    /// The template of this name, if it is cached.
    pub fn get(&self, namespace: &str, name: &str) -> Option<HookTemplateSpec> {
        let templates = self.0.read().unwrap_or_else(PoisonError::into_inner);
        templates.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }
}
