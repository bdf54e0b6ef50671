//! Reads the pod from the API server again, before cached data from its kubelet counts against a container, or a
//! cached list counts as proof that the pod was deleted by force.
//!
//! A watch whose connection is dead counts as current until its silence is noticed. Its last data must not fail a
//! good swap, so the pod is read once from the API server before such a decision. While it cannot be read, the
//! decision stays open.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::api::pod_ref::PodRef;
use crate::failure::Class;
use crate::node::Node;
use crate::operation::snapshot::{Declared, Snapshot};

/// Time limit of a read: the loop must manage containers meanwhile.
const LIMIT: Duration = Duration::from_secs(2);
/// The pause between two reads that failed.
const PAUSE: Duration = Duration::from_secs(1);

/// The result of a read.
enum Answer {
    /// The cache now holds the present state of the pod.
    Read,
    /// The API server has no such pod.
    Gone,
    /// The pod cannot be read, and a repetition will not help.
    Never,
    /// The API server did not answer, or the last failed read was a moment ago.
    NotNow,
}

/// Reads the pod of one operation.
#[derive(Debug, Default)]
pub(super) struct Reread {
    not_before: Option<Instant>,
}

impl Reread {
    /// Returns `snapshot` with the present state of `pod` at the API server; marked as not current if the API server
    /// does not answer.
    pub(super) async fn confirm(&mut self, node: &Node, pod: &PodRef, snapshot: Snapshot) -> Snapshot {
        let Some(pods) = &node.cluster else { return snapshot };
        let old = |declared: Declared| Declared { current: false, ..declared };
        let (declared, absent) = match self.read(node, pod).await {
            Answer::Read => {
                let declared = pods.declared(pod).map(|declared| Declared { current: true, ..declared });
                (declared, false)
            }
            Answer::Gone => (snapshot.declared.clone(), snapshot.absent),
            Answer::Never => (snapshot.declared.clone(), false),
            Answer::NotNow => (snapshot.declared.clone().map(old), false),
        };
        Snapshot { declared, absent, ..snapshot }
    }

    async fn read(&mut self, node: &Node, pod: &PodRef) -> Answer {
        let Some(pods) = node.cluster.as_ref() else { return Answer::Never };
        if self.not_before.is_some_and(|not_before| Instant::now() < not_before) {
            return Answer::NotNow;
        }
        let why = match timeout(LIMIT, pods.reread(pod)).await {
            Ok(Ok(())) => return Answer::Read,
            Ok(Err(error)) if error.class() == Class::Gone => return Answer::Gone,
            Ok(Err(error)) if !error.class().is_unavailable() => return Answer::Never,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the API server did not answer within {} s", LIMIT.as_secs()),
        };
        tracing::debug!(%pod, why, "the pod cannot be read now: its readiness is unknown");
        self.not_before = Some(Instant::now() + PAUSE);
        Answer::NotNow
    }
}
