//! `AdmissionReview` in, `AdmissionReview` out (admission.k8s.io/v1). Pure: which requests are refused is decided elsewhere.

use k8s_openapi::ByteString;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is asked, as far as any webhook here looks at it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// Comes back in the answer.
    uid: String,
    /// Of the object.
    pub(super) kind: Kind,
    /// `eviction`; empty for the object itself.
    #[serde(default)]
    pub(super) sub_resource: String,
    /// `CREATE`, `UPDATE`, ...
    pub(super) operation: String,
    /// Of the object; empty when the API server makes one up.
    #[serde(default)]
    name: String,
    #[serde(default)]
    pub(super) namespace: String,
    /// Who asks.
    #[serde(default)]
    pub(super) user_info: UserInfo,
    /// As it would be.
    #[serde(default)]
    pub(super) object: Value,
    /// As it is.
    #[serde(default)]
    pub(super) old_object: Value,
    #[serde(default)]
    dry_run: Option<bool>,
}

/// What kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) kind: String,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct UserInfo {
    #[serde(default)]
    pub(super) username: String,
}

impl Request {
    /// The name of the object. Of many that are deleted at once each one's own.
    pub(super) fn name(&self) -> &str {
        let own = |object: &'_ Value| object.pointer("/metadata/name").is_some();
        let of = [&self.old_object, &self.object].into_iter().find(|object| own(object));
        match of.and_then(|object| object["metadata"]["name"].as_str()) {
            Some(name) if self.name.is_empty() => name,
            _ => &self.name,
        }
    }

    /// True when nothing may come of it. An eviction says it in the options of its deletion.
    pub(super) fn is_dry_run(&self) -> bool {
        let options = self.object.pointer("/deleteOptions/dryRun").and_then(Value::as_array);
        self.dry_run == Some(true) || options.is_some_and(|all| !all.is_empty())
    }
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

#[derive(Deserialize)]
struct Review {
    request: Request,
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
/// When there is no review in it.
pub(super) fn read(body: &[u8]) -> Result<Request, serde_json::Error> {
    serde_json::from_slice::<Review>(body).map(|review| review.request)
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
    serde_json::from_value(asked.clone()).unwrap()
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
        let asked = read(body.as_bytes()).unwrap();
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
        assert!(read(b"{}").is_err());
    }

    #[test]
    fn a_change_and_a_warning_are_passed_on() {
        let asked =
            request(&json!({"uid": "u", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}}));
        let told = reply(&asked, &Answer::Patched(json!([1])));
        assert_eq!(
            told["response"],
            json!({"uid": "u", "allowed": true, "patchType": "JSONPatch", "patch": "WzFd"})
        );
        let told = reply(&asked, &Answer::Allowed(vec!["so".to_owned()]));
        assert_eq!(told["response"], json!({"uid": "u", "allowed": true, "warnings": ["so"]}));
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
