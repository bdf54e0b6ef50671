//! Resolves the hooks of a request as the agent would, as far as the API server allows. Runs no hook.

use k8s_openapi::api::core::v1::Pod;

use crate::api::hook_run::HookRunSpec;
use crate::api::request::{HookRef, Request};
use crate::cli::pod::server::PodClient;
use crate::hook::args::Injected;
use crate::hook::check;
use crate::operation::preflight::{BadHook, Hooks};

/// Reads the templates. What cannot be read is listed in `unseen` and left to the agent.
pub(super) async fn named(
    server: &PodClient,
    pod: &Pod,
    request: &Request,
    unseen: &mut Vec<String>,
) -> Hooks {
    let mut injected = injected(pod);
    injected.modified = request.modified_for_pre_hook();
    let pre = prepare(server, request.pre_hook.as_ref(), &injected, unseen).await;
    injected.modified.clear();
    let post = prepare(server, request.post_hook.as_ref(), &injected, unseen).await;
    Hooks { pre, post }
}

async fn prepare(
    server: &PodClient,
    named: Option<&HookRef>,
    injected: &Injected,
    unseen: &mut Vec<String>,
) -> Option<Result<HookRunSpec, BadHook>> {
    let HookRef { template_name, args, phase: _ } = named?;
    Some(match server.hook_template(&injected.pod_namespace, template_name).await {
        Ok(None) => Err(BadHook::Missing),
        Ok(Some(template)) => check::for_agent(&template.spec, args, injected)
            .map_err(|invalid| BadHook::Invalid(invalid.to_string())),
        Err(error) => {
            unseen.push(format!("whether the HookTemplate {template_name} can be run ({error})"));
            Ok(HookRunSpec { metrics: Vec::new(), args: Vec::new(), terminate: false, policy: None })
        }
    })
}

/// The values that the pod injects into its hooks.
fn injected(pod: &Pod) -> Injected {
    let text = |field: Option<&String>| field.cloned().unwrap_or_default();
    let status = pod.status.as_ref();
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    Injected {
        pod_name: text(pod.metadata.name.as_ref()),
        pod_namespace: text(pod.metadata.namespace.as_ref()),
        pod_ip: text(status.and_then(|status| status.pod_ip.as_ref())),
        host_ip: text(status.and_then(|status| status.host_ip.as_ref())),
        containers: containers.map(|container| container.name.clone()).collect(),
        modified: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pod::assemble::tests::pod;

    #[test]
    fn what_is_injected_is_what_the_agent_would_see() {
        let injected = injected(&pod());
        assert_eq!((injected.pod_name.as_str(), injected.pod_namespace.as_str()), ("web", "default"));
        assert_eq!(injected.containers, ["app", "side"], "without init containers");
        assert!(!injected.pod_ip.is_empty() && !injected.host_ip.is_empty(), "{injected:?}");
    }
}
