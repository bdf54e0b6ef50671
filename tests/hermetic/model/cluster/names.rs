//! The names of the simulated containers, their ports and their images.

use inplace::operation::port::Port;

pub(super) const OLD: &str = "repo/app:old";
pub(super) const NEW: &str = "repo/app:new";
pub(super) const ALIAS: &str =
    "repo/app@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// All containers of a name listen on this port.
pub(super) fn port_of(index: usize) -> Port {
    Port::Tcp(8080 + u16::try_from(index).unwrap())
}

pub(super) fn name_of(index: usize) -> String {
    format!("c{index}")
}

pub(super) fn index_of(name: &str) -> usize {
    name[1..].parse().unwrap()
}

pub(super) fn image_id(reference: &str) -> &'static str {
    if reference == NEW { "sha:new" } else { "sha:old" }
}
