//! Finds the runtime's socket: the given one, or the first known one that exists.
//!
//! Must not connect, read settings, or try several sockets: the runtime is chosen once.

use std::fmt;
use std::path::Path;

/// The default sockets of the runtimes, in search order.
pub const KNOWN: [&str; 7] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    // k3s and RKE2
    "/run/k3s/containerd/containerd.sock",
    // microk8s
    "/var/snap/microk8s/common/run/containerd.sock",
    // k0s
    "/run/k0s/containerd.sock",
    "/run/cri-dockerd.sock",
    "/var/run/cri-dockerd.sock",
];

/// Maximum length of a socket path, without the terminating zero.
const MAX_PATH: usize = 107;

/// The unix socket of a runtime. It need not exist.
#[derive(Clone)]
pub struct Endpoint {
    path: String,
    address: tonic::transport::Endpoint,
}

/// Why no socket can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    /// The given text is not a socket.
    #[error(
        "{given:?} is not a runtime endpoint: {why}; use the form unix:///run/containerd/containerd.sock"
    )]
    Invalid {
        /// The given text.
        given: String,
        /// Why the text is invalid.
        why: &'static str,
    },
    /// No socket was given, and none of the known sockets exists.
    #[error("no container runtime was found at {0}: pass --runtime-endpoint")]
    NotFound(String),
}

impl Endpoint {
    /// Parses `unix:///run/x.sock`, `unix:/run/x.sock` or `/run/x.sock`.
    pub fn parse(given: &str) -> Result<Self, NoEndpoint> {
        let invalid = |why| NoEndpoint::Invalid { given: given.to_owned(), why };
        let path = given.strip_prefix("unix:").map_or(given, |rest| rest.strip_prefix("//").unwrap_or(rest));
        if path.is_empty() {
            return Err(invalid("it names no socket"));
        }
        if path.contains("://") {
            return Err(invalid("only a Unix socket of this node can be used"));
        }
        if !path.starts_with('/') {
            return Err(invalid("the path must be absolute"));
        }
        if path.len() > MAX_PATH {
            return Err(invalid("the path is longer than 107 bytes, the limit for a socket"));
        }
        if path.contains('\0') {
            return Err(invalid("the path contains a zero byte"));
        }
        let address = tonic::transport::Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|_| invalid("the path cannot be used"))?;
        Ok(Self { path: path.to_owned(), address })
    }

    /// The given socket, even if it does not exist yet; otherwise the first of [`KNOWN`] that exists.
    pub fn find(given: Option<&str>) -> Result<Self, NoEndpoint> {
        Self::choose(given, &KNOWN, Path::exists)
    }

    fn choose(
        given: Option<&str>,
        known: &[&str],
        exists: impl Fn(&Path) -> bool,
    ) -> Result<Self, NoEndpoint> {
        if let Some(given) = given {
            return Self::parse(given);
        }
        let found = known.iter().find(|path| exists(Path::new(path)));
        found.map_or_else(|| Err(NoEndpoint::NotFound(known.join(", "))), |path| Self::parse(path))
    }

    /// The path of the socket.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The address from which a channel is created.
    pub(super) fn address(&self) -> &tonic::transport::Endpoint {
        &self.address
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.path)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(given: &str) -> String {
        Endpoint::parse(given).unwrap().path().to_owned()
    }

    #[test]
    fn three_spellings_of_one_socket() {
        for given in ["unix:///run/x y.sock", "unix:/run/x y.sock", "/run/x y.sock"] {
            assert_eq!(parsed(given), "/run/x y.sock");
        }
        assert_eq!(Endpoint::parse("/run/x.sock").unwrap().to_string(), "unix:///run/x.sock");
    }

    #[test]
    fn what_is_no_socket_of_this_node_is_refused() {
        for (given, why) in [
            ("", "names no socket"),
            ("unix://", "names no socket"),
            ("tcp://127.0.0.1:1", "only a Unix socket"),
            ("npipe:////./pipe/x", "only a Unix socket"),
            ("run/x.sock", "absolute"),
            ("unix://run/x.sock", "absolute"),
            ("/run/\0", "zero byte"),
        ] {
            let error = Endpoint::parse(given).unwrap_err().to_string();
            assert!(error.contains(why), "{given}: {error}");
        }
        assert_eq!(parsed(&format!("/{}", "x".repeat(106))).len(), 107);
        assert!(
            Endpoint::parse(&format!("/{}", "x".repeat(107))).unwrap_err().to_string().contains("107 bytes")
        );
    }

    #[test]
    fn the_given_one_wins_then_the_first_that_exists() {
        let known = ["/a", "/b", "/c"];
        let find = |given| Endpoint::choose(given, &known, |path| path != Path::new("/a"));
        assert_eq!(find(Some("/nobody")).unwrap().path(), "/nobody");
        assert_eq!(find(None).unwrap().path(), "/b");
        let error = Endpoint::choose(None, &known, |_| false).unwrap_err().to_string();
        assert_eq!(error, "no container runtime was found at /a, /b, /c: pass --runtime-endpoint");
    }

    #[test]
    fn every_known_socket_is_one() {
        for known in KNOWN {
            assert_eq!(parsed(known), known);
        }
    }
}
