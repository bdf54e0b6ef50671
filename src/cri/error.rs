//! Classifies the failures of calls: what a failure means for the caller, and its message.
//!
//! Must not contain anything of the request, which holds environment values.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use tonic::{Code, Status};

use crate::failure::Class;
use crate::operation::effect::EffectError;
use crate::process::cause;

/// What containerd answers, with the code `Unknown`, to every call while it reads its state after its own start.
const STARTING: &str = "server is not initialized yet";
/// Part of containerd's message when another container has the name.
const TAKEN: &str = "is reserved for ";
/// Parts of containerd's messages when a start is in progress, perhaps of a caller that is gone, or when that start
/// has ended meanwhile. The next observation shows its result.
const MOVING: [&str; 2] = ["in starting state", "container is in CONTAINER_"];
/// Beginning and end of containerd's message when a start finds the process of an earlier start, which a crashed
/// containerd had begun. containerd ends that container; the next observation shows it.
const LEFT_BEHIND: (&str, &str) = ("failed to create containerd task", "already exists");
/// The name of the call that starts a container. A pull can be canceled too, and that is an error of the pull.
pub(super) const START: &str = "StartContainer";
/// Part of containerd's message when the caller of a start went away or did not wait any longer: Go's `context.Canceled`.
const CANCELED: &str = "context canceled";
/// Parts of containerd's message when the program that starts a shim was killed, which happens at the end of the caller too.
const SHIM_KILLED: [&str; 2] = ["failed to start shim", "signal: killed"];
/// Part of containerd's message when runc, or a program that it calls, refuses a container.
const REFUSED_BY_RUNC: &str = "OCI runtime";

/// A call that failed or was not answered.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {message}")]
pub struct Error {
    /// The name of the call in the interface.
    pub call: &'static str,
    /// What the failure means for the caller.
    pub class: Class,
    /// The message for users; complete without the source.
    pub message: String,
    /// The gRPC status. Absent if the call exceeded its own deadline here.
    pub source: Option<Status>,
}

impl Error {
    /// Classifies `status`. The only place that does.
    pub(super) fn from_status(call: &'static str, path: &str, status: Status) -> Self {
        let reported = status.message();
        // A status from the server has no source; a status created on this side has one (measured). The code does
        // not help: the first call on a dead connection yields `Unknown`, as does containerd's name conflict.
        let (class, message) = if let Some(local) = status.source() {
            (Class::Unavailable, format!("the runtime at {path} cannot be reached: {}", cause(local)))
        } else if reported.contains(TAKEN) {
            (Class::NameTaken, reported.to_owned())
        } else if is_of_another_start(reported)
            || (call == START && is_canceled_start(reported))
            || reported.contains(STARTING)
        {
            (Class::Unavailable, reported.to_owned())
        } else {
            match status.code() {
                Code::NotFound => (Class::Gone, reported.to_owned()),
                Code::Unavailable | Code::Cancelled | Code::DeadlineExceeded => (
                    Class::Unavailable,
                    format!("the runtime at {path} did not complete the call: {reported}"),
                ),
                Code::Unimplemented => (
                    Class::Final,
                    format!(
                        "{path} does not implement this call: {reported}; check that it is a runtime's socket \
                         and that CRI version 1 is enabled"
                    ),
                ),
                Code::InvalidArgument => (Class::Final, reported.to_owned()),
                code => {
                    (Class::Refused, if reported.is_empty() { code.to_string() } else { reported.to_owned() })
                }
            }
        };
        Self { call, class, message, source: Some(status) }
    }

    /// No answer in time: whether the call took effect is unknown.
    pub(super) fn late(call: &'static str, path: &str, limit: Duration) -> Self {
        let message = format!("the runtime at {path} did not answer within {} s", limit.as_secs_f32());
        Self { call, class: Class::Unavailable, message, source: None }
    }

    /// A call that is not made because it would do harm.
    pub(super) fn forbidden(call: &'static str, why: &impl ToString) -> Self {
        Self { call, class: Class::Final, message: why.to_string(), source: None }
    }

    /// An answer that cannot be used.
    pub(super) fn nonsense(call: &'static str) -> Self {
        let message = "the runtime's answer contains no ID".to_owned();
        Self { call, class: Class::Refused, message, source: None }
    }

    /// The ID of the container that has the name, if the name is taken.
    pub fn owner(&self) -> Option<&str> {
        let (_, rest) = self.message.split_once(TAKEN)?;
        let (id, _) = rest.strip_prefix('"')?.split_once('"')?;
        (!id.is_empty()).then_some(id)
    }
}

/// True for a message about a start that concerns an earlier start.
fn is_of_another_start(reported: &str) -> bool {
    let (begins, ends) = LEFT_BEHIND;
    MOVING.iter().any(|moving| reported.contains(moving))
        || (reported.contains(begins) && reported.ends_with(ends))
}

impl From<Error> for EffectError {
    fn from(error: Error) -> Self {
        Self { class: error.class, message: error.to_string() }
    }
}

/// The root cause of a local failure, with advice where there is some.
fn cause(local: &(dyn StdError + 'static)) -> String {
    let (bottom, kind) = cause::bottom(local);
    match kind {
        Some(io::ErrorKind::NotFound) => {
            "no such file: check that the runtime runs, or name another socket with --runtime-endpoint"
                .to_owned()
        }
        Some(io::ErrorKind::ConnectionRefused) => {
            "connection refused: the socket exists, but no process listens on it".to_owned()
        }
        Some(io::ErrorKind::PermissionDenied) => "permission denied: run as root".to_owned(),
        _ => format!("{bottom}: the connection was closed, or this is not a runtime's socket"),
    }
}

/// True for the error of a start that did not fail because of its container: the caller, for example a kubelet, was killed.
pub fn is_canceled_start(reported: &str) -> bool {
    let is_canceled = reported.contains(CANCELED) || SHIM_KILLED.iter().all(|part| reported.contains(part));
    is_canceled && !reported.contains(REFUSED_BY_RUNC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: Code, text: &str) -> Error {
        Error::from_status("CreateContainer", "/run/x.sock", Status::new(code, text))
    }

    fn local(kind: io::ErrorKind) -> Error {
        let mut status = Status::new(Code::Unknown, "transport error");
        status.set_source(std::sync::Arc::new(io::Error::from(kind)));
        Error::from_status("Version", "/run/x.sock", status)
    }

    #[test]
    fn the_servers_word_by_its_code() {
        for (code, class) in [
            (Code::NotFound, Class::Gone),
            (Code::Unavailable, Class::Unavailable),
            (Code::Cancelled, Class::Unavailable),
            (Code::DeadlineExceeded, Class::Unavailable),
            (Code::Unimplemented, Class::Final),
            (Code::InvalidArgument, Class::Final),
            (Code::Unknown, Class::Refused),
            (Code::FailedPrecondition, Class::Refused),
            (Code::Internal, Class::Refused),
            (Code::ResourceExhausted, Class::Refused),
        ] {
            let error = server(code, "some text");
            assert_eq!(error.class, class, "{code:?}");
            assert!(error.message.contains("some text") && error.source.is_some());
            assert_eq!(error.owner(), None);
        }
        assert!(!server(Code::Unknown, "").message.is_empty());
    }

    #[test]
    fn only_a_start_is_canceled_by_the_end_of_its_caller() {
        let classified = |call, text: &str| {
            Error::from_status(call, "/run/x.sock", Status::new(Code::Unknown, text)).class
        };
        let [canceled, killed, refused] = [
            "failed to create containerd task: failed to create shim task: context canceled",
            "failed to create containerd task: failed to start shim: start failed: : signal: killed",
            "failed to create containerd task: failed to create shim task: OCI runtime create failed",
        ];
        let starts = [canceled, killed, refused].map(|text| classified(START, text));
        assert_eq!(starts, [Class::Unavailable, Class::Unavailable, Class::Refused]);
        assert_eq!(classified("PullImage", "failed to pull: context canceled"), Class::Refused);
    }

    #[test]
    fn a_taken_name_by_its_text_whatever_the_code() {
        let text = r#"failed to reserve container name "app_pod_ns_uid_1": name "app_pod_ns_uid_1" is reserved for "4f5c""#;
        for code in [Code::Unknown, Code::FailedPrecondition, Code::AlreadyExists] {
            let error = server(code, text);
            assert_eq!((error.class, error.owner()), (Class::NameTaken, Some("4f5c")));
        }
        assert_eq!(server(Code::Unknown, "is reserved for nobody").owner(), None);
        assert_eq!(server(Code::Unknown, r#"is reserved for """#).owner(), None);
    }

    #[test]
    fn a_start_that_is_under_way_may_still_end_well() {
        for text in [
            r#"failed to set starting state for container "4f5c": container is already in starting state"#,
            r#"failed to set removing state for container "4f5c": container is in starting state, can't be removed"#,
            r#"failed to set starting state for container "4f5c": container is in CONTAINER_EXITED state"#,
            "failed to create containerd task: task 4f5c: already exists",
        ] {
            let error = server(Code::Unknown, text);
            assert_eq!((error.class, error.message.as_str()), (Class::Unavailable, text));
        }
    }

    /// A request that comes in that moment is not refused.
    #[test]
    fn a_runtime_that_is_starting_is_not_available_yet() {
        assert_eq!(server(Code::Unknown, STARTING).class, Class::Unavailable);
    }

    #[test]
    fn a_local_failure_says_what_to_do() {
        for (kind, text) in [
            (io::ErrorKind::NotFound, "no such file"),
            (io::ErrorKind::ConnectionRefused, "connection refused"),
            (io::ErrorKind::PermissionDenied, "permission denied: run as root"),
            (io::ErrorKind::BrokenPipe, "broken pipe"),
        ] {
            let error = local(kind);
            assert_eq!(error.class, Class::Unavailable);
            assert!(error.to_string().contains("Version: the runtime at /run/x.sock cannot be reached"));
            assert!(error.message.contains(text), "{}", error.message);
        }
        let effect_error =
            EffectError::from(Error::late("Status", "/run/x.sock", Duration::from_millis(1500)));
        assert_eq!(effect_error.class, Class::Unavailable);
        assert_eq!(effect_error.message, "Status: the runtime at /run/x.sock did not answer within 1.5 s");
    }
}
