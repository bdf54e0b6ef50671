//! Ports of loopback for servers that do not choose their own.

use std::net::TcpListener;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A port of loopback that is free. It is below those that the kernel assigns: no connection, and no server without a port of its
/// own, gets it before the server that it is for listens, or while that is started again. It depends on this process, because
/// others take ports at the same time.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = process::id() * 32 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(14_000 + number % 6_000).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
