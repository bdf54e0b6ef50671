//! Writes a request onto a pod: the checks before it, the messages about it, and the patch itself.
//! The patch tests the pod's uid and the previous value: a recreated pod is another pod, and a concurrent change
//! is read before the next attempt.

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;

use crate::api::annotation;
use crate::api::request::{ContainerRequest, Request};
use crate::cli::dry_run::DryRun;
use crate::cli::output::message;
use crate::cli::pod::Failed;
use crate::cli::pod::answer::{Notes, is_touched, progress};
use crate::cli::pod::assemble::replaceable;
use crate::cli::pod::names::PodName;
use crate::cli::pod::server::PodClient;
use crate::cluster::error::Error;
use crate::cluster::patch::{self, ANNOTATIONS, UID, VERSION};
use crate::failure::Class;

/// Number of attempts when the pod's metadata changes between the read and the patch.
const MAX_TRIES: u32 = 8;

/// The containers to restart: the named ones, or the only one that exists.
pub(super) fn restarts(
    name: &PodName,
    pod: &Pod,
    containers: &[String],
) -> Result<Vec<ContainerRequest>, Failed> {
    if !containers.is_empty() {
        return Ok(containers
            .iter()
            .map(|name| ContainerRequest { name: name.clone(), image: None })
            .collect());
    }
    let regular: Vec<_> = replaceable(pod).into_iter().map(|(container, _)| container.name.clone()).collect();
    match regular.as_slice() {
        [only] => Ok(vec![ContainerRequest { name: only.clone(), image: None }]),
        many => {
            Err(Failed::Usage(format!("{name} has several containers: select with -c ({})", many.join(", "))))
        }
    }
}

/// Refuses, before anything is written, what no agent could carry out.
pub(super) fn check(name: &PodName, pod: &Pod, request: &Request) -> Result<(), Failed> {
    let known: Vec<_> = replaceable(pod).into_iter().map(|(container, _)| container.name.as_str()).collect();
    for target in &request.containers {
        if known.contains(&target.name.as_str()) {
            continue;
        }
        let init = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let why = if init.into_iter().any(|container| container.name == target.name) {
            format!("{} of {name} is an init container, which does not run any more", target.name)
        } else {
            format!("{name} has no container {}", target.name)
        };
        return Err(Failed::Refused(format!("{why}; it has {}", known.join(", "))));
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed") {
        return Err(Failed::Refused(format!("{name} has ended ({phase}): it cannot be restarted in place")));
    }
    if pod.spec.as_ref().is_none_or(|spec| spec.node_name.is_none()) {
        return Err(Failed::Refused(format!("{name} is not scheduled to a node yet: it does not run")));
    }
    if pod.metadata.deletion_timestamp.is_some() {
        return Err(Failed::Refused(format!("{name} is being deleted")));
    }
    Ok(())
}

/// The message about a request that has ended on the pod.
pub(super) fn not_run_again(id: &str) -> String {
    format!("request {id} has already ended on this pod and is not run again")
}

/// The message about a request that the pod already has, if there is something to say.
pub(super) fn about_the_present_one(notes: &Notes, id: &str) -> Option<String> {
    if let Some(other) = notes.under_way().filter(|other| other.id != id) {
        let (then, state) = (progress(other), &other.id);
        return Some(if is_touched(other) {
            format!("{state} is in progress ({then}): the new request waits until it has ended")
        } else {
            format!(
                "{state} is in progress ({then}): the new request replaces it if it has not touched anything by \
                 then, and otherwise waits until it has ended"
            )
        });
    }
    let other = notes.requested.as_deref().unwrap_or("a request that cannot be read");
    (notes.unanswered() && other != id).then(|| format!("{other}, which has no status yet, is replaced"))
}

/// Writes `request` onto the pod that `meta` was read from.
pub(super) async fn write(
    server: &PodClient,
    name: &PodName,
    meta: &ObjectMeta,
    request: &Request,
    dry_run: DryRun,
) -> Result<(), Failed> {
    let text = serde_json::to_string(request).map_err(|error| Failed::Other(error.to_string()))?;
    let mut meta = meta.clone();
    let mut said = None;
    for _ in 0..MAX_TRIES {
        let known = about_the_present_one(&Notes::of(&meta), &request.id);
        if known != said {
            if let Some(known) = &known {
                message(&format!("{name}: {known}"));
            }
            said = known;
        }
        match server.patch(name, patch(&meta, Some(&text)), dry_run).await {
            Ok(true) => return Ok(()),
            Ok(false) => meta = again(server, name, &meta).await?,
            // An answer that is lost says nothing about the write.
            Err(Failed::Cluster(error)) if error.class() == Class::Unavailable && !dry_run.is_check() => {
                return match again(server, name, &meta).await {
                    Ok(now) if has(&now, &text, request) => Ok(()),
                    _ => Err(unknown(server, name, error, request)),
                };
            }
            Err(failed) => return Err(failed),
        }
    }
    Err(Failed::Other(format!("{name}: other clients keep changing the pod; nothing was written")))
}

/// True if the pod has the request, or an agent's status of it.
fn has(meta: &ObjectMeta, text: &str, request: &Request) -> bool {
    let written = meta.annotations.as_ref().and_then(|notes| notes.get(annotation::REQUEST));
    let answered = Notes::of(meta).status.is_some_and(|status| status.id == request.id);
    answered || written.is_some_and(|written| written == text)
}

fn unknown(server: &PodClient, name: &PodName, error: Error, request: &Request) -> Failed {
    let (id, flags) = (&request.id, &server.flags);
    let then = format!(
        "the request may have been written all the same: `inplace status {name}{flags}` shows it. To repeat it, add --id {id}: \
         a request is carried out once"
    );
    Failed::Unknown { error: Box::new(error), then }
}

/// Reads the pod's metadata again; an error if it is no longer the same pod.
pub(super) async fn again(
    server: &PodClient,
    name: &PodName,
    before: &ObjectMeta,
) -> Result<ObjectMeta, Failed> {
    let now = server.meta(name).await?;
    if now.uid == before.uid {
        Ok(now)
    } else {
        Err(Failed::Refused(format!("{name} was recreated in the meantime: check the new pod first")))
    }
}

/// The patch that replaces the request in `meta` with `text`, or removes it.
pub(super) fn patch(meta: &ObjectMeta, text: Option<&str>) -> Vec<PatchOperation> {
    let path = patch::annotation(annotation::REQUEST);
    let mut operations = vec![patch::test(UID, meta.uid.clone())];
    let present = meta.annotations.as_ref().and_then(|notes| notes.get(annotation::REQUEST));
    operations.push(match present {
        Some(present) => patch::test(path, present.clone()),
        // A JSON patch cannot test that a value is absent, so it tests the resource version of the object.
        None => patch::test(VERSION, meta.resource_version.clone()),
    });
    if meta.annotations.is_none() {
        operations.push(patch::add(ANNOTATIONS, json!({})));
    }
    operations.push(match text {
        Some(text) => patch::add(path, text),
        None => patch::remove(path),
    });
    operations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status::{Phase, Step};
    use crate::cli::pod::answer::tests::{meta, status};
    use crate::cli::pod::assemble::tests::pod;

    fn name() -> PodName {
        PodName("web".into())
    }

    fn request(text: &str) -> Request {
        Request::parse(Some(text)).unwrap().unwrap()
    }

    #[test]
    fn a_patch_tests_the_pod_and_what_was_read() {
        let steps = |meta: &ObjectMeta, text| serde_json::to_string(&patch(meta, text)).unwrap();
        let with = |meta: ObjectMeta| ObjectMeta {
            uid: Some("u-1".into()),
            resource_version: Some("7".into()),
            ..meta
        };
        assert_eq!(
            steps(&with(meta(Some("restart app"), None)), Some("x")),
            r#"[{"op":"test","path":"/metadata/uid","value":"u-1"},{"op":"test","path":"/metadata/annotations/inplace.dev~1request","value":"restart app"},{"op":"add","path":"/metadata/annotations/inplace.dev~1request","value":"x"}]"#
        );
        assert_eq!(
            steps(&with(meta(None, None)), Some("x")),
            r#"[{"op":"test","path":"/metadata/uid","value":"u-1"},{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/metadata/annotations/inplace.dev~1request","value":"x"}]"#
        );
        assert_eq!(
            steps(&with(ObjectMeta::default()), Some("x")),
            r#"[{"op":"test","path":"/metadata/uid","value":"u-1"},{"op":"test","path":"/metadata/resourceVersion","value":"7"},{"op":"add","path":"/metadata/annotations","value":{}},{"op":"add","path":"/metadata/annotations/inplace.dev~1request","value":"x"}]"#
        );
        assert!(
            steps(&with(meta(Some("restart app"), None)), None)
                .ends_with(r#"{"op":"remove","path":"/metadata/annotations/inplace.dev~1request"}]"#)
        );
    }

    #[test]
    fn unknown_containers_are_refused_with_the_names_there_are() {
        for (text, says) in [
            ("restart db", "pod/web has no container db; it has app, side, proxy"),
            ("restart app,db", "no container db"),
            ("restart setup", "is an init container, which does not run any more; it has app, side, proxy"),
        ] {
            let failed = check(&name(), &pod(), &request(text)).unwrap_err();
            assert!(failed.to_string().contains(says), "{text}: {failed}");
            assert_eq!(failed.exit(), crate::cli::exit::Exit::Refused);
        }
        check(&name(), &pod(), &request("restart app,proxy")).unwrap();
    }

    #[test]
    fn what_no_agent_could_carry_out_is_not_written() {
        type Change = fn(&mut Pod);
        let cases: [(Change, &str); 3] = [
            (|pod| pod.status.as_mut().unwrap().phase = Some("Succeeded".into()), "has ended (Succeeded)"),
            (|pod| pod.spec.as_mut().unwrap().node_name = None, "not scheduled to a node yet"),
            (
                |pod| pod.metadata.deletion_timestamp = pod.metadata.creation_timestamp.clone(),
                "is being deleted",
            ),
        ];
        for (change, says) in cases {
            let mut pod = pod();
            change(&mut pod);
            let failed = check(&name(), &pod, &request("restart app")).unwrap_err().to_string();
            assert!(failed.contains(says), "{failed}");
        }
    }

    #[test]
    fn the_container_may_be_left_out_where_there_is_one() {
        let failed = restarts(&name(), &pod(), &[]).unwrap_err();
        assert!(failed.to_string().contains("select with -c (app, side, proxy)"), "{failed}");
        let mut one = pod();
        let spec = one.spec.as_mut().unwrap();
        spec.containers.truncate(1);
        spec.init_containers = None;
        assert_eq!(restarts(&name(), &one, &[]).unwrap()[0].name, "app");
        assert_eq!(restarts(&name(), &pod(), &["side".into(), "app".into()]).unwrap()[1].name, "app");
    }

    #[test]
    fn a_request_that_is_there_already_is_reported() {
        let waiting = status("old", Phase::Running, Some(Step::Drain));
        let touched = status("old", Phase::Running, Some(Step::Swap));
        let over = status("old", Phase::Succeeded, None);
        let written = r#"{"id":"old","containers":[{"name":"app"}]}"#;
        for (request, status, says) in [
            (Some(written), Some(&waiting), Some("replaces it if it has not touched anything")),
            (
                Some(written),
                Some(&touched),
                Some("old is in progress (Running, Swap): the new request waits until it has ended"),
            ),
            (Some(written), Some(&over), None),
            (Some(written), None, Some("old, which has no status yet, is replaced")),
            (Some("reboot app"), Some(&over), Some("a request that cannot be read")),
            (None, None, None),
        ] {
            let said = about_the_present_one(&Notes::of(&meta(request, status)), "new");
            assert_eq!(said.is_some(), says.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(says.unwrap_or_default()), "{says:?}");
        }
        assert_eq!(about_the_present_one(&Notes::of(&meta(Some(written), Some(&touched))), "old"), None);
    }
}
