//! The fake's port and connections, and the state that the server and the tests share.

use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::faults::Rules;
use super::http;
use super::store::Store;

/// How many connections wait for `accept`.
const BACKLOG: u32 = 1024;

/// The state that the server and the tests share.
pub(super) struct Shared {
    pub(super) rules: Rules,
    store: Mutex<Store>,
    /// Changes its value whenever the store may have changed.
    pub(super) changed: watch::Sender<u64>,
    presence: watch::Sender<Presence>,
    connections: Mutex<Vec<std::net::TcpStream>>,
    address: OnceLock<SocketAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Coming,
    Up,
    Going,
    Away,
}

/// Serves until `stop`. All connections end with the runtime that runs this.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = serve(&shared) => {}
    }
}

async fn serve(shared: &Arc<Shared>) {
    // It never listens, and keeps the port while the server does not: another test would get it otherwise.
    let reserved = bound(([127, 0, 0, 1], 0).into());
    let address = *shared.address.get_or_init(|| reserved.local_addr().unwrap());
    let mut presence = shared.presence.subscribe();
    loop {
        drop(presence.wait_for(|presence| *presence == Presence::Coming).await);
        let listener = bound(address).listen(BACKLOG).unwrap();
        shared.move_on(Presence::Coming, Presence::Up);
        let recorded = Recorded { listener, shared: Arc::clone(shared) };
        let server = std::future::IntoFuture::into_future(axum::serve(recorded, http::router(shared)));
        tokio::select! {
            ended = server => panic!("the server ended: {ended:?}"),
            _ = presence.wait_for(|presence| *presence == Presence::Going) => {}
        }
        shared.cut();
        shared.move_on(Presence::Going, Presence::Away);
    }
}

fn bound(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

/// Keeps a second handle of each connection, to close the connection without the server's participation.
struct Recorded {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Listener for Recorded {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        let (stream, from) = self.listener.accept().await.unwrap();
        let stream = stream.into_std().unwrap();
        self.shared.connections().push(stream.try_clone().unwrap());
        (TcpStream::from_std(stream).unwrap(), from)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            rules: Rules::default(),
            store: Mutex::default(),
            changed: watch::Sender::new(0),
            presence: watch::Sender::new(Presence::Coming),
            connections: Mutex::default(),
            address: OnceLock::new(),
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        *self.address.get().unwrap()
    }

    pub(super) fn change<R>(&self, work: impl FnOnce(&mut Store) -> R) -> R {
        let result = work(&mut self.store.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_modify(|number| *number += 1);
        result
    }

    /// Reads the store without a notification.
    pub(super) fn read<R>(&self, poll: impl FnOnce(&Store) -> R) -> R {
        poll(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until `poll` finds something in the store.
    pub(super) async fn until<R>(&self, mut poll: impl FnMut(&Store) -> Option<R>) -> R {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = self.read(&mut poll) {
                return found;
            }
            drop(changed.changed().await);
        }
    }

    pub(super) async fn up(&self) {
        self.is(Presence::Up).await;
    }

    pub(super) async fn away(&self) {
        self.is(Presence::Away).await;
    }

    pub(super) fn go_away(&self) {
        self.move_on(Presence::Up, Presence::Going);
    }

    pub(super) fn come_back(&self) {
        self.move_on(Presence::Away, Presence::Coming);
    }

    pub(super) fn cut(&self) {
        for connection in std::mem::take(&mut *self.connections()) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    async fn is(&self, wanted: Presence) {
        drop(self.presence.subscribe().wait_for(|presence| *presence == wanted).await);
    }

    fn move_on(&self, from: Presence, to: Presence) {
        self.presence.send_if_modified(|presence| {
            assert_eq!(*presence, from, "the server is not there or not away");
            *presence = to;
            true
        });
    }

    fn connections(&self) -> MutexGuard<'_, Vec<std::net::TcpStream>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
