//! The server: its socket, its connections, and its timers.

use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use inplace::cri::proto::v1::image_service_server::ImageServiceServer;
use inplace::cri::proto::v1::runtime_service_server::RuntimeServiceServer;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use super::calls::Log;
use super::faults::Rules;
use super::model::{Model, now};

/// The state that the server and the tests share.
pub(super) struct Shared {
    pub(super) log: Log,
    pub(super) rules: Rules,
    model: Mutex<Model>,
    /// Incremented whenever the model may have changed.
    changed: watch::Sender<u64>,
    presence: watch::Sender<Presence>,
    connections: Mutex<Connections>,
    socket: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    Coming,
    Up,
    /// Away for this duration, or until [`super::Fake::come_back`].
    Away(Option<Duration>),
}

/// The connections since the last cut, and the token that ends the calls on them.
#[derive(Default)]
struct Connections {
    open: Vec<std::os::unix::net::UnixStream>,
    cut: CancellationToken,
}

/// Implements the gRPC services.
#[derive(Clone)]
pub(super) struct Service(pub(super) Arc<Shared>);

/// Serves until `stop` is cancelled. All calls end together with the tokio runtime.
pub(super) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = keep_time(&shared) => {}
        () = serve(&shared) => {}
    }
}

async fn serve(shared: &Arc<Shared>) {
    let mut presence = shared.presence.subscribe();
    loop {
        absence(&mut presence).await;
        let Some(listener) = shared.listen(&mut presence) else { continue };
        let admitting = Arc::clone(shared);
        let incoming =
            UnixListenerStream::new(listener).map(move |stream| stream.and_then(|s| admitting.admit(s)));
        let service = Service(Arc::clone(shared));
        let server = Server::builder()
            .add_service(RuntimeServiceServer::new(service.clone()))
            .add_service(ImageServiceServer::new(service))
            .serve_with_incoming(incoming);
        tokio::select! {
            ended = server => panic!("the server ended: {ended:?}"),
            _ = presence.changed() => {}
        }
    }
}

/// Waits as long as the runtime is to be away.
async fn absence(presence: &mut watch::Receiver<Presence>) {
    loop {
        let now = *presence.borrow_and_update();
        match now {
            Presence::Up | Presence::Coming => return,
            Presence::Away(None) => drop(presence.changed().await),
            Presence::Away(Some(time)) => {
                if tokio::time::timeout(time, presence.changed()).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Ends processes at their end times, and notifies waiting tests.
async fn keep_time(shared: &Shared) {
    let mut changed = shared.changed.subscribe();
    loop {
        match shared.read(Model::next_end) {
            Some(at) => tokio::select! {
                () = sleep(left(at)) => shared.changed.send_modify(|number| *number += 1),
                _ = changed.changed() => {}
            },
            None => drop(changed.changed().await),
        }
    }
}

/// The time from now to `at`, which is in nanoseconds since 1970.
pub(super) fn left(at: i64) -> Duration {
    Duration::from_nanos(u64::try_from(at - now()).unwrap_or(0))
}

impl Shared {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            log: Log::default(),
            rules: Rules::default(),
            model: Mutex::new(Model::new(folder)),
            changed: watch::Sender::new(0),
            presence: watch::Sender::new(Presence::Coming),
            connections: Mutex::default(),
            socket: folder.join("runtime.sock"),
        }
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Reads the model after all due events are applied.
    pub(super) fn read<R>(&self, poll: impl FnOnce(&Model) -> R) -> R {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        model.settle();
        poll(&model)
    }

    /// Changes the model after all due events are applied.
    pub(super) fn change<R>(&self, work: impl FnOnce(&mut Model) -> R) -> R {
        let result = {
            let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
            model.settle();
            work(&mut model)
        };
        self.changed.send_modify(|number| *number += 1);
        result
    }

    /// Waits until `poll` returns a value.
    pub(super) async fn until<R>(&self, mut poll: impl FnMut(&Model) -> Option<R>) -> R {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(found) = self.read(&mut poll) {
                return found;
            }
            drop(changed.changed().await);
        }
    }

    pub(super) async fn up(&self) {
        let mut presence = self.presence.subscribe();
        drop(presence.wait_for(|presence| *presence == Presence::Up).await);
    }

    pub(super) fn go_away(&self, time: Option<Duration>) {
        let mut connections = self.connections();
        let _ = std::fs::remove_file(&self.socket);
        self.presence.send_replace(Presence::Away(time));
        connections.cut(&self.log);
    }

    pub(super) fn come_back(&self) {
        self.presence.send_if_modified(|presence| {
            let away = matches!(presence, Presence::Away(_));
            if away {
                *presence = Presence::Coming;
            }
            away
        });
    }

    /// Binds the socket. Returns `None` if the requested presence has changed meanwhile.
    fn listen(&self, presence: &mut watch::Receiver<Presence>) -> Option<UnixListener> {
        let _whole = self.connections();
        if presence.has_changed().unwrap() {
            return None;
        }
        let listener = UnixListener::bind(&self.socket).unwrap();
        self.presence.send_replace(Presence::Up);
        presence.mark_unchanged();
        Some(listener)
    }

    pub(super) fn cut(&self) {
        self.connections().cut(&self.log);
    }

    /// The token that ends calls in progress when the connections are cut.
    pub(super) fn token(&self) -> CancellationToken {
        self.connections().cut.clone()
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Retains a second handle of the connection, so that the connection can be closed without the server.
    fn admit(&self, stream: UnixStream) -> std::io::Result<UnixStream> {
        let stream = stream.into_std()?;
        let mut connections = self.connections();
        connections.open.push(stream.try_clone()?);
        if matches!(*self.presence.borrow(), Presence::Away(_)) {
            connections.cut(&self.log);
        }
        UnixStream::from_std(stream)
    }
}

impl Connections {
    /// Updates the log first: a client that sees the connection closed may read the log.
    fn cut(&mut self, log: &Log) {
        log.lose();
        let old = std::mem::take(self);
        for connection in &old.open {
            let _ = connection.shutdown(Shutdown::Both);
        }
        old.cut.cancel();
    }
}
