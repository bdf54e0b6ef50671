//! Bounds the open connections: at the limit, an idle connection is closed for the next one. Must not read from a
//! connection.
//!
//! The closed one belongs to the address with the most connections, so a client that opens too many takes them
//! from itself.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// At most one log line in this time.
const PAUSE: Duration = Duration::from_secs(60);

/// The open connections of one server.
pub(crate) struct Connections {
    /// What is served, for the log.
    what: &'static str,
    most: usize,
    state: Mutex<State>,
    /// Connections that were closed for another one, or rejected.
    pub(crate) closed: Counter,
}

#[derive(Default)]
struct State {
    /// In the order of arrival.
    open: BTreeMap<u64, Open>,
    next: u64,
    warned: Option<Instant>,
}

struct Open {
    from: IpAddr,
    activity: Activity,
    close: CancellationToken,
}

/// A connection, which counts as open until this is dropped.
pub(crate) struct Connection {
    all: Arc<Connections>,
    number: u64,
    /// Cancelled to close the connection.
    pub(crate) close: CancellationToken,
    pub(crate) activity: Activity,
}

/// True while a complete request on the connection is being answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Activity(Arc<AtomicBool>);

/// A request that is being answered, until this is dropped.
#[derive(Debug)]
pub(crate) struct ActiveRequest(Activity);

impl Connections {
    pub(crate) fn new(what: &'static str, most: usize) -> Self {
        Self { what, most, state: Mutex::default(), closed: Counter::default() }
    }

    /// Admits a connection. `None`: at the limit, and no connection is idle.
    pub(crate) fn admit(self: &Arc<Self>, from: IpAddr) -> Option<Connection> {
        let mut state = self.state();
        if state.open.len() >= self.most {
            self.closed.inc();
            if state.warned.is_none_or(|at| at.elapsed() >= PAUSE) {
                state.warned = Some(Instant::now());
                tracing::warn!(%from, open = self.most, "too many connections to {}: idle ones are closed", self.what);
            }
            let number = state.idle_of_the_most_present()?;
            if let Some(open) = state.open.remove(&number) {
                open.close.cancel();
            }
        }
        let (close, activity) = (CancellationToken::new(), Activity::default());
        let number = state.next;
        state.next += 1;
        state.open.insert(number, Open { from, activity: activity.clone(), close: close.clone() });
        drop(state);
        Some(Connection { all: Arc::clone(self), number, close, activity })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn idle_of_the_most_present(&self) -> Option<u64> {
        let mut present = HashMap::<IpAddr, usize>::new();
        for open in self.open.values() {
            *present.entry(open.from).or_default() += 1;
        }
        let idle = self.open.iter().filter(|(_, open)| !open.activity.0.load(Ordering::Relaxed));
        // Among equals, the oldest.
        let chosen = idle.rev().max_by_key(|(_, open)| present[&open.from]);
        chosen.map(|(number, _)| *number)
    }
}

impl Activity {
    pub(crate) fn begin(&self) -> ActiveRequest {
        self.0.store(true, Ordering::Relaxed);
        ActiveRequest(self.clone())
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.state().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[test]
    fn the_address_with_the_most_connections_loses_one_and_the_new_connection_stays() {
        let all = Arc::new(Connections::new("a server", 4));
        let server = all.admit(address(1)).unwrap();
        let crowd: Vec<_> = (0..3).map(|_| all.admit(address(2)).unwrap()).collect();
        let active = crowd[0].activity.begin();
        let next = all.admit(address(3)).unwrap();
        // The closed one is the oldest idle connection of the address with three.
        let closed: Vec<_> = crowd.iter().map(|one| one.close.is_cancelled()).collect();
        assert_eq!(closed, [false, true, false]);
        assert!(!server.close.is_cancelled() && !next.close.is_cancelled());
        assert_eq!(all.closed.get(), 1);
        // While requests are under way on all, none is admitted; a closed connection frees its place.
        let all_ask = [&server, &crowd[2], &next].map(|one| one.activity.begin());
        assert!(all.admit(address(4)).is_none());
        drop((all_ask, active));
        drop(server);
        assert!(all.admit(address(4)).is_some());
        assert_eq!(all.state().open.len(), 3);
    }
}
