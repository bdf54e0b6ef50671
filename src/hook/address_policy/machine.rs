//! The addresses of this machine, as the kernel reports them at the time of the call. Must not send a packet or
//! decide what is allowed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The virtual services of IPVS: their addresses are on an interface of each node, but lead to pods.
const SERVICES: &str = "/proc/net/ip_vs";

/// True if the address belongs to this machine: only then does the kernel choose the same address as the source.
/// Sends nothing.
pub(super) fn is_own(address: IpAddr) -> bool {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let source = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((address, 9))?;
        socket.local_addr()
    });
    source.is_ok_and(|source| source.ip() == address)
}

/// True if kube-proxy (in its IPVS mode) forwards this port of an address of this machine to pods.
pub(super) fn is_service(at: SocketAddr) -> bool {
    fs::read_to_string(SERVICES).is_ok_and(|table| services(&table).any(|service| service == at))
}

/// Parses `TCP  0A600001:01BB rr`, `TCP  [fd00:0000:...:0001]:01BB rr`. Other lines are not services.
fn services(table: &str) -> impl Iterator<Item = SocketAddr> {
    table.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.next().filter(|protocol| *protocol == "TCP")?;
        let (address, port) = words.next()?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let address = match address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => IpAddr::V6(address.parse::<Ipv6Addr>().ok()?),
            None => IpAddr::V4(Ipv4Addr::from_bits(u32::from_str_radix(address, 16).ok()?)),
        };
        Some(SocketAddr::new(address, port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_this_machine_is_distinguished_from_others() {
        assert!(is_own("127.0.0.1".parse().unwrap()));
        assert!(!is_own("192.0.2.7".parse().unwrap()));
        assert!(!is_own("2001:db8::7".parse().unwrap()));
    }

    #[test]
    fn services_of_ipvs_are_read() {
        let table = "IP Virtual Server version 1.2.1 (size=4096)\n\
                     Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n\
                     TCP  0A600001:01BB rr \n  -> C0A80001:192B      Masq    1      0          0         \n\
                     UDP  0A60000A:0035 rr \n\
                     TCP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0050 rr \n";
        let found: Vec<_> = services(table).map(|service| service.to_string()).collect();
        assert_eq!(found, ["10.96.0.1:443", "[fd00::1]:80"]);
    }
}
