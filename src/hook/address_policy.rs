//! Decides which addresses a hook may connect to. Hooks connect from a node: a user who may write a `HookTemplate` must
//! not reach addresses that only a node can reach. Must not connect to anything.
//!
//! Denied unless `--hook-allow` names the address:
//! * link-local addresses, and the other addresses at which clouds serve metadata and credentials;
//! * loopback and the other addresses of this machine, which are also those of pods on the host's network (agents
//!   use the node's network, and services that rely on this protection listen there);
//! * the ports of Kubernetes' own components on any address;
//! * addresses that do not belong to one host, such as multicast.
//!
//! `--hook-deny` overrides everything else. An IPv6 address that embeds an IPv4 one is also checked as that IPv4
//! address. A name is resolved once, and the connection is made to the addresses that were checked.

mod lookups;
mod machine;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::atomic::AtomicBool;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::hook::address_policy::lookups::Lookups;

/// Metadata services outside the link-local ranges: Alibaba, Azure's host agent, Oracle.
const METADATA: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];

/// The metadata services in IPv6: Amazon's (instance metadata, pod identity, DNS), Google's, and those of Scaleway, Akamai
/// and Oracle.
const METADATA_V6: [Ipv6Net; 5] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0), 32),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254), 128),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x0042), 128),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0x0001), 128),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x00c1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
];
/// The ports on which kubelet, kube-proxy, scheduler and controller manager listen, on every node.
const COMPONENTS: RangeInclusive<u16> = 10248..=10259;

/// A range of addresses, as `10.0.0.0/8`; without a length it is one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr(IpNet);

/// The policy for the addresses that hooks may reach.
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    allowed: Vec<Cidr>,
    denied: Vec<Cidr>,
    /// True if a user runs the hook on the user's own machine: then its addresses are not denied.
    own_machine: bool,
    lookups: Lookups,
}

/// Why a host cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// Denied by the default policy.
    #[error("{at} may not be reached by a hook: it is {why}; --hook-allow {at} allows it")]
    Denied {
        /// The address.
        at: IpAddr,
        /// The reason.
        why: &'static str,
    },
    /// Denied by the operator (`--hook-deny`).
    #[error("{0} may not be reached by a hook: --hook-deny forbids it")]
    Forbidden(IpAddr),
    /// The name has no address.
    #[error("{host} cannot be resolved: {why}")]
    Unknown {
        /// The name.
        host: String,
        /// The resolver's error.
        why: String,
    },
}

impl AddressPolicy {
    /// The default policy, with `allowed` permitted as well.
    pub fn new(allowed: Vec<Cidr>) -> Self {
        Self { allowed, ..Self::default() }
    }

    /// The same policy with `denied` forbidden, whatever else is allowed.
    #[must_use]
    pub fn and_deny(mut self, denied: Vec<Cidr>) -> Self {
        self.denied.extend(denied);
        self
    }

    /// The policy for a user who runs the hook on the user's own machine: the addresses of a machine are not denied.
    #[must_use]
    pub fn at_own_machine(mut self) -> Self {
        self.allowed.extend(Cidr::LOOPBACK);
        self.own_machine = true;
        self
    }

    /// Whether this address may be connected to at all.
    ///
    /// # Errors
    /// `Denied`, with the reason; `Forbidden`.
    pub fn check(&self, at: IpAddr) -> Result<(), Unreachable> {
        self.judge(at, special)
    }

    /// Checks an address and a port, with the current addresses of this machine.
    fn check_port(&self, at: SocketAddr) -> Result<(), Unreachable> {
        self.check(at.ip())?;
        if self.own_machine {
            return Ok(());
        }
        self.judge(at.ip(), |address| {
            if COMPONENTS.contains(&at.port()) {
                return Some("a port of Kubernetes' own components");
            }
            let own = machine::is_own(address) && !machine::is_service(SocketAddr::new(address, at.port()));
            own.then_some("an address of the machine where the hook runs")
        })
    }

    fn judge(&self, at: IpAddr, special: impl Fn(IpAddr) -> Option<&'static str>) -> Result<(), Unreachable> {
        let meant = [Some(at), embedded(at).map(IpAddr::V4)];
        for address in meant.into_iter().flatten() {
            if self.denied.iter().any(|range| range.holds(address)) {
                return Err(Unreachable::Forbidden(address));
            }
            if let Some(why) = special(address)
                && !self.allows(at)
                && !self.allows(address)
            {
                return Err(Unreachable::Denied { at: address, why });
            }
        }
        Ok(())
    }

    /// The addresses to connect to for `host`, which may be a name or an address, in brackets too. Denied
    /// addresses of a name are left out. The lookups of hooks are limited, by the `namespace` of the hook, too;
    /// `waits` is true while this one waits for others.
    ///
    /// # Errors
    /// When the name cannot be resolved, or when all of its addresses are denied.
    pub async fn addresses(
        &self,
        namespace: &str,
        host: &str,
        port: u16,
        waits: &AtomicBool,
    ) -> Result<Vec<SocketAddr>, Unreachable> {
        if let Some(address) = literal(host) {
            let address = SocketAddr::new(address, port);
            self.check_port(address)?;
            return Ok(vec![address]);
        }
        let unknown = |why: String| Unreachable::Unknown { host: host.to_owned(), why };
        let found = self.lookups.find(namespace, host, port, waits).await;
        let found = found.map_err(|error| unknown(error.to_string()))?;
        let (mut addresses, mut denied) = (Vec::new(), None);
        for address in found {
            match self.check_port(address) {
                Ok(()) => addresses.push(address),
                Err(why) => denied = Some(why),
            }
        }
        match (addresses.is_empty(), denied) {
            (false, _) => Ok(addresses),
            (true, Some(denied)) => Err(denied),
            (true, None) => Err(unknown("the name has no address".to_owned())),
        }
    }

    fn allows(&self, address: IpAddr) -> bool {
        self.allowed.iter().any(|range| range.holds(address))
    }

    /// Holds all lookups that the namespace can have.
    #[cfg(test)]
    pub(super) async fn hold_lookups(&self, namespace: &str) -> Vec<crate::process::permits::Permit> {
        self.lookups.hold(namespace).await
    }
}

/// The address in a URL's host, if it is not a name.
pub(super) fn literal(host: &str) -> Option<IpAddr> {
    let inside = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    inside.unwrap_or(host).parse().ok()
}

/// Why an address is denied by default, if it is.
fn special(address: IpAddr) -> Option<&'static str> {
    const METADATA_WHY: &str = "a cloud's metadata service";
    const LINK_LOCAL: &str = "link-local, where clouds serve metadata and credentials";
    const LOOPBACK: &str =
        "the loopback address of the machine that runs the hook (use the pod IP to reach a pod)";
    const NOBODY: &str = "not an address of a host";
    match address {
        IpAddr::V4(ip) if ip.is_loopback() => Some(LOOPBACK),
        IpAddr::V4(ip) if ip.is_link_local() => Some(LINK_LOCAL),
        IpAddr::V4(ip) if METADATA.contains(&ip) => Some(METADATA_WHY),
        // Connecting to 0.0.0.0 reaches the node itself; 224.0.0.0 and above are multicast, reserved and
        // broadcast.
        IpAddr::V4(ip) => (ip.octets()[0] == 0 || ip.octets()[0] >= 224).then_some(NOBODY),
        IpAddr::V6(ip) if ip.is_loopback() => Some(LOOPBACK),
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Some(LINK_LOCAL),
        IpAddr::V6(ip) if METADATA_V6.iter().any(|range| range.contains(&ip)) => Some(METADATA_WHY),
        IpAddr::V6(ip) => (ip.is_unspecified() || ip.is_multicast()).then_some(NOBODY),
    }
}

/// The IPv4 address that an IPv6 address embeds: mapped (RFC 4291), compatible, NAT64 (RFC 6052, 8215), 6to4 (RFC
/// 3056).
fn embedded(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(ip) = address else { return None };
    let v4 = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        Some(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x64, 0xff9b, 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => v4(high, low),
        _ => None,
    }
}

impl Cidr {
    /// Loopback, for commands of a user at their own machine.
    pub const LOOPBACK: [Self; 2] = [
        Self(IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8))),
        Self(IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128))),
    ];

    fn holds(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl FromStr for Cidr {
    type Err = &'static str;

    /// A range without a length is one address, which the parser of `ipnet` refuses. The address is parsed by the
    /// standard library, which refuses octets with leading zeros.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "write an address or a range like 10.0.0.0/8 or fd00::/8";
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| WRONG)?;
        let Some(length) = length else { return Ok(Self(address.into())) };
        let length = length.parse().map_err(|_| WRONG)?;
        IpNet::new(address, length).map(Self).map_err(|_| "the range is longer than the address")
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_only_a_node_can_reach_is_denied() {
        for (address, why) in [
            ("169.254.169.254", "link-local"),
            ("169.254.0.1", "link-local"),
            ("fe80::1", "link-local"),
            ("febf:ffff::1", "link-local"),
            ("100.100.100.200", "metadata"),
            ("168.63.129.16", "metadata"),
            ("192.0.0.192", "metadata"),
            ("fd00:ec2::254", "metadata"),
            ("fd00:ec2::23", "metadata"),
            ("fd20:ce::254", "metadata"),
            ("fd00:42::42", "metadata"),
            ("fd00:a9fe:a9fe::1", "metadata"),
            ("fd00:c1::a9fe:a9fe", "metadata"),
            ("127.0.0.1", "loopback"),
            ("127.255.0.1", "loopback"),
            ("::1", "loopback"),
            ("0.0.0.0", "not an address"),
            ("0.1.2.3", "not an address"),
            ("::", "not an address"),
            ("224.0.0.1", "not an address"),
            ("255.255.255.255", "not an address"),
            ("240.0.0.1", "not an address"),
            ("ff02::1", "not an address"),
            // The same addresses, embedded in IPv6.
            ("::ffff:169.254.169.254", "link-local"),
            ("::ffff:0:127.0.0.1", "loopback"),
            ("::127.0.0.1", "loopback"),
            ("64:ff9b::169.254.169.254", "link-local"),
            ("64:ff9b:1::a9fe:a9fe", "link-local"),
            ("2002:a9fe:a9fe::1", "link-local"),
            ("::ffff:100.100.100.200", "metadata"),
            ("::ffff:0.0.0.0", "not an address"),
        ] {
            let denied = AddressPolicy::default().check(ip(address)).unwrap_err().to_string();
            assert!(denied.contains(why), "{address}: {denied}");
        }
    }

    #[test]
    fn hosts_are_reached() {
        for address in
            ["10.0.0.1", "192.168.1.1", "100.64.0.1", "1.1.1.1", "fd00::1", "2001:db8::1", "64:ff9b::a00:1"]
        {
            AddressPolicy::default().check(ip(address)).unwrap();
        }
    }

    #[test]
    fn what_is_allowed_is_reached_and_nothing_else() {
        let policy = AddressPolicy::new(vec![cidr("127.0.0.0/8"), cidr("169.254.7.7"), cidr("fe80::/10")]);
        for address in ["127.0.0.1", "127.9.9.9", "169.254.7.7", "fe80::1", "::ffff:127.0.0.1"] {
            policy.check(ip(address)).unwrap();
        }
        for address in ["169.254.7.8", "::1", "0.0.0.0", "::ffff:169.254.169.254"] {
            policy.check(ip(address)).unwrap_err();
        }
        AddressPolicy::new(vec![cidr("0.0.0.0/0")]).check(ip("169.254.169.254")).unwrap();
        AddressPolicy::new(vec![cidr("::/0")]).check(ip("fe80::1")).unwrap();
        AddressPolicy::new(Cidr::LOOPBACK.to_vec()).check(ip("::1")).unwrap();
    }

    async fn addresses(
        policy: &AddressPolicy,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, Unreachable> {
        policy.addresses("shop", host, port, &AtomicBool::new(false)).await
    }

    #[tokio::test]
    async fn the_machine_and_the_ports_of_its_components_are_denied() {
        // One address of this machine that is not loopback, if there is one.
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        let own = socket.connect("192.0.2.1:9").ok().and_then(|()| Some(socket.local_addr().ok()?.ip()));
        let default = AddressPolicy::default();
        if let Some(own) = own.filter(|own| !own.is_loopback()) {
            let own = own.to_string();
            let denied = addresses(&default, &own, 80).await.unwrap_err().to_string();
            assert!(denied.contains("the machine where the hook runs"), "{denied}");
            let policy = AddressPolicy::new(vec![cidr(&own)]);
            assert!(addresses(&policy, &own, 80).await.is_ok());
            assert!(addresses(&default.clone().at_own_machine(), &own, 10250).await.is_ok());
        }
        for address in ["198.51.100.7", "::ffff:198.51.100.7", "2001:db8::7"] {
            let denied = addresses(&default, address, 10250).await.unwrap_err().to_string();
            assert!(denied.contains("Kubernetes' own components"), "{denied}");
            assert!(addresses(&default, address, 8080).await.is_ok());
        }
    }

    #[tokio::test]
    async fn what_is_denied_by_hand_is_denied_whatever_is_allowed() {
        let policy = AddressPolicy::new(vec![cidr("0.0.0.0/0")]).and_deny(vec![cidr("10.1.0.0/16")]);
        let denied = addresses(&policy, "10.1.2.3", 80).await.unwrap_err().to_string();
        assert!(denied.contains("--hook-deny"), "{denied}");
        assert!(addresses(&policy, "::ffff:10.1.2.3", 80).await.is_err());
        assert!(addresses(&policy, "10.2.2.3", 80).await.is_ok());
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!(cidr("10.0.0.1").to_string(), "10.0.0.1/32");
        assert_eq!(cidr("fd00::/8").to_string(), "fd00::/8");
        for text in ["", "10", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "host/8", "::/129", "10.0.0.0/8/8"]
        {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_what_it_stands_for() {
        let default = AddressPolicy::default();
        let denied = addresses(&default, "localhost", 80).await.unwrap_err().to_string();
        assert!(denied.contains("loopback"), "{denied}");
        let policy = AddressPolicy::new(vec![cidr("127.0.0.1")]);
        let found = addresses(&policy, "localhost", 80).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(|at| at.ip() == ip("127.0.0.1")), "{found:?}");
        let found = addresses(&policy, "[fd00::1]", 80).await.unwrap();
        assert_eq!(found, ["[fd00::1]:80".parse().unwrap()]);
    }
}
