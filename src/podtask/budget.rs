//! The budget of tasks: how many more may begin, and how many of them on available pods. Decides nothing about a pod.
//!
//! A pod that is not available is exempt from the second limit, so that broken pods never block their own repair.

/// What is left of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many more tasks may begin.
    pub tasks: usize,
    /// How many more available pods may become unavailable.
    pub available: usize,
}

impl Budget {
    /// True when a task may begin on a pod that is `available`, or is not.
    pub fn allows(self, available: bool) -> bool {
        self.tasks > 0 && (!available || self.available > 0)
    }

    /// Counts a task as begun on a pod that is `available`, or is not.
    pub fn spend(&mut self, available: bool) {
        self.tasks = self.tasks.saturating_sub(1);
        self.available = self.available.saturating_sub(available.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unavailable_pod_costs_a_task_and_no_availability() {
        let mut budget = Budget { tasks: 3, available: 1 };
        budget.spend(false);
        assert_eq!(budget, Budget { tasks: 2, available: 1 });
        budget.spend(true);
        assert!(budget.allows(false) && !budget.allows(true));
        budget.spend(false);
        assert!(!budget.allows(false));
    }
}
