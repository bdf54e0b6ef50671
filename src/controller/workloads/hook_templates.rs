//! The cached `HookTemplate`s of a namespace, as decisions ask for them: whether one can be used is what whoever runs the hook
//! would say. Runs no hook.

use crate::api::hook_run::HookRunSpec;
use crate::api::hook_template::HookTemplateSpec;
use crate::api::request::HookArg;
use crate::controller::workloads::cache::Workloads;
use crate::hook::args::Injected;
use crate::hook::check::{self, Invalid};
use crate::podtask::pod::Pod;
use crate::workload::hooks::{HookTemplates, TemplateState};

/// The `HookTemplate`s of one namespace.
#[derive(Debug)]
pub(super) struct CachedTemplates<'a> {
    pub(super) cache: &'a Workloads,
    pub(super) namespace: &'a str,
}

impl CachedTemplates<'_> {
    fn state(
        &self,
        template: &str,
        check: impl FnOnce(&HookTemplateSpec) -> Result<HookRunSpec, Invalid>,
    ) -> TemplateState {
        let Some(cached) = self.cache.template(self.namespace, template) else {
            return TemplateState::Missing;
        };
        let Some(hook) = &cached.value.0 else {
            let odd =
                "it cannot be decoded: check that the CRD is that of this release (`inplace crds` prints it)";
            return TemplateState::Invalid(odd.to_owned());
        };
        TemplateState::of(check(hook))
    }
}

impl HookTemplates for CachedTemplates<'_> {
    fn for_run(&self, template: &str, args: &[HookArg]) -> TemplateState {
        self.state(template, |hook| check::prepare(hook, args, None))
    }

    fn for_agent(&self, template: &str, args: &[HookArg], pod: &Pod) -> TemplateState {
        let injected = Injected {
            pod_name: pod.name.clone(),
            pod_namespace: self.namespace.to_owned(),
            pod_ip: pod.ip.clone().unwrap_or_default(),
            host_ip: pod.host_ip.clone().unwrap_or_default(),
            containers: pod.images.iter().map(|(name, _)| name.clone()).collect(),
            modified: Vec::new(),
        };
        self.state(template, |hook| check::for_agent(hook, args, &injected))
    }
}
