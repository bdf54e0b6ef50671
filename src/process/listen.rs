//! Binds the address of a server. Decides nothing about its clients.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use socket2::SockRef;
use tokio::net::{TcpListener, TcpSocket};

/// How many connections wait for `accept`.
const BACKLOG: u32 = 1024;

/// Binds `address`. `[::]` accepts IPv6 and IPv4; where the kernel has no IPv6 it becomes 0.0.0.0, so that one
/// setting suits every cluster.
///
/// # Errors
/// When the address cannot be bound.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    if !(address.is_ipv6() && address.ip().is_unspecified()) {
        return TcpListener::bind(address).await;
    }
    match bind_both(address) {
        Err(error) if lacks_ipv6(&error) => TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await,
        bound => bound,
    }
}

/// Binds both families, also where the kernel's default (`net.ipv6.bindv6only`) is IPv6 alone.
fn bind_both(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    SockRef::from(&socket).set_only_v6(false)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// True for an error other than those that each family has. A kernel that was built or started without IPv6 knows no
/// such socket, or no such address.
fn lacks_ipv6(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;

    #[tokio::test]
    async fn one_setting_accepts_clients_of_both_families() {
        let listener = bind("[::]:0".parse().unwrap()).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if listener.local_addr().unwrap().is_ipv6() {
            TcpStream::connect((std::net::Ipv6Addr::LOCALHOST, port)).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_reported() {
        let taken = bind("[::]:0".parse().unwrap()).await.unwrap();
        let error = bind(taken.local_addr().unwrap()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_kernel_without_ipv6_is_known_by_its_error() {
        let no_such_family = io::Error::from_raw_os_error(97);
        assert!(lacks_ipv6(&no_such_family) && lacks_ipv6(&io::ErrorKind::AddrNotAvailable.into()));
        assert!(!lacks_ipv6(&io::ErrorKind::AddrInUse.into()));
        assert!(!lacks_ipv6(&io::ErrorKind::PermissionDenied.into()));
    }
}
