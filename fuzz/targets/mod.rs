//! All fuzz targets: what they read is what users, the network and a disk can send. Each is a function that panics where a promise
//! is broken. The hermetic tests run each of them with its seeds.

mod admission;
mod condition;
mod cri;
mod decisions;
mod journal;
mod json_path;
mod request;
mod template;
mod watch;

/// Runs one input.
pub(crate) type Target = fn(&[u8]);

/// Each target by its name, which is the name of the folder of its seeds.
pub(crate) const TARGETS: [(&str, Target); 8] = [
    ("condition", condition::run),
    ("json_path", json_path::run),
    ("template", template::run),
    ("request", request::run),
    ("admission", admission::run),
    ("watch", watch::run),
    ("cri", cri::run),
    ("journal", journal::run),
];
