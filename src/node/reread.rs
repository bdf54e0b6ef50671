//! A fresh look at the pod before an old word of its kubelet speaks against a container.
//!
//! A watch whose connection is dead counts as current until its silence is noticed. What it showed last must not end a good
//! swap: before such a verdict the pod is read once from the API server. While that cannot be had, nothing is known.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::node::Node;
use crate::operation::effect::Class;
use crate::operation::snapshot::{Declared, PodRef, Snapshot};

/// What a read may take: the loop looks after containers meanwhile.
const LIMIT: Duration = Duration::from_secs(2);
/// The pause between two reads that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Reads the pod of one operation.
#[derive(Debug, Default)]
pub(super) struct Reread {
    not_before: Option<Instant>,
}

impl Reread {
    /// `snapshot` with what the API server says of `pod` now; as something old where it does not answer.
    pub(super) async fn confirm(&mut self, node: &Node, pod: &PodRef, snapshot: Snapshot) -> Snapshot {
        let Some(pods) = &node.cluster else { return snapshot };
        let declared = match self.read(node, pod).await {
            Some(true) => pods.declared(pod).map(|declared| Declared { current: true, ..declared }),
            Some(false) => snapshot.declared.clone(),
            None => snapshot.declared.clone().map(|declared| Declared { current: false, ..declared }),
        };
        Snapshot { declared, ..snapshot }
    }

    /// `Some(true)`: it was read; `Some(false)`: it cannot be, and trying again will not help; `None`: not now.
    async fn read(&mut self, node: &Node, pod: &PodRef) -> Option<bool> {
        let pods = node.cluster.as_ref()?;
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return None;
        }
        let why = match timeout(LIMIT, pods.reread(pod)).await {
            Ok(Ok(())) => return Some(true),
            Ok(Err(error)) if error.class() == Class::Gone || !error.class().is_away() => return Some(false),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the API server did not answer within {} s", LIMIT.as_secs()),
        };
        tracing::debug!(%pod, why, "whether the pod is Ready is not known now");
        self.not_before = Some(Instant::now() + PAUSE);
        None
    }
}
