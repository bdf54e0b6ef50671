//! Whether another controller works on the same workload: a bk-bcs operator that still runs writes the status of the
//! workload, and would create, update and delete the same pods. Pure.
//!
//! The API server records who wrote which fields, and when. A workload whose status another client has written is left
//! alone for a time: two controllers on one workload delete pods that the other one counts on.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;

use crate::podtask::time::later;

/// How long a workload is left alone after another client has written its status. A bk-bcs operator writes it at every
/// change of a pod, and at its resync.
pub const QUIET: SignedDuration = SignedDuration::from_secs(120);

/// The last write of a workload's status by another client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherWriter {
    /// The client, as the API server names its field manager.
    pub manager: String,
    /// The time of the write.
    pub at: Timestamp,
}

impl OtherWriter {
    /// Reads it from the managed fields of a workload; `own` is the field manager of this project's controller.
    pub fn read(entries: &[ManagedFieldsEntry], own: &str) -> Option<Self> {
        let writes = entries.iter().filter_map(|entry| {
            let manager = entry.manager.clone().filter(|manager| manager != own)?;
            let status = entry.fields_v1.as_ref()?.0.get("f:status")?;
            // An entry without fields of the status itself is not a write of the status.
            status.as_object().filter(|fields| !fields.is_empty())?;
            Some(Self { manager, at: entry.time.as_ref()?.0 })
        });
        writes.max_by_key(|writer| writer.at)
    }

    /// Until when the workload is left alone; `None` if it need not be, or no longer.
    pub fn quiet_until(&self, now: Timestamp) -> Option<Timestamp> {
        // The time is that of an API server, whose clock may be ahead.
        let until = later(self.at.min(now), QUIET);
        (until > now).then_some(until)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn entry(manager: &str, second: i64, fields: &Value) -> ManagedFieldsEntry {
        let entry = json!({"manager": manager, "operation": "Update", "apiVersion": "tkex.tencent.com/v1alpha1",
            "time": at(second).to_string(), "fieldsType": "FieldsV1", "fieldsV1": fields});
        serde_json::from_value(entry).unwrap()
    }

    #[test]
    fn only_a_write_of_the_status_by_another_client_is_another_controller() {
        let status = || json!({"f:status": {"f:replicas": {}}});
        let managed = [
            entry("inplace", 90, &status()),
            entry("kubectl", 95, &json!({"f:spec": {"f:replicas": {}}})),
            entry("bcs-gamedeployment-operator", 10, &status()),
            entry("bcs-gamedeployment-operator", 20, &status()),
            entry("empty", 99, &json!({"f:status": {}})),
        ];
        let other = OtherWriter::read(&managed, "inplace").unwrap();
        assert_eq!((other.manager.as_str(), other.at), ("bcs-gamedeployment-operator", at(20)));
        assert_eq!(OtherWriter::read(&managed[..2], "inplace"), None);
        assert_eq!(OtherWriter::read(&[], "inplace"), None);
    }

    #[test]
    fn a_workload_is_left_alone_for_a_time_and_no_longer() {
        let other = OtherWriter { manager: "other".to_owned(), at: at(0) };
        assert_eq!(other.quiet_until(at(0)), Some(at(120)));
        assert_eq!(other.quiet_until(at(119)), Some(at(120)));
        assert_eq!(other.quiet_until(at(120)), None);
        assert_eq!(other.quiet_until(at(-500)), Some(at(-380)), "a clock that is ahead");
    }
}
