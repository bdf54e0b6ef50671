//! `AdmissionReview` in, `AdmissionReview` out (admission.k8s.io/v1). Pure: which requests are refused is decided elsewhere.
//!
//! The body is parsed into the types that are looked at, never into a tree of all that it holds: whoever sends it decides
//! how large such a tree would be. What every review is read for has bounds of its own; an object of which more is made is
//! weighed before.

use std::collections::BTreeMap;

use axum::body::Bytes;
use k8s_openapi::ByteString;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::controller::admission::bounded::{self, Unreadable, Weight};

/// Of a namespace, of an object, and of what is passed on of a user's.
const LONGEST_NAME: usize = 253;

/// What is asked, as far as any webhook here looks at it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// Comes back in the answer.
    #[serde(deserialize_with = "bounded::uid")]
    uid: String,
    /// Of the object.
    pub(super) kind: Kind,
    /// `eviction`; empty for the object itself.
    #[serde(default, deserialize_with = "bounded::sub_resource")]
    pub(super) sub_resource: String,
    /// `CREATE`, `UPDATE`, ...
    #[serde(deserialize_with = "bounded::operation")]
    pub(super) operation: String,
    /// Of the object; empty when the API server makes one up.
    #[serde(default, deserialize_with = "bounded::name")]
    name: String,
    #[serde(default, deserialize_with = "bounded::namespace")]
    pub(super) namespace: String,
    /// Who asks.
    #[serde(default)]
    pub(super) user_info: UserInfo,
    /// As it would be.
    #[serde(default)]
    object: Option<Header>,
    /// As it is.
    #[serde(default)]
    old_object: Option<Header>,
    #[serde(default)]
    dry_run: Option<bool>,
    /// The whole review.
    #[serde(skip)]
    body: Bytes,
}

/// What kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Kind {
    #[serde(deserialize_with = "bounded::group")]
    pub(super) group: String,
    #[serde(deserialize_with = "bounded::kind")]
    pub(super) kind: String,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct UserInfo {
    #[serde(default, deserialize_with = "bounded::username")]
    pub(super) username: String,
    #[serde(default, deserialize_with = "bounded::user_uid")]
    pub(super) uid: String,
    #[serde(default, deserialize_with = "bounded::groups")]
    pub(super) groups: Vec<String>,
    #[serde(default, deserialize_with = "bounded::extra")]
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    /// The name as it may stand in a message.
    pub(super) fn printable(&self) -> String {
        self.username.chars().filter(|char| !char.is_control()).take(LONGEST_NAME).collect()
    }
}

/// What is read of every object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    #[serde(default)]
    metadata: Option<HeaderMeta>,
    /// Of an eviction.
    #[serde(default)]
    delete_options: Option<DeleteOptions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeaderMeta {
    #[serde(default, deserialize_with = "bounded::of_metadata")]
    name: Option<String>,
    #[serde(default, deserialize_with = "bounded::of_metadata")]
    uid: Option<String>,
    #[serde(default)]
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    #[serde(default, deserialize_with = "bounded::is_filled")]
    dry_run: bool,
}

impl Request {
    /// The name of the object. Of many that are deleted at once each one's own.
    pub(super) fn name(&self) -> &str {
        let mut own = [&self.old_object, &self.object].into_iter().flatten();
        let own = own.find_map(|header| header.metadata.as_ref()?.name.as_deref());
        own.filter(|_| self.name.is_empty()).unwrap_or(&self.name)
    }

    /// The uid of the object as it is, where the review says one.
    pub(super) fn old_uid(&self) -> Option<&str> {
        self.old_object.as_ref()?.metadata.as_ref()?.uid.as_deref()
    }

    /// True when the object is on its way out.
    pub(super) fn is_leaving(&self) -> bool {
        let meta = self.object.as_ref().and_then(|object| object.metadata.as_ref());
        meta.is_some_and(|meta| meta.deletion_timestamp.is_some())
    }

    /// True when nothing may come of it. An eviction says it in the options of its deletion.
    pub(super) fn is_dry_run(&self) -> bool {
        let options = self.object.as_ref().and_then(|object| object.delete_options.as_ref());
        self.dry_run == Some(true) || options.is_some_and(|options| options.dry_run)
    }

    /// Whether more may be made of its objects than every review is read for.
    ///
    /// # Errors
    /// When one of them would cost too much memory.
    pub(super) fn weigh(&self) -> Result<(), Unreadable> {
        let _: Review<Both> = serde_json::from_slice(&self.body)?;
        Ok(())
    }

    /// The object as it would be.
    ///
    /// # Errors
    /// When it is none of this type; the text says why, for people.
    pub(super) fn new_as<T: DeserializeOwned>(&self) -> Result<T, String> {
        let review: Review<New<T>> = serde_json::from_slice(&self.body).map_err(|error| {
            let text = error.to_string();
            // Where in the review it stands tells nobody anything.
            text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what).to_owned()
        })?;
        Ok(review.request.object)
    }

    /// The object as it is; `None` when there is none, or none of this type.
    pub(super) fn old_as<T: DeserializeOwned>(&self) -> Option<T> {
        let review: Review<Old<T>> = serde_json::from_slice(&self.body).ok()?;
        review.request.old_object
    }
}

#[derive(Deserialize)]
struct Review<T> {
    request: T,
}

#[derive(Deserialize)]
struct New<T> {
    object: T,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Old<T> {
    old_object: Option<T>,
}

#[derive(Deserialize)]
struct Both {
    #[serde(default, rename = "object")]
    _object: Weight,
    #[serde(default, rename = "oldObject")]
    _old_object: Weight,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Yes; whoever asked is told these.
    Allowed(Vec<String>),
    /// Yes, with these changes (JSON patch).
    Patched(Value),
    /// No.
    Refused(Refusal),
}

/// A no, as the API server passes it on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The code of HTTP.
    pub(super) code: u16,
    /// Its name in Kubernetes.
    pub(super) reason: &'static str,
    /// For people.
    pub(super) message: String,
    /// What is wrong with single fields.
    pub(super) causes: Vec<Problem>,
}

impl Refusal {
    /// As the API server says that a request is too large.
    pub(super) fn too_large(message: String) -> Self {
        Self { code: 413, reason: "RequestEntityTooLarge", message, causes: Vec::new() }
    }

    /// As the API server says that somebody may not do something.
    pub(super) fn forbidden(message: String) -> Self {
        Self { code: 403, reason: "Forbidden", message, causes: Vec::new() }
    }
}

/// One thing that is wrong, as `spec.field: what and what to do`.
pub(super) type Problem = String;

impl From<Vec<Problem>> for Answer {
    /// As the API server itself says that an object is not valid.
    fn from(problems: Vec<Problem>) -> Self {
        if problems.is_empty() {
            return Self::Allowed(Vec::new());
        }
        let message = problems.join("; ");
        Self::Refused(Refusal { code: 422, reason: "Invalid", message, causes: problems })
    }
}

/// A field and what is wrong with it, as `kubectl` prints them.
#[derive(Serialize)]
struct Cause<'a> {
    reason: &'a str,
    field: &'a str,
    message: &'a str,
}

/// What the review in `body` asks.
///
/// # Errors
/// When there is no review in it, one that holds too much, or one about an object that cannot have such a name: names become
/// part of paths.
pub(super) fn read(body: Bytes) -> Result<Request, Unreadable> {
    let review: Review<Request> = serde_json::from_slice(&body)?;
    let asked = Request { body, ..review.request };
    let is_name = |name: &str| {
        let part = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || "-.".contains(char);
        name.len() <= LONGEST_NAME && !name.starts_with('.') && name.chars().all(part)
    };
    if is_name(&asked.namespace) && is_name(asked.name()) {
        Ok(asked)
    } else {
        Err(Unreadable::Other("no name of an object".to_owned()))
    }
}

/// The review that answers `asked`.
pub(super) fn reply(asked: &Request, answer: &Answer) -> Value {
    let mut response = json!({"uid": asked.uid, "allowed": !matches!(answer, Answer::Refused(_))});
    match answer {
        Answer::Allowed(warnings) if warnings.is_empty() => {}
        Answer::Allowed(warnings) => response["warnings"] = json!(warnings),
        Answer::Patched(patch) => {
            response["patchType"] = json!("JSONPatch");
            response["patch"] = json!(ByteString(patch.to_string().into_bytes()));
        }
        Answer::Refused(refusal) => response["status"] = status(asked, refusal),
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
}

fn status(asked: &Request, refusal: &Refusal) -> Value {
    let causes = refusal.causes.iter().map(|problem| {
        let (field, message) = problem.split_once(": ").unwrap_or(("", problem));
        Cause { reason: "FieldValueInvalid", field, message }
    });
    json!({
        "status": "Failure", "code": refusal.code, "reason": refusal.reason, "message": refusal.message,
        "details": {
            "group": asked.kind.group, "kind": asked.kind.kind, "name": asked.name(),
            "causes": causes.collect::<Vec<_>>(),
        },
    })
}

/// What is asked in a test.
#[cfg(test)]
pub(super) fn request(asked: &Value) -> Request {
    read(json!({"request": asked}).to_string().into()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_uid_and_names_every_field() {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u-1", "operation": "CREATE", "kind": {"group": "g", "version": "v1", "kind": "K"},
            "name": "web", "object": {}, "oldObject": null, "dryRun": true}});
        let body = review.to_string();
        let asked = read(body.into()).unwrap();
        assert!(asked.is_dry_run());
        let allowed = reply(&asked, &Vec::new().into());
        assert_eq!(allowed["response"], json!({"uid": "u-1", "allowed": true}));
        let two = vec!["spec.a: too much: take less".to_owned(), "nothing fits".to_owned()];
        let denied = reply(&asked, &two.into());
        let (response, status) = (&denied["response"], &denied["response"]["status"]);
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u-1"), &json!(false)));
        assert_eq!(status["message"], "spec.a: too much: take less; nothing fits");
        assert_eq!((&status["code"], &status["details"]["name"]), (&json!(422), &json!("web")));
        let causes = &status["details"]["causes"];
        assert_eq!(
            (&causes[0]["field"], &causes[0]["message"]),
            (&json!("spec.a"), &json!("too much: take less"))
        );
        assert_eq!((&causes[1]["field"], &causes[1]["message"]), (&json!(""), &json!("nothing fits")));
        assert!(read(Bytes::from_static(b"{}")).is_err());
        for (namespace, name) in
            [("shop", "web/../x"), ("shop", "web?x"), ("shop", "../x"), ("a/b", "web"), ("A", "web")]
        {
            let review = json!({"request": {"uid": "u", "operation": "DELETE", "namespace": namespace, "name": name,
                "kind": {"group": "", "kind": "Pod"}}});
            assert!(read(review.to_string().into()).is_err(), "{namespace}/{name} becomes part of a path");
        }
    }

    #[test]
    fn a_change_and_a_warning_are_passed_on() {
        let asked =
            request(&json!({"uid": "u", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}}));
        let reported = reply(&asked, &Answer::Patched(json!([1])));
        assert_eq!(
            reported["response"],
            json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "WzFd"})
        );
        let reported = reply(&asked, &Answer::Allowed(vec!["so".to_owned()]));
        assert_eq!(reported["response"], json!({"uid": "u", "allowed": true, "warnings": ["so"]}));
    }

    #[test]
    fn an_eviction_names_its_pod_and_its_dry_run_itself() {
        let eviction = json!({"uid": "u", "operation": "CREATE", "subResource": "eviction",
            "kind": {"group": "policy", "kind": "Eviction"}, "namespace": "shop", "dryRun": false,
            "object": {"metadata": {"name": "web-0"}, "deleteOptions": {"dryRun": ["All"]}}});
        let asked = request(&eviction);
        assert_eq!((asked.name(), asked.is_dry_run()), ("web-0", true));
    }
}
