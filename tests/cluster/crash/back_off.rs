//! The kubelet's schedule for a container that exits again and again: the start, one more start at once, and then
//! each further start only when the container has been dead for 10 s, 20 s, 40 s ... (`doBackOff` in
//! pkg/kubelet/kuberuntime, with the periods of pkg/kubelet/kubelet.go). A restarted kubelet begins the schedule
//! anew. A kubelet that has collected the exited instance, because the fence did not run at that moment, starts the
//! container at once, as attempt 0 (docs/limits.md).

/// The delay before the third start, and the longest delay, in seconds.
const FIRST: u64 = 10;
const LONGEST: u64 = 300;

/// True when these starts (seconds, in order) follow the schedule of a kubelet that was restarted at each of
/// `kubelets`, and created an attempt 0 again at each of `anew`. An additional start by the agent would come too early.
pub(super) fn allows(starts: &[u64], kubelets: &[u64], anew: &[u64]) -> bool {
    let mut free = 2;
    let mut wait = FIRST;
    let mut before: Option<u64> = None;
    let mut anew = anew.iter().peekable();
    starts.iter().all(|&at| {
        let is_between = |time: &u64| before.is_some_and(|before| before <= *time) && *time <= at;
        if kubelets.iter().any(is_between) {
            (free, wait) = (2, FIRST);
        }
        // Each of them is one start.
        while let Some(time) = anew.next_if(|time| **time <= at) {
            free = free.max(u64::from(is_between(time)));
        }
        let since = before.replace(at).map_or(0, |before| at - before);
        if free > 0 {
            free -= 1;
            return true;
        }
        let kept = since >= wait;
        wait = (wait * 2).min(LONGEST);
        kept
    })
}

#[test]
fn a_start_that_is_not_the_kubelets_own_is_seen() {
    for (starts, kubelets, anew, allowed) in [
        (&[5][..], &[][..], &[][..], true),
        (&[5, 5], &[], &[], true),
        (&[5, 5, 6], &[], &[], false),
        (&[5, 6, 16], &[], &[], true),
        (&[5, 6, 15], &[], &[], false),
        (&[5, 6, 16, 36], &[], &[], true),
        (&[5, 6, 16, 35], &[], &[], false),
        (&[5, 6, 8, 9], &[7], &[], true),
        (&[5, 6, 8, 9, 10], &[7], &[], false),
        (&[5, 6, 8, 9, 19], &[7], &[], true),
        (&[1, 2, 5], &[], &[5], true),
        (&[1, 2, 5, 6], &[], &[5], false),
        (&[1, 2, 5], &[], &[6], false),
        // Within the same second the order of two events is unknown.
        (&[6, 7, 7, 7], &[7], &[], true),
    ] {
        assert_eq!(
            allows(starts, kubelets, anew),
            allowed,
            "{starts:?}, kubelets {kubelets:?}, anew {anew:?}"
        );
    }
}
