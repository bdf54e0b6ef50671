//! The difference between two templates, and whether a running pod can take it over.
//!
//! Container images change by a swap, cpu and memory by a resize where the API server has it, metadata by a patch, and with a
//! restart of the containers that have it in their environment. Any other difference needs a new pod and is reported by its
//! path; values are never reported, because they may be secrets.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::api::pod_template::{PodTemplate, is_sidecar};
use crate::workload::meaning::meaning;
use crate::workload::resize::{self, NotResizable};

/// The changes that a running pod has to take over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Containers whose image changes, in the order of the new template.
    pub containers: Vec<String>,
    /// Labels to set, or to remove where the value is `None`.
    pub labels: BTreeMap<String, Option<String>>,
    /// Annotations to set, or to remove where the value is `None`.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Paths of the differences that no running pod can take over; empty when the change can be made in place.
    pub elsewhere: Vec<String>,
    /// Why, for those of these paths that are resources of a container.
    pub reasons: BTreeMap<String, NotResizable>,
    /// Paths of the resources that a resize changes.
    pub resized: Vec<String>,
}

/// Maximum number of paths that are reported.
const MAX_PATHS: usize = 3;

impl Change {
    /// The change from the template `old` to the template `new`. `resizes`: the API server resizes running pods.
    pub fn between(old: &PodTemplate, new: &PodTemplate, resizes: bool) -> Self {
        Self::with_paths(old, new, resizes, MAX_PATHS)
    }

    /// The same with at most so many paths in `elsewhere`.
    pub(super) fn with_paths(old: &PodTemplate, new: &PodTemplate, resizes: bool, most: usize) -> Self {
        let mut change = Self {
            labels: difference(&old.labels(), &new.labels()),
            annotations: difference(&old.annotations(), &new.annotations()),
            ..Self::default()
        };
        for (name, image) in new.images() {
            if old.image(name).is_some_and(|before| before != image) {
                change.containers.push(name.to_owned());
            }
        }
        let spec = |template| meaning(template).get("spec").cloned().unwrap_or_default();
        let (old, new) = (spec(old), spec(new));
        let (before, after) = (without_images(old.clone()), without_images(new.clone()));
        Paths { change: &mut change, old: &old, new: &new, resizes, most }.compare("spec", &before, &after);
        change
    }

    /// Why the change cannot be made in place, if so.
    pub fn refusal(&self) -> Option<String> {
        let with_reason = |path: &String| match self.reasons.get(path) {
            Some(why) => format!("{path} ({why})"),
            None => path.clone(),
        };
        let paths: Vec<_> = self.elsewhere.iter().map(with_reason).collect();
        let paths = (!paths.is_empty()).then(|| paths.join(", "))?;
        Some(format!(
            "{paths} cannot be changed in a running pod: only images of containers, labels, annotations, and cpu and \
             memory where the API server resizes pods, can. Undo that part, use updateStrategy.type RollingUpdate, or set \
             the annotation inplace.dev/in-place-fallback: Recreate"
        ))
    }
}

/// Keys to set and keys to remove to get from `old` to `new`.
fn difference(
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let set = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
    let off = old.keys().filter(|key| !new.contains_key(*key));
    set.map(|(key, value)| (key.clone(), Some(value.clone())))
        .chain(off.map(|key| (key.clone(), None)))
        .collect()
}

/// The spec of a template without the images that can be changed in place.
fn without_images(mut spec: Value) -> Value {
    for (list, all) in [("containers", true), ("initContainers", false)] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter(|one| all || is_sidecar(one)) {
            if let Some(fields) = container.as_object_mut() {
                fields.remove("image");
            }
        }
    }
    spec
}

/// Objects that are compared field by field also when one of the templates does not have them.
const OPENED: [&str; 3] = ["resources", "limits", "requests"];

/// Collects the paths of the differences between two specs.
struct Paths<'c> {
    change: &'c mut Change,
    old: &'c Value,
    new: &'c Value,
    resizes: bool,
    /// Maximum number of paths that no running pod can take over: a path may be long.
    most: usize,
}

impl Paths<'_> {
    /// Compares two values of specs.
    fn compare(&mut self, path: &str, old: &Value, new: &Value) {
        if self.change.elsewhere.len() >= self.most || old == new {
            return;
        }
        // An object that says nothing is left out, so it is compared as an empty one.
        let nothing = Value::Object(Map::new());
        let opened = path.rsplit('.').next().is_some_and(|last| OPENED.contains(&last));
        let (old, new) = match (old, new) {
            (Value::Null, Value::Object(_)) if opened => (&nothing, new),
            (Value::Object(_), Value::Null) if opened => (old, &nothing),
            both => both,
        };
        match (old, new) {
            (Value::Object(before), Value::Object(after)) => {
                let mut keys: Vec<_> = before.keys().chain(after.keys()).collect();
                keys.sort();
                keys.dedup();
                for key in keys {
                    let value = |of: &Map<String, Value>| of.get(key).cloned().unwrap_or_default();
                    self.compare(&format!("{path}.{key}"), &value(before), &value(after));
                }
            }
            (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
                for (at, (old, new)) in before.iter().zip(after).enumerate() {
                    self.compare(&format!("{path}[{at}]"), old, new);
                }
            }
            _ => self.add(path),
        }
    }

    fn add(&mut self, path: &str) {
        match resize::resizable(path, self.old, self.new, self.resizes) {
            Some(Ok(())) => return self.change.resized.push(path.to_owned()),
            Some(Err(why)) => drop(self.change.reasons.insert(path.to_owned(), why)),
            None => {}
        }
        self.change.elsewhere.push(path.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn template(value: Value) -> PodTemplate {
        PodTemplate(value)
    }

    fn between(old: &PodTemplate, new: &PodTemplate) -> Change {
        Change::between(old, new, false)
    }

    fn base() -> Value {
        json!({"metadata": {"labels": {"app": "web"}, "annotations": {"a": "1"}},
               "spec": {"containers": [{"name": "app", "image": "app:1", "env": [{"name": "K", "value": "secret"}]},
                                       {"name": "side", "image": "side:1"}]}})
    }

    #[test]
    fn images_of_several_containers_are_one_change_in_place() {
        let mut new = base();
        new["spec"]["containers"][0]["image"] = json!("app:2");
        new["spec"]["containers"][1]["image"] = json!("side:2");
        let change = between(&template(base()), &template(new));
        assert_eq!(change, Change { containers: vec!["app".into(), "side".into()], ..Change::default() });
        assert_eq!(change.refusal(), None);
    }

    #[test]
    fn metadata_is_set_and_taken_off_without_containers() {
        let mut new = base();
        new["metadata"] = json!({"labels": {"app": "web", "new": "x"}, "creationTimestamp": null});
        let change = between(&template(base()), &template(new));
        assert!(change.containers.is_empty() && change.elsewhere.is_empty());
        assert_eq!(change.labels, [("new".into(), Some("x".into()))].into());
        assert_eq!(change.annotations, [("a".into(), None)].into());
    }

    #[test]
    fn anything_else_is_named_by_its_path_and_never_by_its_value() {
        let mut new = base();
        new["spec"]["containers"][0]["env"][0]["value"] = json!("other");
        new["spec"]["nodeName"] = json!("n");
        let change = between(&template(base()), &template(new));
        assert_eq!(change.elsewhere, ["spec.containers[0].env[0].value", "spec.nodeName"]);
        let refusal = change.refusal().unwrap();
        assert!(
            refusal.contains("RollingUpdate") && !refusal.contains("secret") && !refusal.contains("other")
        );
    }

    #[test]
    fn resources_are_named_one_by_one_with_the_reason() {
        let mut new = base();
        new["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "1", "example.com/gpu": "1"}});
        for (old, new) in [(base(), new.clone()), (new.clone(), base())] {
            let change = between(&template(old), &template(new));
            let limits = "spec.containers[0].resources.limits";
            assert_eq!(change.elsewhere, [format!("{limits}.cpu"), format!("{limits}.example.com/gpu")]);
            let refusal = change.refusal().unwrap();
            let other =
                "example.com/gpu (Kubernetes changes only cpu and memory of a running container) cannot";
            assert!(refusal.contains(other), "{refusal}");
        }
        let mut more = new.clone();
        more["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("2");
        let refusal = between(&template(new.clone()), &template(more)).refusal().unwrap();
        let reason =
            "limits.cpu (the API server has no resize of pods, which Kubernetes 1.33 or newer has) cannot be";
        assert!(refusal.contains(reason), "{refusal}");
        let mut memory = new.clone();
        memory["spec"]["containers"][0]["resources"]["requests"] = json!({"memory": "1Gi"});
        let change = Change::between(&template(new.clone()), &template(memory), true);
        assert_eq!(change.resized, ["spec.containers[0].resources.requests.memory"]);
        assert_eq!(change.refusal(), None, "the API server resizes pods");
        let mut same = new.clone();
        same["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("1000m");
        assert_eq!(between(&template(new), &template(same)), Change::default());
    }

    #[test]
    fn another_container_is_another_pod() {
        let mut new = base();
        new["spec"]["containers"][1]["name"] = json!("other");
        let change = between(&template(base()), &template(new));
        assert_eq!(change.elsewhere, ["spec.containers[1].name"]);
        let mut fewer = base();
        fewer["spec"]["containers"].as_array_mut().unwrap().pop();
        assert_eq!(between(&template(base()), &template(fewer)).elsewhere, ["spec.containers"]);
    }

    #[test]
    fn the_image_of_a_native_sidecar_is_changed_in_place_and_that_of_another_init_container_is_not() {
        let mut old = base();
        old["spec"]["initContainers"] = json!([{"name": "setup", "image": "setup:1"},
            {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}]);
        let mut new = old.clone();
        new["spec"]["initContainers"][1]["image"] = json!("proxy:2");
        new["spec"]["containers"][0]["image"] = json!("app:2");
        let change = between(&template(old.clone()), &template(new.clone()));
        assert_eq!((change.containers, change.elsewhere), (vec!["proxy".into(), "app".into()], Vec::new()));
        new["spec"]["initContainers"][0]["image"] = json!("setup:2");
        let change = between(&template(old.clone()), &template(new.clone()));
        assert_eq!(change.elsewhere, ["spec.initContainers[0].image"]);
        // A container that becomes a sidecar is another kind of container.
        new["spec"]["initContainers"][1]["restartPolicy"] = Value::Null;
        let change = between(&template(old), &template(new));
        assert!(change.elsewhere.contains(&"spec.initContainers[1].restartPolicy".to_owned()), "{change:?}");
    }

    #[test]
    fn nothing_said_is_nothing_changed() {
        let mut new = base();
        new["spec"]["volumes"] = json!([]);
        new["spec"]["nodeSelector"] = Value::Null;
        assert_eq!(between(&template(base()), &template(new)), Change::default());
    }
}
