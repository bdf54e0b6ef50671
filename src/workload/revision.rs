//! Revisions: every template that pods were created from, stored as `ControllerRevision`s.
//!
//! Decides which revision the template is, which one a partition holds pods back at, which one is written and which
//! are deleted.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::api::pod_template::PodTemplate;
use crate::podtask::pod::Pod;
use crate::podtask::resources;
use crate::workload::meaning::meaning;
use crate::workload::name;

/// Maximum length of the workload's part in the name of a revision: the name is a label value of pods, too.
const STEM: usize = name::LABEL - 11;

/// How many name collisions an adopted revision may have had.
const MAX_COLLISIONS: i32 = 8;

/// A revision with its whole template.
#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    /// Name of the revision.
    pub name: String,
    /// Position in the history; the newest has the highest.
    pub number: i64,
    /// The template.
    pub template: PodTemplate,
}

/// What is cached of a revision whose content is not needed. It is bounded, because any client that may create
/// `ControllerRevisions` controls their size and number.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Name of the revision.
    pub name: String,
    /// Position in the history.
    pub number: i64,
    /// Equal for templates that are [`equal`].
    pub digest: Digest,
    /// Names, images, cpu and memory of the template's containers and nothing else; empty if there are too many.
    pub images: PodTemplate,
}

/// SHA-256 of a template.
pub type Digest = [u8; 32];

/// Maximum number of containers, of bytes in their names and images, and of bytes in one of their resources, in a [`Record`].
const MAX_CONTAINERS: usize = 32;
const MAX_IMAGE_BYTES: usize = 4 << 10;
const MAX_QUANTITY_BYTES: usize = 32;

impl Record {
    /// The record of a revision.
    pub fn of(name: &str, number: i64, template: &PodTemplate) -> Self {
        let images: Vec<_> = template.images().take(MAX_CONTAINERS + 1).collect();
        let bytes: usize = images.iter().map(|(name, image)| name.len() + image.len()).sum();
        let few = images.len() <= MAX_CONTAINERS && bytes <= MAX_IMAGE_BYTES;
        let record = |(_, container): (String, &Value)| {
            let text = |field: &str| container.get(field).and_then(Value::as_str);
            let mut record = json!({"name": text("name")?, "image": text("image").unwrap_or_default()});
            for ((kind, resource), value) in
                container.get("resources").into_iter().flat_map(resources::fields)
            {
                if value.as_str().is_none_or(|text| text.len() <= MAX_QUANTITY_BYTES) {
                    record["resources"][kind][resource] = value.clone();
                }
            }
            Some(record)
        };
        let containers: Vec<_> = template.lasting().filter(|_| few).filter_map(record).collect();
        Self {
            name: name.to_owned(),
            number,
            digest: digest(template),
            images: PodTemplate(json!({"spec": {"containers": containers}})),
        }
    }
}

/// The digest of what a template means.
pub fn digest(template: &PodTemplate) -> Digest {
    let digest = ring::digest::digest(&ring::digest::SHA256, canonical(&meaning(template)).as_bytes());
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest.as_ref());
    bytes
}

/// The result of looking up a template among the revisions.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The revision of the template.
    pub revision: Revision,
    /// The write that makes it the newest revision, if one is needed.
    pub write: Option<Write>,
    /// How often its name was taken.
    pub collisions: i32,
}

/// A write of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Create the revision.
    Create,
    /// Update its number: the template is an old one again.
    Renumber,
}

/// The data of a `ControllerRevision`.
pub fn data(template: &PodTemplate) -> Value {
    let mut template = template.0.clone();
    if let Some(fields) = template.as_object_mut() {
        fields.insert("$patch".to_owned(), json!("replace"));
    }
    json!({"spec": {"template": template}})
}

/// The template in the data of a `ControllerRevision`.
pub fn template(data: &Value) -> Option<PodTemplate> {
    let mut template = data.pointer("/spec/template")?.clone();
    template.as_object_mut()?.remove("$patch");
    Some(PodTemplate(template))
}

/// True when two templates mean the same.
pub fn equal(one: &PodTemplate, other: &PodTemplate) -> bool {
    meaning(one) == meaning(other)
}

/// True when `name` has the form that revisions of `workload` get.
pub fn is_named_for(workload: &str, name: &str) -> bool {
    let stem = name::bounded(workload, STEM);
    let hash = name.strip_prefix(&stem).and_then(|rest| rest.strip_prefix('-'));
    hash.is_some_and(|hash| !hash.is_empty() && !hash.contains('-'))
}

/// True when `name` ends as that of a revision of `template` does. A revision with other content under such a name
/// was created by another client.
pub fn is_named_after(name: &str, template: &PodTemplate) -> bool {
    let text = canonical(&template.0);
    let hash = name.rsplit_once('-').map(|(_, hash)| hash);
    (0..=MAX_COLLISIONS).any(|collisions| hash == Some(hash_of(&text, collisions).as_str()))
}

/// Looks up the revision of `template` for `workload`, whose history is `history`.
pub fn find(workload: &str, template: &PodTemplate, history: &[Record], collisions: i32) -> Found {
    let newest = history.iter().map(|revision| revision.number).max().unwrap_or(0);
    // The number is under the control of the client that wrote the revision: there may be none above the newest.
    let next = newest.saturating_add(1);
    let digest = digest(template);
    let mut same: Vec<_> = history.iter().filter(|revision| revision.digest == digest).collect();
    same.sort_by_key(|revision| revision.number);
    if let Some(found) = same.last() {
        let write = (found.number < newest).then_some(Write::Renumber);
        let number = if write.is_some() { next } else { found.number };
        let revision = Revision { name: found.name.clone(), number, template: template.clone() };
        return Found { revision, write, collisions };
    }
    let text = canonical(&template.0);
    let stem = name::bounded(workload, STEM);
    let mut collisions = collisions.max(0);
    let mut named = || {
        let name = format!("{stem}-{}", hash_of(&text, collisions));
        let taken = history.iter().any(|revision| revision.name == name);
        collisions += i32::from(taken);
        (!taken).then_some(name)
    };
    // Each round tries another name; at most as many as there are revisions can be taken.
    let name = std::iter::repeat_with(&mut named).take(history.len() + 1).flatten().next();
    let name = name.unwrap_or_else(|| format!("{stem}-{}", hash_of(&text, 0)));
    let revision = Revision { name, number: next, template: template.clone() };
    Found { revision, write: Some(Write::Create), collisions }
}

/// The revision that a partition holds pods back at: the previous one while a pod has it, otherwise the lowest that a pod
/// has, otherwise the newest one if that is the revision of all pods, otherwise the previous one. After an undo the
/// previous one is also the newest, and no pod is created from what was undone. `carried`: the revisions of the active
/// pods. `may_lack_held`: the last pod that is held back may be lost, because fewer than all replicas are at the newest
/// revision.
pub fn current<'a>(
    revisions: &'a [Revision],
    carried: &BTreeSet<&str>,
    may_lack_held: bool,
    before: &str,
    update: &'a Revision,
) -> &'a Revision {
    if before == update.name && carried.contains(before) {
        return update;
    }
    let others = || revisions.iter().filter(|revision| revision.name != update.name);
    let carried_ones = others().filter(|revision| carried.contains(revision.name.as_str()));
    if let Some(found) = carried_ones.min_by_key(|revision| (revision.name != before, revision.number)) {
        return found;
    }
    if carried.contains(update.name.as_str()) && !may_lack_held {
        return update;
    }
    others().find(|revision| revision.name == before).unwrap_or(update)
}

/// Names of the revisions whose templates are needed: those of the pods, the targets of their tasks, those whose labels
/// containers may still have in their environment, and the `others`: the current and the stable one.
pub fn needed<'a>(pods: impl Iterator<Item = &'a Pod>, others: [&'a str; 2]) -> BTreeSet<&'a str> {
    let of_pod = |pod: &'a Pod| {
        let of_task = pod.task.iter().flat_map(|task| task.environments.iter().chain([&task.target]));
        [&pod.label].into_iter().chain(of_task).map(String::as_str)
    };
    pods.flat_map(of_pod).chain(others).filter(|name| !name.is_empty()).collect()
}

/// Old revisions to delete: those beyond `limit` that are not needed, oldest first.
pub fn surplus<'a>(history: &'a [Record], needed: &BTreeSet<&str>, limit: usize) -> Vec<&'a str> {
    let mut idle: Vec<_> =
        history.iter().filter(|revision| !needed.contains(revision.name.as_str())).collect();
    idle.sort_by_key(|revision| revision.number);
    let many = idle.len().saturating_sub(limit);
    idle.into_iter().take(many).map(|revision| revision.name.as_str()).collect()
}

/// The hash in the name of a revision with this content after this many collisions.
fn hash_of(canonical: &str, collisions: i32) -> String {
    let suffix = if collisions == 0 { String::new() } else { collisions.to_string() };
    name::safe_hash(&format!("{canonical}{suffix}"))
}

/// A value as text, with sorted keys and without nulls.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().filter(|(_, value)| !value.is_null()).collect();
            fields.sort_by_key(|(key, _)| *key);
            let fields = fields.iter().map(|(key, value)| format!("{}:{}", json!(key), canonical(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => {
            format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(image: &str) -> PodTemplate {
        PodTemplate(json!({"spec": {"containers": [{"name": "app", "image": image}]}}))
    }

    fn revisions(names: &[(&str, i64, &str)]) -> Vec<Revision> {
        let revision = |(name, number, image): &(&str, i64, &str)| Revision {
            name: (*name).to_owned(),
            number: *number,
            template: of(image),
        };
        names.iter().map(revision).collect()
    }

    fn history(revisions: &[Revision]) -> Vec<Record> {
        revisions
            .iter()
            .map(|revision| Record::of(&revision.name, revision.number, &revision.template))
            .collect()
    }

    #[test]
    fn the_data_is_what_kubernetes_keeps_and_comes_back() {
        let data = data(&of("a:1"));
        assert_eq!(data["spec"]["template"]["$patch"], "replace");
        assert_eq!(template(&data).unwrap(), of("a:1"));
        assert_eq!(template(&json!({})), None);
    }

    #[test]
    fn a_new_template_is_a_new_revision_named_as_the_seeds_print_it() {
        let found = find("test-gamedeployment", &of("a:1"), &[], 0);
        assert_eq!((found.revision.number, found.write), (1, Some(Write::Create)));
        let hash = found.revision.name.strip_prefix("test-gamedeployment-").unwrap();
        assert!((1..=10).contains(&hash.len()), "{hash}");
        assert_eq!(find("test-gamedeployment", &of("a:1"), &[], 0), found, "the same again");
    }

    #[test]
    fn an_old_template_is_the_old_revision_with_a_new_number() {
        let records = history(&revisions(&[("web-a", 1, "a:1"), ("web-b", 2, "a:2")]));
        let found = find("web", &of("a:1"), &records, 0);
        assert_eq!((found.revision.name.as_str(), found.revision.number), ("web-a", 3));
        assert_eq!(found.write, Some(Write::Renumber));
        assert_eq!(find("web", &of("a:2"), &records, 0).write, None);
    }

    #[test]
    fn null_says_nothing_and_order_of_keys_does_not_count() {
        let one =
            PodTemplate(json!({"metadata": {"creationTimestamp": null, "labels": {"a": "1"}}, "spec": {}}));
        let other = PodTemplate(json!({"spec": {}, "metadata": {"labels": {"a": "1"}}}));
        assert!(equal(&one, &other));
        assert!(!equal(&one, &of("a:1")));
    }

    #[test]
    fn a_name_that_is_taken_is_not_used_for_another_template() {
        let first = find("web", &of("a:1"), &[], 0).revision.name;
        let records = history(&revisions(&[(&first, 1, "other:1")]));
        let found = find("web", &of("a:1"), &records, 0);
        assert_ne!(found.revision.name, first);
        assert_eq!((found.collisions, found.revision.number), (1, 2));
    }

    #[test]
    fn a_long_workload_name_still_gives_a_label() {
        let found = find(&"w".repeat(200), &of("a:1"), &[], 0);
        assert!(found.revision.name.len() <= 63, "{}", found.revision.name);
    }

    #[test]
    fn the_current_revision_stays_while_a_pod_carries_it_and_then_is_the_lowest_that_a_pod_carries() {
        let all = revisions(&[("a", 1, "1"), ("b", 2, "2"), ("c", 3, "3")]);
        let current = |revisions: &[&str], may_lack_held: bool, before: &str| {
            let carried = revisions.iter().copied().collect();
            current(&all, &carried, may_lack_held, before, &all[2]).name.clone()
        };
        assert_eq!(current(&["b", "c"], false, "a"), "b");
        assert_eq!(current(&["a", "b", "c"], false, "b"), "b", "it stays");
        assert_eq!(current(&["b", "c"], false, "c"), "c", "also when the newest one is that of an undo");
        assert_eq!(current(&["b"], false, "c"), "b", "no pod has it any more");
        assert_eq!(current(&["c"], false, "a"), "c");
        assert_eq!(current(&["c"], true, "a"), "a", "the last one that was held back is lost");
        assert_eq!(current(&[], false, "a"), "a", "no pods: what it was");
        assert_eq!(current(&[], false, "gone"), "c");
    }

    #[test]
    fn the_highest_number_that_there_is_is_no_reason_to_end() {
        let records = history(&revisions(&[("web-a", 1, "a:1"), ("web-forged", i64::MAX, "forged:1")]));
        let back = find("web", &of("a:1"), &records, 0);
        assert_eq!((back.revision.number, back.write), (i64::MAX, Some(Write::Renumber)));
        let new = find("web", &of("a:2"), &records, 0);
        assert_eq!((new.revision.number, new.write), (i64::MAX, Some(Write::Create)));
    }

    #[test]
    fn a_record_is_small_however_large_the_template_is() {
        let container = |at: usize| json!({"name": format!("app-{at}"), "image": "x".repeat(2000)});
        let many = (0..1000).map(container).collect::<Vec<_>>();
        for template in [
            json!({"spec": {"containers": [{"name": "app", "image": "app:1", "env": "x".repeat(1 << 20)}]}}),
            json!({"spec": {"containers": many}}),
            json!({"spec": {"containers": vec![json!({"name": ""}); 100_000]}}),
            json!({"spec": {"containers": [{"name": "app", "image": "x".repeat(1 << 20)}]}}),
            json!({"spec": {"containers": [{"name": "app", "resources": {"limits": {"cpu": "0".repeat(1 << 20)}}}]}}),
        ] {
            let record = Record::of("web-a", 1, &PodTemplate(template));
            assert!(record.images.0.to_string().len() < 8 << 10);
        }
        let record = Record::of("web-a", 1, &of("a:1"));
        assert_eq!(record.images.image("app"), Some("a:1"));
        assert_eq!(record.digest, digest(&PodTemplate(json!({"status": null, "spec": of("a:1").0["spec"]}))));
        assert_ne!(record.digest, digest(&of("a:2")));
    }

    #[test]
    fn only_what_nobody_needs_goes_and_the_oldest_first() {
        let records = history(&revisions(&[("a", 1, "1"), ("b", 2, "2"), ("c", 3, "3"), ("d", 4, "4")]));
        assert_eq!(surplus(&records, &["a", "d"].into(), 1), ["b"]);
        assert!(surplus(&records, &["d"].into(), 3).is_empty());
        assert_eq!(surplus(&records, &["d"].into(), 0), ["a", "b", "c"]);
    }
}
