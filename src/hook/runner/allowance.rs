//! Counts the running HookRuns by namespace, and decides whether one more may start: a namespace with many or
//! large HookRuns delays no other.
//!
//! Must not start or end anything.

use std::collections::HashMap;

use crate::process::permits;

/// The running HookRuns, and the limits.
#[derive(Debug)]
pub(super) struct Allowance {
    most: Load,
    all: Load,
    by_namespace: HashMap<String, Load>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    count: usize,
    weight: usize,
}

impl Allowance {
    /// An allowance for `count` HookRuns with a total of `weight`.
    pub(super) fn new(count: usize, weight: usize) -> Self {
        Self { most: Load { count, weight }, all: Load::default(), by_namespace: HashMap::new() }
    }

    /// Counts one more of `namespace` as running.
    pub(super) fn take(&mut self, namespace: &str, weight: usize) {
        for load in [&mut self.all, self.by_namespace.entry(namespace.to_owned()).or_default()] {
            load.count += 1;
            load.weight += weight;
        }
    }

    /// How many of `namespace` are running.
    pub(super) fn count(&self, namespace: &str) -> usize {
        self.of(namespace).count
    }

    /// Whether one more HookRun of `namespace` may start. A namespace may use a share of the limit that the other
    /// namespaces do not use, so that some of the limit is left for a further namespace. A HookRun that is larger than the
    /// whole limit runs only if no other large one runs.
    pub(super) fn is_for(&self, namespace: &str, weight: usize) -> bool {
        let of = self.of(namespace);
        let share = |most: usize, all: usize, own: usize| permits::share(most.saturating_sub(all - own));
        let fits = |load: Load, most: usize| weight == 0 || load.weight == 0 || load.weight + weight <= most;
        self.all.count < self.most.count
            && of.count < share(self.most.count, self.all.count, of.count)
            && fits(self.all, self.most.weight)
            && fits(of, share(self.most.weight, self.all.weight, of.weight))
    }

    fn of(&self, namespace: &str) -> Load {
        self.by_namespace.get(namespace).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes as many as fit.
    fn fill(allowance: &mut Allowance, namespace: &str, weight: usize) -> usize {
        let mut count = 0;
        while allowance.is_for(namespace, weight) {
            allowance.take(namespace, weight);
            count += 1;
        }
        count
    }

    #[test]
    fn one_namespace_has_three_quarters_at_most_of_the_count_and_of_the_weight() {
        let mut allowance = Allowance::new(100, 1000);
        assert_eq!(fill(&mut allowance, "greedy", 100), 7);
        assert_eq!(fill(&mut allowance, "shop", 100), 2);
        assert_eq!(fill(&mut allowance, "next", 100), 1);
        assert_eq!(fill(&mut allowance, "late", 100), 0, "nothing is left for large ones");
        assert_eq!(fill(&mut allowance, "greedy", 0), 66, "small ones need a place only");
        assert_eq!(fill(&mut allowance, "late", 0), 18);
    }

    /// The author of a HookRun decides how long it runs.
    #[test]
    fn a_few_namespaces_together_do_not_take_every_place() {
        let mut allowance = Allowance::new(512, 1);
        let taken: Vec<_> =
            ["a", "b", "c", "d"].iter().map(|namespace| fill(&mut allowance, namespace, 0)).collect();
        assert_eq!(taken, [384, 96, 24, 6]);
        assert!(allowance.is_for("shop", 0));
    }

    #[test]
    fn one_that_is_larger_than_everything_is_begun_where_no_large_one_runs() {
        let mut allowance = Allowance::new(100, 1000);
        allowance.take("shop", 0);
        assert!(allowance.is_for("shop", 5000));
        allowance.take("shop", 5000);
        assert!(!allowance.is_for("other", 10));
        assert!(allowance.is_for("other", 0));
    }
}
