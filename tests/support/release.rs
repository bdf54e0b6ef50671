//! Releases of Kubernetes 1.

/// The first minor release with `ValidatingAdmissionPolicy`.
pub(crate) const POLICY_SINCE: u32 = 30;
/// The first minor release whose kubelet runs native sidecars.
pub(crate) const SIDECARS_SINCE: u32 = 29;

/// The minor release of a version such as `v1.20.2`. The field "minor" of an API server is empty in some builds.
pub(crate) fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .unwrap_or_else(|| panic!("no release: {version}"))
}
