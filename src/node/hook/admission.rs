//! Resolves the hooks that a request names to their templates with all arguments, or to the reason why they cannot
//! run.
//!
//! Runs no hook.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use crate::api::hook_run::HookRunSpec;
use crate::api::pod_ref::PodRef;
use crate::api::request::{HookRef, Request};
use crate::cri::client::Client;
use crate::hook::args::Injected;
use crate::hook::check;
use crate::node::hook::Hooks;
use crate::node::{Error, Node};
use crate::operation::preflight::{self, BadHook};
use crate::operation::snapshot::Snapshot;

impl Node {
    /// Resolves the hooks that `request` names, for the preflight.
    pub(in crate::node) async fn named_hooks(
        &self,
        request: &Request,
        snapshot: &Snapshot,
    ) -> Result<preflight::Hooks, Error> {
        let (Some(hooks), Some(sandbox)) = (&self.hooks, &snapshot.sandbox) else {
            return Ok(preflight::Hooks::default());
        };
        if request.pre_hook.is_none() && request.post_hook.is_none() {
            return Ok(preflight::Hooks::default());
        }
        let mut injected = self.injected(&sandbox.pod, &sandbox.id, snapshot).await?;
        injected.modified = request.modified_for_pre_hook();
        let pre = prepare(hooks, &sandbox.pod, request.pre_hook.as_ref(), &injected).await?;
        injected.modified.clear();
        let post = prepare(hooks, &sandbox.pod, request.post_hook.as_ref(), &injected).await?;
        Ok(preflight::Hooks { pre, post })
    }

    /// The argument values that come from the pod.
    async fn injected(&self, pod: &PodRef, sandbox: &str, snapshot: &Snapshot) -> Result<Injected, Error> {
        let cached = self.cluster.as_ref().and_then(|pods| pods.get(pod));
        let (pod_ip, host_ip, containers) = if let Some(cached) = cached {
            let (pod_ip, host_ip) = cached.addresses();
            let regular = cached.declared(true).containers.into_iter().filter(|c| !c.sidecar);
            (pod_ip.to_owned(), host_ip.to_owned(), regular.map(|container| container.name).collect())
        } else {
            let (pod_ip, host_ip) = addresses(&self.client, sandbox).await?;
            (pod_ip, host_ip, in_order(snapshot))
        };
        let (pod_name, pod_namespace) = (pod.name.clone(), pod.namespace.clone());
        Ok(Injected { pod_name, pod_namespace, pod_ip, host_ip, containers, modified: Vec::new() })
    }
}

/// Resolves the hook `named` to a specification that can be run.
async fn prepare(
    hooks: &Hooks,
    pod: &PodRef,
    named: Option<&HookRef>,
    injected: &Injected,
) -> Result<Option<Result<HookRunSpec, BadHook>>, Error> {
    let Some(HookRef { template_name, args, phase: _ }) = named else { return Ok(None) };
    let template = hooks.templates.get(&pod.namespace, template_name).await;
    Ok(Some(match template.map_err(Error::Hook)? {
        None => Err(BadHook::Missing),
        Some(template) => check::for_agent(&template, args, injected)
            .map_err(|invalid| BadHook::Invalid(invalid.to_string())),
    }))
}

/// The pod's own address, and the address by which the pod reaches this node. Used if no API server reports them.
async fn addresses(client: &Client, sandbox: &str) -> Result<(String, String), Error> {
    let answer = client.sandbox(sandbox, false).await?.and_then(|answer| answer.status);
    let ip = answer.and_then(|status| status.network).map(|network| network.ip).unwrap_or_default();
    // A pod in the node's network has no address of its own.
    let pod: IpAddr = ip.parse().unwrap_or(Ipv4Addr::LOCALHOST.into());
    Ok((pod.to_string(), facing(pod).map(|host| host.to_string()).unwrap_or_default()))
}

/// The address of this node from which traffic to `pod` would leave. Sends no packet.
fn facing(pod: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if pod.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((pod, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The names of the pod's containers in the order of their first creation, which is the order of the pod's spec.
fn in_order(snapshot: &Snapshot) -> Vec<String> {
    let mut names: Vec<_> = snapshot.names().into_iter().map(str::to_owned).collect();
    names.sort_by_key(|name| snapshot.instances(name).iter().map(|instance| instance.created_at).min());
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_reaches_this_node_under_an_address_of_this_node() {
        let local: IpAddr = Ipv4Addr::LOCALHOST.into();
        assert_eq!(facing(local), Some(local));
    }
}
