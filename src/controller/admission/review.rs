//! `AdmissionReview` in, `AdmissionReview` out (admission.k8s.io/v1). Pure: which requests are refused is decided elsewhere.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What is asked, as far as any webhook here looks at it. A dry run is judged like any other: judging changes nothing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    /// Comes back in the answer.
    uid: String,
    /// Of the object.
    pub(super) kind: Kind,
    /// `CREATE`, `UPDATE`, ...
    pub(super) operation: String,
    /// Of the object; empty when the API server makes one up.
    #[serde(default)]
    name: String,
    /// As it would be.
    #[serde(default)]
    pub(super) object: Value,
    /// As it is.
    #[serde(default)]
    pub(super) old_object: Value,
}

/// What kind of object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Kind {
    pub(super) group: String,
    pub(super) kind: String,
}

/// One thing that is wrong, as `spec.field: what and what to do`.
pub(super) type Problem = String;

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

/// The answer to the review in `body`: allowed when `judge` finds no problem.
///
/// # Errors
/// When there is no review in it.
pub(super) fn answer(
    body: &[u8],
    judge: impl FnOnce(&Request) -> Vec<Problem>,
) -> Result<Value, serde_json::Error> {
    let Review { request } = serde_json::from_slice(body)?;
    let problems = judge(&request);
    let mut response = json!({"uid": request.uid, "allowed": problems.is_empty()});
    if !problems.is_empty() {
        response["status"] = refusal(&request, &problems);
    }
    Ok(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

/// As the API server itself says that an object is not valid.
fn refusal(request: &Request, problems: &[Problem]) -> Value {
    let causes = problems.iter().map(|problem| {
        let (field, message) = problem.split_once(": ").unwrap_or(("", problem));
        Cause { reason: "FieldValueInvalid", field, message }
    });
    json!({
        "status": "Failure", "code": 422, "reason": "Invalid", "message": problems.join("; "),
        "details": {
            "group": request.kind.group, "kind": request.kind.kind, "name": request.name,
            "causes": causes.collect::<Vec<_>>(),
        },
    })
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
        let allowed = answer(body.as_bytes(), |_| Vec::new()).unwrap();
        assert_eq!(allowed["response"], json!({"uid": "u-1", "allowed": true}));
        let two = vec!["spec.a: too much: take less".to_owned(), "nothing fits".to_owned()];
        let denied = answer(body.as_bytes(), |_| two).unwrap();
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
        assert!(answer(b"{}", |_| Vec::new()).is_err());
    }
}
