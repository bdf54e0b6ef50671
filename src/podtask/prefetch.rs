//! Decides which pods name the images that later requests need in an annotation, so that their agents pull them in
//! advance. Writes nothing.
//!
//! One pod per node is enough, because all pods of a node share its images. No pod names images on a node where another
//! pod has its request already: the agent pulls there, or has pulled.

use std::collections::{BTreeMap, BTreeSet};

use crate::podtask::pod::Pod;

/// Nodes that pull in advance at the same time for one workload or rollout. It bounds the load on the registry.
const MAX_NODES: usize = 64;

/// A pod that will get a request, and the images of that request.
#[derive(Clone, Debug)]
pub struct Waiting<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The images that its annotation names.
    pub named: Option<&'a str>,
    /// The images that the pod does not run yet.
    pub images: BTreeSet<String>,
}

/// The annotation of each pod that is to have one, by the name of the pod. `waiting` is in the order in which the pods
/// get their requests; `served` are the nodes where a pod has its request or runs the images.
pub fn choose<'a>(waiting: &[Waiting<'a>], served: &BTreeSet<&str>) -> BTreeMap<&'a str, String> {
    let mut nodes = served.clone();
    let mut chosen = BTreeMap::new();
    let text = |waiting: &Waiting<'_>| waiting.images.iter().cloned().collect::<Vec<_>>().join(",");
    let has = |waiting: &&Waiting<'_>| waiting.named == Some(text(waiting).as_str());
    // A pod keeps its annotation: the order may change with each reconcile, and each change is a write.
    let (kept, others): (Vec<_>, Vec<_>) = waiting.iter().partition(has);
    for waiting in kept.into_iter().chain(others) {
        let Some(node) = waiting.pod.node.as_deref().filter(|_| !waiting.images.is_empty()) else { continue };
        if chosen.len() < MAX_NODES && nodes.insert(node) {
            chosen.insert(waiting.pod.name.as_str(), text(waiting));
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>, prefetch: Option<&str>) -> Pod {
        let mut pod = Pod::read(&k8s_openapi::api::core::v1::Pod::default());
        name.clone_into(&mut pod.name);
        pod.node = node.map(str::to_owned);
        pod.prefetch = prefetch.map(str::to_owned);
        pod
    }

    fn waiting<'a>(pods: &'a [Pod], images: &[&str]) -> Vec<Waiting<'a>> {
        let images: BTreeSet<_> = images.iter().map(|&image| image.to_owned()).collect();
        let named = |pod: &'a Pod| pod.prefetch.as_deref();
        pods.iter().map(|pod| Waiting { pod, named: named(pod), images: images.clone() }).collect()
    }

    #[test]
    fn one_pod_of_each_node_names_the_images() {
        let pods = [
            pod("a", Some("n1"), None),
            pod("b", Some("n1"), None),
            pod("c", Some("n2"), None),
            pod("d", None, None),
            pod("e", Some("n3"), None),
        ];
        let chosen = choose(&waiting(&pods, &["app:2", "side:2"]), &["n3"].into());
        assert_eq!(chosen, [("a", "app:2,side:2".to_owned()), ("c", "app:2,side:2".to_owned())].into());
        assert!(choose(&waiting(&pods, &[]), &BTreeSet::new()).is_empty());
    }

    #[test]
    fn a_pod_keeps_its_annotation_whatever_the_order_but_not_that_of_another_image() {
        let pods = [pod("a", Some("n1"), None), pod("b", Some("n1"), Some("app:2"))];
        assert!(choose(&waiting(&pods, &["app:2"]), &BTreeSet::new()).contains_key("b"));
        assert!(choose(&waiting(&pods, &["app:3"]), &BTreeSet::new()).contains_key("a"));
    }

    #[test]
    fn the_number_of_nodes_is_bounded() {
        let name = |number: usize| format!("n{number:03}");
        let pods: Vec<_> = (0..200).map(|number| pod(&name(number), Some(&name(number)), None)).collect();
        let chosen = choose(&waiting(&pods, &["app:2"]), &BTreeSet::new());
        assert_eq!(chosen.len(), MAX_NODES);
        assert!(chosen.contains_key("n000") && !chosen.contains_key("n100"));
    }
}
