//! How many requests each node carries out, so that none gets more than its agent takes at once. The deadline of a
//! request counts from the moment when its agent reads it: a request that had to wait for many others would spend its
//! deadline in the queue, and fail. Decides nothing about a pod.

use std::collections::BTreeMap;

/// The number of requests in progress by node.
#[derive(Clone, Debug, Default)]
pub struct NodeLoad<'a>(BTreeMap<&'a str, usize>);

impl<'a> NodeLoad<'a> {
    /// The load of these nodes: one request for each time that a node is named.
    pub fn of(nodes: impl Iterator<Item = Option<&'a str>>) -> Self {
        let mut load = Self::default();
        nodes.for_each(|node| load.add(node));
        load
    }

    /// Counts one more request on `node`.
    pub fn add(&mut self, node: Option<&'a str>) {
        if let Some(node) = node {
            *self.0.entry(node).or_default() += 1;
        }
    }

    /// True when `node`, whose agent takes `at_once` requests (`None`: unknown), can get one more.
    pub fn has_room(&self, node: Option<&str>, at_once: Option<usize>) -> bool {
        let load = node.and_then(|node| self.0.get(node)).copied().unwrap_or(0);
        at_once.is_none_or(|at_once| load < at_once)
    }
}
