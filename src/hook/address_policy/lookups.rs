//! The name lookups of hooks. A lookup holds a thread of the process until the resolver returns, also when nobody
//! waits for it any more, and the name server of a tenant may never answer. So their number is limited. Must not
//! decide which addresses are allowed.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::process::permits::Permits;

/// Maximum number of lookups at the same time. One namespace has at most three quarters of them.
const MAX_LOOKUPS: usize = 4;

/// The lookups of a process. Clones share the permits.
#[derive(Clone, Debug)]
pub(super) struct Lookups(Permits);

impl Default for Lookups {
    fn default() -> Self {
        Self(Permits::new(MAX_LOOKUPS))
    }
}

impl Lookups {
    /// The addresses of a name. Waits while too many lookups are in progress; then `waits` is true.
    pub(super) async fn find(
        &self,
        namespace: &str,
        host: &str,
        port: u16,
        waits: &AtomicBool,
    ) -> io::Result<Vec<SocketAddr>> {
        let name = (host.to_owned(), port);
        self.run(namespace, waits, move || Ok(name.to_socket_addrs()?.collect())).await
    }

    async fn run(
        &self,
        namespace: &str,
        waits: &AtomicBool,
        lookup: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
    ) -> io::Result<Vec<SocketAddr>> {
        // The queue is never closed, so a permit always comes.
        waits.store(true, Ordering::Relaxed);
        let permit = self.0.acquire(namespace).await;
        waits.store(false, Ordering::Relaxed);
        let found = tokio::task::spawn_blocking(move || {
            let _held = permit;
            lookup()
        });
        found.await.map_err(io::Error::other)?
    }

    /// Holds all permits that the namespace can have.
    #[cfg(test)]
    pub(super) async fn hold(&self, namespace: &str) -> Vec<crate::process::permits::Permit> {
        let mut held = Vec::new();
        for _ in 0..crate::process::permits::share(MAX_LOOKUPS) {
            held.extend(self.0.acquire(namespace).await);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// Stops waiting for a lookup that does not return before the sender is dropped. The lookup counts itself. The
    /// result says whether it waited for others.
    async fn give_up(lookups: &Lookups, namespace: &str, started: &Arc<AtomicUsize>) -> (bool, Sender<()>) {
        let ((go, gone), waits) = (channel::<()>(), AtomicBool::new(false));
        let started = Arc::clone(started);
        let lookup = move || {
            started.fetch_add(1, Ordering::SeqCst);
            // Nothing is ever sent: this returns when the sender is dropped.
            let _ = gone.recv();
            Ok(Vec::new())
        };
        let run = lookups.run(namespace, &waits, lookup);
        assert!(timeout(Duration::from_millis(20), run).await.is_err());
        (waits.into_inner(), go)
    }

    /// A lookup that returns at once, if it gets a permit.
    async fn succeeds(lookups: &Lookups, namespace: &str) {
        let waits = AtomicBool::new(false);
        let run = lookups.run(namespace, &waits, || Ok(Vec::new()));
        let found = timeout(Duration::from_secs(30), run).await;
        assert!(matches!(found, Ok(Ok(_))), "{found:?}");
    }

    #[tokio::test]
    async fn lookups_that_hang_stay_few_after_their_timeouts_and_leave_one_for_others() {
        let (lookups, started) = (Lookups::default(), Arc::default());
        let mut gates = Vec::new();
        for number in 0..10 {
            let (waited, gate) = give_up(&lookups, "greedy", &started).await;
            assert_eq!(waited, number >= 3, "{number}");
            gates.push(gate);
        }
        succeeds(&lookups, "shop").await;
        for _ in 0..10 {
            gates.push(give_up(&lookups, "shop", &started).await.1);
        }
        assert!(started.load(Ordering::SeqCst) <= MAX_LOOKUPS, "{started:?}");
        drop(gates);
        succeeds(&lookups, "greedy").await;
    }
}
