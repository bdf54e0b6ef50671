//! The page about reasons: each word in the sources that can be a reason is on the page or in a list of other words here, and
//! the page has no reason that the sources do not have. Says nothing about the sentences of the page.

use std::collections::BTreeSet;
use std::fs;

use regex::Regex;

use crate::sources::product;

const PAGE: &str = "docs/reference/events.md";

/// Reasons that the code makes of the names of variants.
const VARIANTS: [&str; 4] = ["PausedByCanaryPauseStep", "PausedByStepBasedHook", "Start", "Stop"];

/// Lines with names of types, kinds, calls and headings.
const NAMES: &str = r#"call!\(|debug_(struct|tuple)|write_str|named\("|forbidden\("|kind\("|_heading|serde\(|printcolumn|watch\(|store\(|subjects\("|paged\(|all\("|"kind":|^\s*(kind|status|singular|plural|derive) ="#;

/// Words in the sources that look like a reason and are none.
const OTHERS: &str = "
AllContainersRestarting AlreadyExists Always AlwaysAllow Authorization Available Away Bound Cancelled Chosen ClaimTemplate CloneSet ContainerRecreateRequest
ContainerRecreateRequests ContainersReady ClusterFirst ConfigMap Deferred DeleteGuard DeletionByTaintManager Deployment DisruptionTarget
DoesNotExist Dropped Ei Equal Error Exists Fail Failure False FieldValueInvalid File GameDeployment GameStatefulSet Gi HeldBack HookRun
HostIP IfNotPresent Ignore In Infeasible InPlace ControllerRevisions GameDeployments GameStatefulSets
InPlaceRollout InPlaceRollouts InPlaceUpdateReady Initialized Inconclusive Ki Kind Mi ModifiedContainer
NamespaceTerminating Never Node NoExecute None Normal NotAdmitted NotIn Ok OnFailure Parallel Pi Pod PodContainer
PodDisruptionBudgets PodHasNetwork PodIP PodName PodNamespace PodReadyToStartContainers PodResizeInProgress PodResizePending PodScheduled PodTemplate PostHook Present Progressing Pull Pulled Ready
Reconciling Recreate ReplicaSet RestartContainer Rollback RolledBack Rollout ScaleFailed ScaleIn Secret Sent Stalled StartFirst StartInPlaceUpdate StopFirst Swap
TerminationByKubelet Ti Together True Unknown Unreached UpdateFailed Updated
Verify Warning
";

#[test]
fn reference_of_the_reasons() {
    let (code, page) = (words(), reasons(&fs::read_to_string(PAGE).unwrap()));
    let others: BTreeSet<_> = OTHERS.split_whitespace().map(str::to_owned).collect();
    let variants: BTreeSet<_> = VARIANTS.map(str::to_owned).into();
    let difference =
        |a: &BTreeSet<String>, b: &BTreeSet<String>| a.difference(b).cloned().collect::<Vec<_>>();
    let explained: BTreeSet<_> = page.union(&others).cloned().collect();
    assert_eq!(
        difference(&code, &explained),
        Vec::<String>::new(),
        "not in {PAGE}: add a row with the reason and a sentence there, or, if it is no reason, the word to OTHERS"
    );
    let known: BTreeSet<_> = code.union(&variants).cloned().collect();
    assert_eq!(difference(&page, &known), Vec::<String>::new(), "in {PAGE}, and not in the sources");
    assert_eq!(
        page.intersection(&others).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "in {PAGE} and in OTHERS"
    );
}

/// The reasons in the first cells of the tables of a page. Each row has a sentence.
fn reasons(page: &str) -> BTreeSet<String> {
    let mut reasons = BTreeSet::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert!(
            cells.last().is_some_and(|cell| cell.contains(' ')),
            "{PAGE}: a row without a sentence: {row}"
        );
        reasons.extend(cells[0].split('`').skip(1).step_by(2).map(str::to_owned));
    }
    assert!(reasons.len() > 50, "the tables of {PAGE} were not read");
    reasons
}

/// The words in the sources that can be a reason: texts of letters that begin with a capital.
fn words() -> BTreeSet<String> {
    let word = Regex::new(r#""([A-Z][a-z]+(?:[A-Z][A-Za-z]*)*)""#).unwrap();
    let name = Regex::new(NAMES).unwrap();
    let mut words = BTreeSet::new();
    for (path, text) in product() {
        // The fields of other programs: manifests of pods, and the runtime.
        if path.starts_with("src/cri") || path.starts_with("src/api/manifest") {
            continue;
        }
        let lines = text.lines().filter(|line| !line.trim_start().starts_with("//") && !name.is_match(line));
        words.extend(lines.flat_map(|line| word.captures_iter(line)).map(|found| found[1].to_owned()));
    }
    words
}

#[test]
fn a_reason_that_is_missing_is_found() {
    let page =
        (0..60).map(|n| format!("| `Reason{n}`, `Other` | a sentence |\n")).collect::<Vec<_>>().concat();
    let found = reasons(&format!("| reason | meaning |\n|---|---|\n{page}| text | `NotOne` |\n"));
    assert_eq!(found.len(), 61);
    assert!(!found.contains("NotOne") && words().contains("DeadlineExceeded"));
}
