//! Carries out `ContainerRecreateRequest`s, the interface of OpenKruise, where `--container-recreate-requests` is set: each as
//! a request on its pod, which the pod's agent carries out as any other.
//!
//! ```text
//!  watch of the objects ─────────────▶ queue ──▶ reconcile: reads the pod ──▶ recreate_request::decide ──▶ pod, status
//!  watch of the pods with a record ──▶
//! ```
//!
//! Must not decide anything, and never touches an object that OpenKruise serves: `recreate_request` leaves it alone.

mod cache;
mod reconcile;

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::cluster::server::Server;
use crate::controller::Common;
use crate::controller::events::Events;
use crate::controller::reconciler::{self, Changes};
#[cfg(any(fuzzing, feature = "faults"))]
pub(super) use cache::watched;
use cache::{Cache, Key};

/// What every reconciliation shares.
#[derive(Debug)]
struct Context {
    server: Server,
    cache: Cache,
    events: Events,
}

pub(super) async fn run(common: Common, stop: CancellationToken) {
    if !common.recreate_requests {
        return;
    }
    let Common { server, identity, .. } = common;
    let cache = Cache::watch(&server, &stop);
    let events = Events::new(server.clone(), identity);
    let context = Arc::new(Context { server, cache: cache.clone(), events });
    reconciler::run(&context, cache, &stop).await;
}

impl Changes<Key> for Cache {
    fn take(&mut self) -> Vec<(Key, i64)> {
        self.updates()
    }

    fn is_current(&self) -> bool {
        Self::is_current(self)
    }

    async fn changed(&mut self) {
        Self::changed(self).await;
    }
}
