//! Reads the body of a review under three limits: its size, the time for it, and the memory of all bodies at the
//! same time. Must not parse it.
//!
//! The first bytes of each body are always accepted: connections are bounded, and most reviews are no larger.
//! Further bytes count as they arrive, and one client address may hold no more than its share. If a limit is
//! reached, the oldest incomplete body is aborted: of the same address if that one exceeds its share, otherwise
//! of the address that holds the most. So a client that stalls takes memory only from itself.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::http::StatusCode;
use futures_util::StreamExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

/// The largest body. An API server accepts no larger request, and stored objects are smaller: a review with both
/// versions of an object fits.
const MAX_BODY_BYTES: usize = 3 << 20;
/// The bytes of each body that are accepted without a reservation.
const FIRST: usize = 32 << 10;
/// Limit for all bodies together, beyond their first bytes.
const ALL: usize = 48 << 20;
/// Limit for all bodies of one client address.
const SHARE: usize = ALL / 2;
/// Time limit of one body. An API server waits no longer for the whole answer.
const IN_TIME: Duration = Duration::from_secs(10);
/// The lowest average rate, in bytes per second, that is accepted beyond an allowance of `PAUSE`: a busy machine
/// may pause for some seconds.
const SLOWEST: usize = 256 << 10;
const PAUSE: Duration = Duration::from_secs(3);
/// A body that is incomplete after this time may be aborted for those that wait.
const RUSH: Duration = Duration::from_secs(1);
/// How often a waiting body checks again.
const AGAIN: Duration = Duration::from_millis(250);
/// The buffer of a body grows by this many bytes.
const STEP: usize = 256 << 10;

/// The memory for bodies. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory(Arc<Pool>);

#[derive(Debug, Default)]
struct Pool {
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of arrival.
    bodies: BTreeMap<u64, Held>,
    next: u64,
}

/// What one body holds.
#[derive(Debug)]
struct Held {
    from: IpAddr,
    began: Instant,
    /// The bytes beyond its first ones.
    bytes: usize,
    /// The body is complete and is being answered.
    whole: bool,
    /// Cancelled to abort the body.
    leave: CancellationToken,
}

/// A complete body. Its memory counts until this is dropped.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    _place: Place,
}

/// The reservation of a body in the pool.
#[derive(Debug)]
struct Place {
    pool: Arc<Pool>,
    number: u64,
    from: IpAddr,
}

impl Memory {
    /// Reads the whole of `body`, which comes from the address `from`.
    ///
    /// # Errors
    /// The HTTP status to answer when the body is too large, too slow, or incomplete.
    pub(super) async fn read(&self, from: IpAddr, body: Body) -> Result<Whole, StatusCode> {
        // A body whose announced length is too large is not read at all.
        if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
            return Err(StatusCode::PAYLOAD_TOO_LARGE);
        }
        let (place, leave) = self.0.enter(from);
        let bytes = tokio::select! {
            () = leave.cancelled() => Err(StatusCode::REQUEST_TIMEOUT),
            bytes = place.collect(body) => bytes,
        };
        place.is_whole();
        Ok(Whole { bytes: bytes?.into(), _place: place })
    }
}

impl Place {
    /// Reads all parts. The buffer grows with the bytes that have arrived, so a slow client holds little more
    /// memory than it has sent.
    async fn collect(&self, body: Body) -> Result<Vec<u8>, StatusCode> {
        let (mut bytes, mut parts) = (Vec::new(), body.into_data_stream());
        let began = Instant::now();
        let (end, mut waited) = (began + IN_TIME, Duration::ZERO);
        loop {
            let millis = u64::try_from(bytes.len() * 1000 / SLOWEST).unwrap_or(u64::MAX);
            let due = began + PAUSE + waited + Duration::from_millis(millis);
            let part = timeout_at(due.min(end), parts.next()).await;
            let Some(part) = part.map_err(|_| StatusCode::REQUEST_TIMEOUT)? else { return Ok(bytes) };
            let part = part.map_err(|_| StatusCode::BAD_REQUEST)?;
            let size = bytes.len() + part.len();
            if size > MAX_BODY_BYTES {
                return Err(StatusCode::PAYLOAD_TOO_LARGE);
            }
            let asked = Instant::now();
            let grown = timeout_at(end, self.grow(size.saturating_sub(FIRST))).await;
            grown.map_err(|_| StatusCode::REQUEST_TIMEOUT)?;
            waited += asked.elapsed();
            if size > bytes.capacity() {
                bytes.reserve_exact(part.len().max(if size > FIRST { STEP } else { 0 }));
            }
            bytes.extend_from_slice(&part);
        }
    }

    /// Waits until this body may hold `bytes` bytes.
    async fn grow(&self, bytes: usize) {
        loop {
            let freed = self.pool.freed.notified();
            let mut freed = std::pin::pin!(freed);
            freed.as_mut().enable();
            if self.pool.state().grow(self.number, self.from, bytes) {
                return;
            }
            tokio::select! {
                () = freed => {}
                () = sleep(AGAIN) => {}
            }
        }
    }

    fn is_whole(&self) {
        if let Some(held) = self.pool.state().bodies.get_mut(&self.number) {
            held.whole = true;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pool.state().bodies.remove(&self.number);
        self.pool.freed.notify_waiters();
    }
}

impl Pool {
    fn enter(self: &Arc<Self>, from: IpAddr) -> (Place, CancellationToken) {
        let leave = CancellationToken::new();
        let held = Held { from, began: Instant::now(), bytes: 0, whole: false, leave: leave.clone() };
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.bodies.insert(number, held);
        drop(state);
        (Place { pool: Arc::clone(self), number, from }, leave)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Reserves `bytes` bytes for a body of this address. Returns false if it has to wait.
    fn grow(&mut self, number: u64, from: IpAddr, bytes: usize) -> bool {
        let mut by_address = HashMap::<IpAddr, usize>::new();
        for held in self.bodies.values() {
            *by_address.entry(held.from).or_default() += held.bytes;
        }
        let Some(held) = self.bodies.get_mut(&number) else { return false };
        let more = bytes.saturating_sub(held.bytes);
        let all: usize = by_address.values().sum();
        let own = by_address.get(&from).copied().unwrap_or_default();
        if more == 0 || own + more <= SHARE && all + more <= ALL {
            held.bytes += more;
            return true;
        }
        let most = by_address.iter().max_by_key(|(_, bytes)| **bytes).map(|(address, _)| *address);
        let of = if own + more > SHARE { Some(from) } else { most };
        let mut others = self.bodies.iter().filter(|(other, held)| {
            **other != number && Some(held.from) == of && held.bytes > 0 && !held.whole
        });
        // One at a time: an aborted body releases its memory at once.
        if others.clone().any(|(_, held)| held.leave.is_cancelled()) {
            return false;
        }
        if let Some((_, slowest)) = others.find(|(_, held)| held.began.elapsed() >= RUSH) {
            slowest.leave.cancel();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_its_share_and_a_slow_request_is_aborted() {
        let memory = Memory::default();
        let crowd: Vec<_> = (0..8).map(|_| memory.0.enter(address(1))).collect();
        let grows = |place: &Place| memory.0.state().grow(place.number, place.from, MAX_BODY_BYTES);
        assert!(crowd.iter().all(|(place, _)| grows(place)));
        let (more, _) = memory.0.enter(address(1));
        assert!(!grows(&more), "an address has more than its share");
        let (other, _) = memory.0.enter(address(2));
        assert!(grows(&other), "one address has everything");
        // None is aborted yet, and a complete one never is.
        assert!(crowd.iter().all(|(_, leave)| !leave.is_cancelled()));
        crowd[0].0.is_whole();
        tokio::time::advance(RUSH).await;
        assert!(!grows(&more) && !grows(&more));
        let left: Vec<_> = crowd.iter().map(|(_, leave)| leave.is_cancelled()).collect();
        assert_eq!(left, [false, true, false, false, false, false, false, false]);
        let waits = tokio::spawn(async move { more.grow(MAX_BODY_BYTES).await });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(crowd);
        waits.await.unwrap();

        // Several addresses hold everything: the one that holds the most has to release some.
        let memory = Memory::default();
        let crowd: Vec<_> = (0..16).map(|at| memory.0.enter(address(if at < 7 { 1 } else { 2 }))).collect();
        let grows = |place: &Place| memory.0.state().grow(place.number, place.from, MAX_BODY_BYTES);
        assert_eq!(crowd.iter().filter(|(place, _)| grows(place)).count(), 15);
        let (other, leave) = memory.0.enter(address(3));
        assert!(grows(&other) && !leave.is_cancelled());
        let (third, _) = memory.0.enter(address(4));
        tokio::time::advance(RUSH).await;
        assert!(!grows(&third));
        assert!(crowd[7].1.is_cancelled() && !crowd[0].1.is_cancelled());
    }
}
