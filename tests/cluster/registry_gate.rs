//! A proxy in front of the registry, with its own address on loopback. While it is shut, connections wait.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch::{self, Receiver, Sender},
    task::JoinHandle,
    time::timeout,
};

use crate::cluster::{block_on, runtime};

/// The proxy. Its address is closed when dropped.
pub(crate) struct RegistryGate {
    address: SocketAddr,
    open: Sender<bool>,
    waiting: Receiver<usize>,
    accepting: JoinHandle<()>,
}

impl RegistryGate {
    /// Creates an open proxy for the registry at that address.
    pub(crate) fn before(registry: &str) -> Self {
        let listener = block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (open, _) = watch::channel(true);
        let (waits, waiting) = watch::channel(0);
        let accepting = runtime().spawn(accept(listener, registry.to_owned(), open.clone(), waits));
        Self { address, open, waiting, accepting }
    }

    /// The name of an image, as in `app:v1`, through this proxy.
    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }

    /// Shuts the proxy. Open connections are closed.
    pub(crate) fn shut(&self) {
        self.open.send_replace(false);
    }

    /// Waits until a connection waits.
    pub(crate) fn await_somebody(&self, limit: Duration) {
        let mut waiting = self.waiting.clone();
        let came = block_on(async { timeout(limit, waiting.wait_for(|waiting| *waiting > 0)).await.is_ok() });
        assert!(came, "nobody asks the registry at {}", self.address);
    }
}

impl Drop for RegistryGate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, registry: String, open: Sender<bool>, waits: Sender<usize>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        tokio::spawn(pass(client, registry.clone(), open.subscribe(), waits.clone()));
    }
}

async fn pass(mut client: TcpStream, registry: String, mut open: Receiver<bool>, waits: Sender<usize>) {
    waits.send_modify(|waiting| *waiting += 1);
    let opened = open.wait_for(|open| *open).await.is_ok();
    waits.send_modify(|waiting| *waiting -= 1);
    if !opened {
        return;
    }
    let Ok(mut server) = TcpStream::connect(registry).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = open.wait_for(|open| !*open) => {}
    }
}
