//! What is computed from the draft and the revisions of the world. It is kept while they are the same: to compute it takes
//! longer than a decision.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use crate::workload::fixtures::Draft;
use crate::workload::revision::{Record, Revision};
use crate::workload::spec::WorkloadSpec;

use super::World;

#[derive(Default)]
pub(super) struct Computed {
    spec: RefCell<Option<(Draft, Rc<WorkloadSpec>)>>,
    history: RefCell<BTreeMap<String, (Revision, Record)>>,
}

impl World {
    /// The spec of the workload.
    pub(super) fn spec(&self) -> Rc<WorkloadSpec> {
        let mut computed = self.computed.spec.borrow_mut();
        if let Some((draft, spec)) = &*computed
            && *draft == self.draft
        {
            return Rc::clone(spec);
        }
        let spec = Rc::new(self.draft.spec());
        *computed = Some((self.draft.clone(), Rc::clone(&spec)));
        spec
    }

    /// What a controller caches of the revisions.
    pub(super) fn history(&self) -> Vec<Record> {
        let mut computed = self.computed.history.borrow_mut();
        let mut record = |revision: &Revision| {
            let known = computed.get(&revision.name).filter(|(known, _)| known == revision);
            if let Some((_, record)) = known {
                return record.clone();
            }
            let record = Record::of(&revision.name, revision.number, &revision.template);
            computed.insert(revision.name.clone(), (revision.clone(), record.clone()));
            record
        };
        self.revisions.iter().map(&mut record).collect()
    }
}
