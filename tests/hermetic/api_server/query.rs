//! The query of a request: the text of its values, and the selectors.

use std::collections::BTreeMap;

use serde_json::Value;

/// Supports the field selectors `spec.nodeName`, `metadata.name` and `source` (of events), and label selectors for equality, existence
/// and absence.
pub(super) fn selects(query: &BTreeMap<String, String>, pod: &Value) -> bool {
    let terms = |key: &str| {
        let text = query.get(key).cloned().unwrap_or_default();
        text.split(',')
            .filter_map(|term| term.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())))
            .collect::<Vec<_>>()
    };
    let fields = terms("fieldSelector").into_iter().all(|(field, wanted)| match field.as_str() {
        "spec.nodeName" => pod["spec"]["nodeName"] == wanted,
        "metadata.name" => pod["metadata"]["name"] == wanted,
        "source" => pod["source"]["component"] == wanted,
        other => panic!("the fake knows no field selector {other}"),
    });
    let labels = query.get("labelSelector").cloned().unwrap_or_default();
    let absent = |label: &str| pod["metadata"]["labels"][label].is_null();
    fields
        && labels.split(',').filter_map(|term| term.strip_prefix('!')).all(absent)
        && labels
            .split(',')
            .filter(|term| !term.is_empty() && !term.contains(['=', '!']))
            .all(|label| !absent(label))
        && terms("labelSelector").iter().all(|(label, wanted)| pod["metadata"]["labels"][label] == **wanted)
}

pub(super) fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
