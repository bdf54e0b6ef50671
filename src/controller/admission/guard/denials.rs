//! Counts the refusals of the guard. Must not have unbounded labels: no names.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::controller::admission::guard::Way;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Denied {
    operation: String,
    reason: String,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reason {
    /// The hook of the pod has not succeeded.
    Held,
    /// The facts could not be read in time.
    Unknown,
}

/// The refusals of one process; cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::controller::admission) struct Denials {
    denials: Family<Denied, Counter>,
}

impl Denials {
    pub(super) fn new() -> Self {
        let own = Self { denials: Family::default() };
        // They exist from the beginning, so that the first refusal is an increase.
        for way in [Way::Delete, Way::Evict] {
            for reason in [Reason::Held, Reason::Unknown] {
                own.of(way, reason, 0);
            }
        }
        own
    }

    /// Registers the metric in `registry`.
    pub(in crate::controller::admission) fn register(&self, registry: &mut Registry) {
        let help = "Deletions and evictions that the delete guard refused: Held, the hook has not succeeded; Unknown, the facts \
                    could not be read";
        registry.register("guard_denials", help, self.denials.clone());
    }

    pub(super) fn count(&self, way: Way, reason: Reason) {
        self.of(way, reason, 1);
    }

    fn of(&self, way: Way, reason: Reason, more: u64) {
        let denied = Denied { operation: format!("{way:?}"), reason: format!("{reason:?}") };
        self.denials.get_or_create(&denied).inc_by(more);
    }
}
