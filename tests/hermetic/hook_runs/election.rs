//! Two candidates for one Lease.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use inplace::cluster::lease::Election;

use super::super::api_server::Fault;
use super::*;
use crate::support::wait::until;

/// How many lead now, the most that led at the same time, and the order in which they started.
#[derive(Default)]
struct Leaders {
    now: AtomicUsize,
    most: AtomicUsize,
    began: Mutex<Vec<&'static str>>,
}

impl Leaders {
    async fn lead(&self, me: &'static str, over: CancellationToken) {
        self.began.lock().unwrap().push(me);
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        over.cancelled().await;
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    fn began(&self) -> Vec<&'static str> {
        self.began.lock().unwrap().clone()
    }
}

async fn candidate(
    fixture: &Fixture,
    me: &'static str,
    leaders: &Arc<Leaders>,
) -> (CancellationToken, JoinHandle<()>) {
    let election = Election::new(fixture.server().await, "inplace-system", "inplace-controller", me);
    let (stop, leaders) = (CancellationToken::new(), Arc::clone(leaders));
    let task = tokio::spawn(election.run(stop.clone(), move |over| {
        let leaders = Arc::clone(&leaders);
        async move { leaders.lead(me, over).await }
    }));
    (stop, task)
}

fn holder(store: &Store) -> String {
    let lease = store.get("leases", "inplace-system", "inplace-controller").unwrap_or_default();
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn what_is_given_back_is_taken_at_once() {
    let fixture = Fixture::start().await;
    let leaders = Arc::new(Leaders::default());
    let (stop, task) = candidate(&fixture, "a", &leaders).await;
    fixture.api.until("a leads", |store| holder(store) == "a").await;
    let (_stop, _task) = candidate(&fixture, "b", &leaders).await;
    // Renewed more than once, and not taken over.
    fixture.api.arrived("PUT lease", 2).await;
    assert_eq!(leaders.began(), ["a"]);
    stop.cancel();
    fixture.api.patiently("a ends", task).await.unwrap();
    // Sooner than a Lease expires.
    let since = tokio::time::Instant::now();
    fixture.api.patiently("b leads", until(|| leaders.began().len() >= 2)).await;
    assert!(since.elapsed() < Duration::from_secs(10), "{:#?}", fixture.api.calls());
    assert_eq!(leaders.began(), ["a", "b"]);
    assert_eq!(leaders.most.load(Ordering::SeqCst), 1);
    let lease = fixture.api.get("leases", "inplace-system", "inplace-controller").unwrap();
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 15, "{lease}");
}

#[tokio::test]
async fn whoever_cannot_renew_leads_no_more_before_another_does() {
    let fixture = Fixture::start().await;
    let leaders = Arc::new(Leaders::default());
    let (_stop, _task) = candidate(&fixture, "a", &leaders).await;
    fixture.api.until("a leads", |store| holder(store) == "a").await;
    // Every renewal until the leader has to stop fails. Both candidates can read the Lease.
    fixture.api.on("PUT lease").times(3).fault(Fault::Hang);
    let (_other, _second) = candidate(&fixture, "b", &leaders).await;
    // A Lease expires after 15 s.
    tokio::time::timeout(Duration::from_secs(60), until(|| leaders.began().len() >= 2)).await.unwrap();
    assert_eq!(leaders.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_renewal_without_an_answer_does_not_end_leadership() {
    for fault in [Fault::Hang, Fault::HangAfterEffect] {
        let fixture = Fixture::start().await;
        let leaders = Arc::new(Leaders::default());
        let (_stop, _task) = candidate(&fixture, "a", &leaders).await;
        fixture.api.until("a leads", |store| holder(store) == "a").await;
        let before = fixture.api.calls().iter().filter(|call| call.contains("PUT lease")).count();
        fixture.api.on("PUT lease").times(1).fault(fault);
        // The one without an answer, one that may conflict with it, and two more.
        fixture.api.arrived("PUT lease", before + 4).await;
        assert_eq!(leaders.began(), ["a"], "{:#?}", fixture.api.calls());
        assert_eq!(leaders.now.load(Ordering::SeqCst), 1, "{:#?}", fixture.api.calls());
    }
}

#[tokio::test]
async fn two_that_come_at_once_make_one_leader() {
    let fixture = Fixture::start().await;
    let leaders = Arc::new(Leaders::default());
    let _all = tokio::join!(
        candidate(&fixture, "a", &leaders),
        candidate(&fixture, "b", &leaders),
        candidate(&fixture, "c", &leaders)
    );
    fixture.api.arrived("PUT lease", 1).await;
    assert_eq!(leaders.began().len(), 1);
    assert_eq!(leaders.most.load(Ordering::SeqCst), 1);
}
