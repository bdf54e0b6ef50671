//! How often a kubelet starts by itself what ends again and again: as told, once more at once, and then each time only
//! when the container has been dead for 10 s, 20 s, 40 s ... (`doBackOff` in pkg/kubelet/kuberuntime, with the periods of
//! pkg/kubelet/kubelet.go). One that was started anew has forgotten what was before.

/// What it waits before the third start, and at most, in seconds.
const FIRST: u64 = 10;
const LONGEST: u64 = 300;

/// Whether these starts (seconds, in order) are a kubelet's own, when a new one began at each of `kubelets`. A start that
/// somebody else made in between would come too early.
pub(super) fn allows(starts: &[u64], kubelets: &[u64]) -> bool {
    let mut free = 2;
    let mut wait = FIRST;
    let mut before: Option<u64> = None;
    starts.iter().all(|&at| {
        if kubelets.iter().any(|&began| before.is_some_and(|before| before <= began) && began <= at) {
            (free, wait) = (2, FIRST);
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
    for (starts, kubelets, allowed) in [
        (&[5][..], &[][..], true),
        (&[5, 5], &[], true),
        (&[5, 5, 6], &[], false),
        (&[5, 6, 16], &[], true),
        (&[5, 6, 15], &[], false),
        (&[5, 6, 16, 36], &[], true),
        (&[5, 6, 16, 35], &[], false),
        (&[5, 6, 8, 9], &[7], true),
        (&[5, 6, 8, 9, 10], &[7], false),
        (&[5, 6, 8, 9, 19], &[7], true),
        // Within a second nobody can tell which came first.
        (&[6, 7, 7, 7], &[7], true),
    ] {
        assert_eq!(allows(starts, kubelets), allowed, "{starts:?}, kubelets {kubelets:?}");
    }
}
