//! Classifies the failures of API calls and words them for users.
//!
//! Must not hold content of an object: pods contain environment values, and secrets contain passwords.

use std::error::Error as StdError;
use std::time::Duration;
use std::{io, iter};

use hyper_util::client::legacy;
use kube::core::Status;

pub use crate::failure::Class;
use crate::process::cause;

/// A call that failed: without an answer, or with an error status.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {message}")]
pub struct Error {
    doing: String,
    class: Class,
    message: String,
    test_failed: bool,
    source: Option<kube::Error>,
}

impl Error {
    /// What the failure means for the caller. `NotSent`: nothing was sent. `Unavailable`: the server is late, overloaded
    /// or broken, or the connection broke. `Gone`: the object does not exist. `Refused`: conflict, the object was
    /// modified concurrently. `Denied`: not allowed. `Final`: a retry cannot succeed.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The message for users, without the operation that failed.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// True if the namespace is being deleted: nothing can be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        let Some(kube::Error::Api(status)) = &self.source else { return false };
        let mut causes = status.details.iter().flat_map(|details| &details.causes);
        causes.any(|cause| cause.reason == "NamespaceTerminating")
    }

    /// True if an object of the name exists already. Other conflicts of a creation, such as that of a quota, leave nothing.
    pub fn is_already_there(&self) -> bool {
        matches!(&self.source, Some(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists")
    }

    /// True if the caller has the right, and the admission of the namespace (a quota, Pod Security, a policy, a webhook) or the
    /// validation refuses the object.
    pub fn is_object_refused(&self) -> bool {
        let Some(kube::Error::Api(status)) = &self.source else { return false };
        match status.code {
            400 | 422 => true,
            // The authorizer says that a user "cannot" do it, admission that the object is forbidden and why.
            403 => !status.message.contains(" cannot "),
            _ => false,
        }
    }

    /// True if the object is larger than the API server accepts (413) or than etcd stores (an internal error).
    pub fn is_too_large(&self) -> bool {
        let Some(kube::Error::Api(status)) = &self.source else { return false };
        let is_etcds = |text: &str| status.code == 500 && status.message.contains(text);
        status.code == 413 || is_etcds("request is too large") || is_etcds("message larger than max")
    }

    /// True if the patch was made for another object or version (a JSON patch's `test` failed, or the uid differs).
    pub(crate) fn is_test_failed(&self) -> bool {
        self.test_failed
    }

    /// Classifies `source` as the outcome of `doing`.
    pub fn of(doing: &str, source: kube::Error) -> Self {
        let (class, message, test_failed) = match &source {
            kube::Error::Api(status) => answer(status),
            kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => (
                Class::Final,
                "the API server's answer cannot be read: is this an API server?".to_owned(),
                false,
            ),
            kube::Error::BuildRequest(error) => (Class::Final, error.to_string(), false),
            kube::Error::Auth(error) => {
                (Class::NotSent, format!("no credentials for the API server: {}", bottom(error)), false)
            }
            other => {
                let class = if is_unsent(other) { Class::NotSent } else { Class::Unavailable };
                (class, format!("the API server cannot be reached: {}", bottom(other)), false)
            }
        };
        Self { doing: doing.to_owned(), class, message, test_failed, source: Some(source) }
    }

    /// A call that was not answered in time: whether it took effect is unknown.
    pub fn late(doing: &str, limit: Duration) -> Self {
        let message = format!("the API server did not answer within {} s", limit.as_secs_f32());
        Self::own(doing, Class::Unavailable, message)
    }

    /// An error that this crate detects itself, without a `kube::Error` as its source.
    pub(crate) fn own(doing: &str, class: Class, message: String) -> Self {
        Self { doing: doing.to_owned(), class, message, test_failed: false, source: None }
    }
}

/// Classifies an error status: class, message, and whether the object differs from the expected one.
fn answer(status: &Status) -> (Class, String, bool) {
    let message = if status.message.is_empty() { status.reason.as_str() } else { status.message.as_str() };
    let causes = status.details.as_ref().map_or(&[][..], |details| &details.causes);
    let text = |what: &str| if message.is_empty() { what.to_owned() } else { format!("{what}: {message}") };
    match status.code {
        404 | 410 => (Class::Gone, text("the object does not exist"), false),
        409 => (Class::Refused, text("conflict: the object was modified or created concurrently"), true),
        // A failed `test` of a JSON patch names no field (apiserver, patch.go); the error for an invalid object
        // does.
        422 if causes.is_empty() => {
            (Class::Refused, text("precondition failed: the object has changed"), true)
        }
        422 if causes.iter().any(|cause| cause.field == "metadata.uid") => {
            (Class::Refused, text("another object has the name"), true)
        }
        401 => (Class::Final, text("the API server does not accept the credentials"), false),
        403 => (Class::Denied, text("not allowed"), false),
        429 => (Class::Unavailable, text("the API server limits requests"), false),
        code if code >= 500 => (Class::Unavailable, text("the API server failed"), false),
        code => (Class::Final, text(&format!("the API server refused the call ({code})")), false),
    }
}

/// Whether a call failed before a connection was established: the server cannot have received it.
fn is_unsent(error: &(dyn StdError + 'static)) -> bool {
    let mut chain = iter::successors(Some(error), |&error| error.source());
    chain.any(|error| error.downcast_ref::<legacy::Error>().is_some_and(legacy::Error::is_connect))
}

/// The root cause of a local failure, in words that help the user where possible.
fn bottom(error: &(dyn StdError + 'static)) -> String {
    let (bottom, kind) = cause::bottom(error);
    match kind {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused: no process listens there".to_owned(),
        Some(io::ErrorKind::TimedOut) => "the connection timed out".to_owned(),
        _ => bottom.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn no(code: u16, message: &str, fields: &[&str]) -> Error {
        let cause = |field: &&str| StatusCause { field: (*field).to_owned(), ..cause() };
        let details = StatusDetails { causes: fields.iter().map(cause).collect(), ..details() };
        let status =
            Status { code, message: message.to_owned(), details: Some(details), ..Status::default() };
        Error::of("writing", kube::Error::Api(Box::new(status)))
    }

    fn cause() -> StatusCause {
        StatusCause { reason: String::new(), message: String::new(), field: String::new() }
    }

    fn details() -> StatusDetails {
        serde_json::from_str("{}").unwrap()
    }

    #[test]
    fn the_servers_word_by_its_code() {
        for (code, class) in [
            (400, Class::Final),
            (401, Class::Final),
            (403, Class::Denied),
            (404, Class::Gone),
            (405, Class::Final),
            (409, Class::Refused),
            (410, Class::Gone),
            (413, Class::Final),
            (422, Class::Refused),
            (429, Class::Unavailable),
            (500, Class::Unavailable),
            (503, Class::Unavailable),
        ] {
            let error = no(code, "some text", &[]);
            assert_eq!(error.class(), class, "{code}");
            assert!(
                error.to_string().starts_with("writing: ") && error.message().ends_with("some text"),
                "{error}"
            );
            assert_eq!(error.is_test_failed(), matches!(code, 409 | 422), "{code}");
        }
    }

    #[test]
    fn a_failed_test_is_distinguished_from_an_object_that_is_not_valid() {
        assert_eq!(no(422, "", &["spec"]).class(), Class::Final);
        assert!(!no(422, "", &["spec"]).is_test_failed());
        assert!(no(422, "", &["metadata.uid"]).is_test_failed() && no(422, "", &[]).is_test_failed());
    }

    #[test]
    fn an_object_that_is_refused_is_not_a_right_that_is_missing() {
        let right = "pods is forbidden: User \"system:serviceaccount:a:b\" cannot create resource \"pods\" in API group \"\"";
        for (code, message, refused) in [
            (403, right, false),
            (
                403,
                "pods \"web-1\" is forbidden: exceeded quota: small, requested: pods=1, used: pods=3",
                true,
            ),
            (
                403,
                "pods \"web-1\" is forbidden: violates PodSecurity \"restricted:latest\": privileged",
                true,
            ),
            (400, "admission webhook \"images.example\" denied the request: no tag", true),
            (422, "Pod \"web-1\" is invalid: spec.containers[0].image: Required value", true),
            (401, "Unauthorized", false),
            (409, "the object has been modified", false),
            (500, "internal error", false),
        ] {
            assert_eq!(no(code, message, &["spec"]).is_object_refused(), refused, "{code} {message}");
        }
        assert!(!Error::late("writing", Duration::from_secs(10)).is_object_refused());
    }

    #[test]
    fn an_object_that_is_too_large_is_distinguished_from_a_server_that_failed() {
        for (code, message, large) in [
            (413, "Request entity too large: limit is 3145728", true),
            (500, "etcdserver: request is too large", true),
            (500, "trying to send message larger than max (2102345 vs. 2097152)", true),
            (500, "etcdserver: leader changed", false),
            (429, "request is too large", false),
        ] {
            assert_eq!(no(code, message, &[]).is_too_large(), large, "{code} {message}");
        }
    }

    #[test]
    fn what_happens_on_the_way_there_says_what_it_is() {
        for (kind, says) in [
            (io::ErrorKind::ConnectionRefused, "connection refused"),
            (io::ErrorKind::TimedOut, "the connection timed out"),
            (io::ErrorKind::BrokenPipe, "broken pipe"),
        ] {
            let error = Error::of("writing", kube::Error::Service(Box::new(io::Error::from(kind))));
            assert_eq!(error.class(), Class::Unavailable);
            assert!(error.to_string().contains(says), "{error}");
        }
        let late = Error::late("writing", Duration::from_secs(10));
        assert_eq!(
            (late.class(), late.to_string().as_str()),
            (Class::Unavailable, "writing: the API server did not answer within 10 s")
        );
    }
}
