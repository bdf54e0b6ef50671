//! Tests that need a real Kubernetes. Each runs against a private one-node cluster (see `tests/lab/cluster.sh`),
//! those in `policy` against an API server without nodes.
//!
//! `KUBE_BIN` selects the release (see `tests/lab/kube.sh`). Tests that use [`cluster::Cluster::any`] run on an
//! existing cluster when `INPLACE_TEST_REGISTRY` is set: it names the registry, with a prefix if necessary, that
//! has the images of `tests/lab/images.sh` and from which that cluster's nodes can pull, and `KUBECONFIG` selects
//! the cluster. The pods are created in the namespace `default`. The other tests always create a cluster on this
//! machine.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on panics")]

mod admission;
#[allow(dead_code, reason = "what tests may want of an agent, in one place")]
mod agent;
mod api_server;
mod attacks;
mod changes;
mod cli;
mod clone;
mod cluster;
mod crash;
mod daemonset;
mod dashboard;
mod drain;
mod engines;
mod guard;
mod hook_runs;
mod hooks;
mod hot_standby;
mod installed;
mod instances;
mod kinds;
mod lifecycle;
mod load;
mod monitoring;
mod new_instance;
mod ongoing;
mod openkruise;
mod orphaned_fence;
mod pod;
mod policy;
mod presets;
mod pull_secrets;
mod readme;
mod refusals;
mod registry_gate;
mod reinstalled;
mod request;
mod restarts;
mod rolled;
mod rollout;
mod scale;
mod seeds;
mod smoke;
mod soak;
mod standby;
mod start_first;
mod startup_probe;
#[path = "../support/mod.rs"]
mod support;
mod swap;
mod traffic;
mod uninstall;
mod workloads;
