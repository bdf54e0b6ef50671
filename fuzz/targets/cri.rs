//! Reads any answer of a container runtime, and plans a clone from it: the answer is refused, or the clone has the names that it
//! must have, and a holder has nothing of its container. No message has a value of the answer.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use inplace::api::annotation;
use inplace::api::request::Request;
use inplace::cri::clone::{self, NotCloneable, Source};
use inplace::cri::convert;
use inplace::cri::identity::{Asked, pod_of};
use inplace::cri::log_path;
use inplace::cri::proto::v1;
use inplace::operation::effect::ImageChoice;
use inplace::operation::plan::Plan;
use inplace::operation::preflight::{self, Hashes, Hooks, Runtime, Situation};
use inplace::operation::snapshot::{Origin, Snapshot};
use jiff::Timestamp;
use prost::Message;

use super::decisions::go_on;

/// The seeds have this text where only values are.
const SECRET: &str = "hunter2";
/// More decisions in a row than the first steps of an operation.
const MAX_DECISIONS: usize = 32;

pub(super) fn run(data: &[u8]) {
    match data.split_first() {
        // The verbose information of a container as JSON, and after a zero byte its status.
        Some((b'c', rest)) => {
            let mut parts = rest.splitn(2, |byte| *byte == 0);
            let info = parts.next().map(String::from_utf8_lossy).unwrap_or_default();
            let status = parts.next().and_then(|status| v1::ContainerStatus::decode(status).ok());
            let info = HashMap::from([("info".to_owned(), info.into_owned())]);
            cloned(&status.unwrap_or_default(), &info);
        }
        // The verbose information of a sandbox as JSON.
        Some((b's', rest)) => {
            let info = HashMap::from([("info".to_owned(), String::from_utf8_lossy(rest).into_owned())]);
            if let Err(error) = clone::sandbox_config(&info) {
                has_no_value(&error);
            }
        }
        // The list of sandboxes, that of containers, and the status of each container, every message after its length.
        Some((b'l', rest)) => listed(rest),
        _ => {}
    }
}

fn has_no_value(error: &NotCloneable) {
    if let NotCloneable::Unreadable(text) = error {
        assert!(!text.contains(SECRET), "{text}");
    }
}

/// Reads the configuration of a container, and makes all that is made of it.
fn cloned(status: &v1::ContainerStatus, info: &HashMap<String, String>) -> Option<Source> {
    let source = match Source::read(status, info) {
        Ok(source) => source,
        Err(error) => {
            has_no_value(&error);
            return None;
        }
    };
    assert!(!format!("{source:?}").contains(&format!("{:?}", SECRET.as_bytes())), "it prints a value");
    let attempt = status.metadata.as_ref().map_or(1, |metadata| metadata.attempt).saturating_add(1);
    let choice = ImageChoice { reference: "app:2".to_owned(), id: "sha256:2".to_owned(), spec_hash: None };
    for image in [None, Some(&choice)] {
        let replacement = source.replacement(attempt, image, "op");
        let metadata = replacement.metadata.clone().expect("a replacement has a name");
        assert_eq!((metadata.name.as_str(), metadata.attempt), (source.name(), attempt));
        let standby = source.standby(attempt, image, "op");
        let name = standby.metadata.clone().expect("a standby has a name").name;
        assert_ne!(name, source.name(), "the standby has the name of its container");
        let fence = source.fence(attempt, image, "op");
        assert_eq!(fence.labels[annotation::CONTAINER_NAME], annotation::FENCE_NAME);
        assert_eq!((&fence.envs, &fence.mounts), (&replacement.envs, &replacement.mounts));
        for made in [replacement, standby, fence] {
            let sandbox = v1::PodSandboxConfig {
                annotations: HashMap::from([(annotation::CONFIG_SOURCE.to_owned(), "api".to_owned())]),
                log_directory: "/var/log/pods/shop_web_1".to_owned(),
                ..Default::default()
            };
            if log_path::check(&made, &sandbox).is_ok() {
                assert!(
                    !made.log_path.is_empty() && !made.log_path.contains(['*', '?', '[']),
                    "{}",
                    made.log_path
                );
            }
            let again = v1::ContainerConfig::decode(made.encode_to_vec().as_slice());
            assert!(again.is_ok_and(|again| again == made), "it cannot be sent");
        }
    }
    let holder = source.holder(attempt, "sha256:3", Duration::from_secs(60), "op");
    let security = holder.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    assert!(security.is_some_and(|security| !security.privileged && security.readonly_rootfs));
    let own = (holder.envs.len(), holder.mounts.len(), holder.devices.len(), holder.cdi_devices.len());
    assert_eq!(own, (0, 0, 0, 0), "a holder has nothing of its container");
    if let Some(log) = source.termination_log() {
        let fresh = clone::fresh_termination_log(&log.old, attempt);
        assert!(fresh != log.old && fresh.parent() == log.old.parent(), "{}", fresh.display());
    }
    Some(source)
}

fn listed(mut rest: &[u8]) {
    let Ok(sandboxes) = v1::ListPodSandboxResponse::decode_length_delimited(&mut rest) else { return };
    let Ok(containers) = v1::ListContainersResponse::decode_length_delimited(&mut rest) else { return };
    let mut answers = Vec::new();
    while let Ok(answer) = v1::ContainerStatusResponse::decode_length_delimited(&mut rest) {
        answers.push(answer);
        if rest.is_empty() {
            break;
        }
    }
    let statuses: Vec<_> = answers.iter().filter_map(|answer| answer.status.clone()).collect();
    for container in containers.containers.clone() {
        convert::image_id(container);
    }
    let Some(pod) = sandboxes.items.iter().find_map(pod_of) else { return };
    for origin in [Origin::Api, Origin::Mirror, Origin::Unknown] {
        let asked = Asked { pod: pod.clone(), origin };
        let snapshot =
            convert::observed(&asked, sandboxes.items.clone(), containers.containers.clone(), &statuses);
        assert!(snapshot.sandbox.as_ref().is_none_or(|sandbox| sandbox.pod == pod), "of another pod");
        planned(&snapshot, &answers);
    }
}

/// Plans a restart of each container, and decides about its first steps.
fn planned(snapshot: &Snapshot, answers: &[v1::ContainerStatusResponse]) {
    let now = Timestamp::from_second(1_800_000_000).expect("a time");
    let mut sources = BTreeMap::new();
    for answer in answers {
        let Some(status) = &answer.status else { continue };
        let Some(seen) = snapshot.by_id(&status.id) else { continue };
        let source = cloned(status, &answer.info);
        let facts = preflight::Source {
            not_cloneable: source.is_none().then(|| "it has another form".to_owned()),
            image_present: true,
            runs_declared: true,
            has_assigned_cpus: source.as_ref().is_some_and(Source::has_assigned_cpus),
            uses_devices: source.as_ref().is_some_and(Source::uses_devices),
            uses_host_network: source.as_ref().is_some_and(Source::uses_host_network),
            ..preflight::Source::default()
        };
        sources.insert(seen.name.clone(), facts);
    }
    for name in snapshot.names() {
        let request = serde_json::json!({"id": "one", "containers": [{"name": name}]}).to_string();
        let Ok(Some(request)) = Request::parse(Some(&request)) else { continue };
        let situation = Situation {
            snapshot: snapshot.clone(),
            runtime: Runtime { name: "containerd".to_owned(), version: "1.6.20".to_owned() },
            sources: sources.clone(),
            hashes: Hashes::new(),
            hooks: Hooks::default(),
            memory: None,
            group: None,
            now,
        };
        let Ok(admitted) = preflight::admit(request, &situation) else { continue };
        go_on(Plan::of(admitted).begin(now, None), snapshot, now, MAX_DECISIONS);
    }
}
