//! Releases of Kubernetes 1.

use std::io::Write;

/// The first minor release with `ValidatingAdmissionPolicy`.
pub(crate) const POLICY_SINCE: u32 = 30;
/// The first minor release whose kubelet runs native sidecars.
pub(crate) const SIDECARS_SINCE: u32 = 29;

/// The first minor release that resizes running pods.
pub(crate) const RESIZE_SINCE: u32 = 33;

/// The first minor release whose kubelet takes over from the old container that its startup probe has passed.
pub(crate) const STARTUP_TAKEN_OVER_SINCE: u32 = 35;

/// The minor release of a version such as `v1.20.2`. The field "minor" of an API server is empty in some builds.
pub(crate) fn minor(version: &str) -> u32 {
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .unwrap_or_else(|| panic!("no release: {version}"))
}

/// Whether the cluster's `version` has something that exists since a minor release. If not, the caller's test does not
/// exercise it, and that is printed, also when the test passes.
pub(crate) fn has(what: &str, since: u32, version: &str) -> bool {
    let has = minor(version) >= since;
    if !has {
        not_exercised(what, since, version);
    }
    has
}

/// Prints that a test does not exercise something that exists since a minor release.
pub(crate) fn not_exercised(what: &str, since: u32, version: &str) {
    let reported = format!(
        "\nNOT EXERCISED: {what}: they need Kubernetes 1.{since}, this is {version}: give newer ones in KUBE_BIN\n"
    );
    // The test framework shows what `eprintln!` prints only of a test that fails.
    std::io::stderr().write_all(reported.as_bytes()).unwrap();
}
