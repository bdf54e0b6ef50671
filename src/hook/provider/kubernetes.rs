//! The provider `kubernetes`: compares or sets annotations of the pod.
//!
//! `get` with another value, or none, is a *failed* measurement with the actual value, so that `successfulLimit`
//! can poll for any time; an API server that does not answer is an error. Must not touch anything but the pod in
//! the hook's own namespace: what a hook may change must not depend on the rights of the runner.

use crate::api::hook_template::{Argument, Field, Function, Kubernetes};
use crate::cluster::server::Server;
use crate::hook::measured::Measured;
use crate::hook::place::Place;
use crate::hook::settings::Settings;
use crate::hook::value::{Value, cut};

/// Maximum number of bytes of an annotation's value in a message.
const MAX_VALUE: usize = 128;
/// Prefixes of the keys that agents and kubelets use.
const OURS: [&str; 2] = ["inplace.dev/", "kubernetes.io/config."];

/// The pod of a hook. The uid is unknown if the hook only names the pod.
struct PodTarget<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: Option<&'a str>,
}

pub(super) async fn measure(
    kubernetes: &Kubernetes,
    args: &[Argument],
    place: &Place,
    settings: &Settings,
) -> Result<Measured, String> {
    let Some(server) = &settings.server else {
        return Err(format!("kubernetes: {} has no API server", settings.role));
    };
    let target = target(args, place)?;
    let fields: Vec<_> = kubernetes.fields.iter().map(field).collect::<Result<_, _>>()?;
    match kubernetes.function {
        // On a node: an API server with the admission policy would refuse this write.
        Function::Patch if settings.runtime.is_some() => Err(format!(
            "kubernetes: {} may not set annotations of pods; the controller sets them, in a HookRun without exec",
            settings.role
        )),
        Function::Get => get(server, &target, &fields).await,
        Function::Patch => patch(server, &target, &fields).await,
    }
}

async fn get(server: &Server, target: &PodTarget<'_>, fields: &[(&str, &str)]) -> Result<Measured, String> {
    let PodTarget { namespace, name, uid } = *target;
    let seen = server.annotations(namespace, name, uid).await.map_err(|error| error.to_string())?;
    for (key, wanted) in fields {
        match seen.get(*key) {
            Some(value) if value == wanted => {}
            Some(value) => {
                let why = format!(
                    "metadata.annotations.{key} is {:?}, not {:?}",
                    cut(value, MAX_VALUE),
                    cut(wanted, MAX_VALUE)
                );
                return Ok(Measured::Failed { value: Value::Text(value.clone()), why });
            }
            None => {
                let why = format!("metadata.annotations.{key} is not set");
                return Ok(Measured::Failed { value: Value::None, why });
            }
        }
    }
    Ok(Measured::Value(Value::None))
}

async fn patch(server: &Server, target: &PodTarget<'_>, fields: &[(&str, &str)]) -> Result<Measured, String> {
    if let Some((key, _)) = fields.iter().find(|(key, _)| OURS.iter().any(|ours| key.starts_with(ours))) {
        return Err(format!("a hook may not set metadata.annotations.{key}"));
    }
    let PodTarget { namespace, name, uid } = *target;
    server.annotate(namespace, name, uid, fields).await.map_err(|error| error.to_string())?;
    Ok(Measured::Value(Value::None))
}

/// The hook's own pod; if the hook has none, the pod that its arguments name.
fn target<'a>(args: &'a [Argument], place: &'a Place) -> Result<PodTarget<'a>, String> {
    let arg = |name: &str| args.iter().find(|arg| arg.name == name).and_then(|arg| arg.value.as_deref());
    if let Some(kind) = arg("Kind").filter(|kind| *kind != "Pod") {
        return Err(format!("kubernetes: only the pod can be read, not a {kind} (argument Kind)"));
    }
    if let Some(other) = arg("PodNamespace").filter(|namespace| *namespace != place.namespace) {
        return Err(format!("kubernetes: the hook is in namespace {}, not in {other}", place.namespace));
    }
    let (name, uid) = match (&place.pod, arg("PodName")) {
        (Some(pod), _) => (pod.name.as_str(), Some(pod.uid.as_str())),
        (None, Some(name)) if !name.is_empty() => (name, None),
        (None, _) => return Err("kubernetes: the hook has no pod: set the argument PodName".to_owned()),
    };
    Ok(PodTarget { namespace: &place.namespace, name, uid })
}

/// The key and value of a field; the key is everything after the second dot.
fn field(field: &Field) -> Result<(&str, &str), String> {
    match field.path.strip_prefix("metadata.annotations.") {
        Some(key) if !key.is_empty() => Ok((key, &field.value)),
        _ => Err(format!("{} cannot be used: write metadata.annotations.KEY", field.path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::identity::Origin;
    use crate::hook::place::HookPod;

    fn arg(name: &str, value: &str) -> Argument {
        Argument { name: name.to_owned(), value: Some(value.to_owned()) }
    }

    fn place(pod: Option<&str>) -> Place {
        let pod = pod.map(|name| HookPod { name: name.to_owned(), uid: "u".to_owned(), origin: Origin::Api });
        Place { namespace: "shop".to_owned(), pod, ..Place::default() }
    }

    #[test]
    fn only_a_pod_of_the_hooks_namespace_is_touched() {
        let own = place(Some("web"));
        let args = [arg("PodName", "other"), arg("PodNamespace", "shop"), arg("Kind", "Pod")];
        let found = target(&args, &own).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((found.namespace, found.name, found.uid), ("shop", "web", Some("u")));
        let none = place(None);
        let found = target(&args, &none).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((found.name, found.uid), ("other", None));
        for (args, why) in [
            (vec![arg("PodNamespace", "kube-system"), arg("PodName", "x")], "not in kube-system"),
            (vec![arg("Kind", "Secret"), arg("PodName", "x")], "not a Secret"),
            (vec![], "set the argument PodName"),
            (vec![arg("PodName", "")], "set the argument PodName"),
        ] {
            assert!(target(&args, &none).is_err_and(|error| error.contains(why)), "{why}");
        }
    }

    #[test]
    fn a_key_may_hold_dots_and_slashes() {
        let of = |path: &str| {
            let path = Field { path: path.to_owned(), value: String::new() };
            field(&path).map(|(key, _)| key.to_owned())
        };
        assert_eq!(of("metadata.annotations.example.dev/a.b").as_deref(), Ok("example.dev/a.b"));
        for path in ["metadata.annotations.", "metadata.labels.x", "spec.nodeName", ""] {
            assert!(of(path).is_err(), "{path}");
        }
    }
}
