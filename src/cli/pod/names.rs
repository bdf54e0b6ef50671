//! Parses a pod's name on the command line: `web`, `pod/web`, `pods/web` or `po/web`, as kubectl does.
//! The namespace is never part of it; it comes from `-n` or from the kubeconfig's context.

use std::fmt;
use std::str::FromStr;

use crate::api::image::ImageRef;
use crate::api::request::ContainerRequest;
use crate::api::workload_kind::Kind;
use crate::cli::in_place_rollout::names::{WorkloadName, is_name};

/// The name of a pod. `Display` is `pod/web`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodName(pub(super) String);

impl FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = match text.split_once('/') {
            None => text,
            Some(("pod" | "pods" | "po", name)) => name,
            Some((kind, _)) => {
                return Err(format!("`{kind}` is not valid: write pod/NAME, and the namespace after -n"));
            }
        };
        if is_name(name) { Ok(Self(name.to_owned())) } else { Err(format!("`{name}` is not a pod's name")) }
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pod/{}", self.0)
    }
}

/// The object to restart or swap: a pod, or the pods of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// `web` or `pod/web`.
    Pod(PodName),
    /// `deploy/web`.
    Workload(WorkloadName),
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((kind, name)) = text.split_once('/') else { return text.parse().map(Self::Pod) };
        match Kind::read(kind) {
            Some(kind) if is_name(name) => Ok(Self::Workload(WorkloadName { kind, name: name.to_owned() })),
            Some(_) => Err(format!("`{name}` is not a workload's name")),
            None => text.parse().map(Self::Pod).map_err(|why| {
                format!("{why}; the workload kinds are deploy, sts, ds, rs, job, gdeploy, gsts, clone, asts, ads and ro")
            }),
        }
    }
}

/// A positional argument of commands that take pods and images in any order. The two are distinct because a pod's
/// name never contains `=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// `pod/web` or `deploy/web`.
    Subject(Subject),
    /// `app=repo/app:v2`.
    Image(ContainerRequest),
}

impl FromStr for Word {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((name, image)) = text.split_once('=') else { return text.parse().map(Self::Subject) };
        ImageRef::parse(image).map_err(|error| error.to_string())?;
        Ok(Self::Image(ContainerRequest { name: name.to_owned(), image: Some(image.to_owned()) }))
    }
}

/// The names on a command line, each kind in its order.
#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) pods: Vec<PodName>,
    pub(super) workloads: Vec<WorkloadName>,
    pub(super) images: Vec<ContainerRequest>,
}

/// Sorts the words by kind. Repeated names are dropped.
pub(super) fn sorted(words: impl IntoIterator<Item = Word>) -> Named {
    let mut named = Named::default();
    for word in words {
        match word {
            Word::Subject(Subject::Pod(pod)) if named.pods.contains(&pod) => {}
            Word::Subject(Subject::Pod(pod)) => named.pods.push(pod),
            Word::Subject(Subject::Workload(workload)) if named.workloads.contains(&workload) => {}
            Word::Subject(Subject::Workload(workload)) => named.workloads.push(workload),
            Word::Image(image) => named.images.push(image),
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_written_as_kubectl_takes_it() {
        for text in ["web.0", "pod/web.0", "pods/web.0", "po/web.0"] {
            assert_eq!(text.parse::<PodName>().unwrap().to_string(), "pod/web.0", "{text}");
        }
        for (text, says) in [
            ("deploy/web", "`deploy` is not valid"),
            ("default/web", "the namespace after -n"),
            ("pod/", "not a pod's name"),
            ("Web", "not a pod's name"),
            ("pod/a/b", "not a pod's name"),
            ("-web", "not a pod's name"),
        ] {
            assert!(text.parse::<PodName>().unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn pods_and_images_stand_side_by_side() {
        let words = ["pod/web", "app=host:5000/app:v2", "po/web-2", "web"].map(|word| word.parse().unwrap());
        let named = sorted(words);
        assert_eq!(named.pods, [PodName("web".into()), PodName("web-2".into())]);
        assert_eq!(
            named.images,
            [ContainerRequest { name: "app".into(), image: Some("host:5000/app:v2".into()) }]
        );
        assert!("app=Not An Image".parse::<Word>().is_err());
    }

    #[test]
    fn a_workload_is_written_as_kubectl_takes_it() {
        for (text, shown) in [
            ("deploy/web", "deployment.apps/web"),
            ("Deployments/web", "deployment.apps/web"),
            ("deployment.apps/web", "deployment.apps/web"),
            ("deployments.v1.apps/web", "deployment.apps/web"),
            ("sts/db", "statefulset.apps/db"),
            ("ds/log", "daemonset.apps/log"),
            ("rs/web-7f9c", "replicaset.apps/web-7f9c"),
            ("jobs.batch/load", "job.batch/load"),
            ("gamedeployment/web", "gamedeployment.tkex.tencent.com/web"),
            ("gsts/db", "gamestatefulset.tkex.tencent.com/db"),
        ] {
            let Ok(Subject::Workload(workload)) = text.parse() else { panic!("{text}") };
            assert_eq!(workload.to_string(), shown, "{text}");
        }
        for (text, says) in [
            ("deploy/", "not a workload's name"),
            ("deploy/a/b", "not a workload's name"),
            ("deployment.batch/web", "is not valid"),
            ("svc/web", "the workload kinds are deploy, sts, ds"),
        ] {
            let why = text.parse::<Subject>().unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
