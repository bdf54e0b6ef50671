//! Every call that an operation makes, with every fault that a call can have.
//!
//! The calls are taken from a run without faults, so the matrix includes a new call automatically. Each cell has a
//! runtime of its own, and the cells run concurrently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use inplace::api::request::Request;
use inplace::api::status::{Phase, Status};
use inplace::node::Error;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Code;

use super::super::runtime::{Exec, Fault};
use super::{Fixture, HOLDER, pod, request, shared_pod, short};

/// The number of cells that run at the same time. They share one thread, and each has a limit: with 48, cells failed by it on a
/// machine of half the speed.
const SIDE_BY_SIDE: usize = 16;
/// Long enough to have an effect, short enough not to exceed a timeout.
const MOMENT: Duration = Duration::from_millis(70);

/// Faults for any call. The outcome must be the same as without a fault.
const ANY: [Fault; 3] = [
    Fault::Fail(Code::Unavailable, "the runtime is starting"),
    Fault::DropConnection,
    Fault::Restart(MOMENT),
];
/// Faults for a call that changes something, with the same rule. For a query they are equivalent to those above.
const CHANGING: [Fault; 6] = [
    Fault::Slow(MOMENT),
    Fault::SlowReply(MOMENT),
    Fault::FailAfterEffect,
    Fault::DropConnectionAfterEffect,
    Fault::Twice,
    Fault::RestartAfterEffect(MOMENT),
];
/// One refusal by the runtime itself. It may end an operation that has touched nothing, or start a rollback.
const NO: [Fault; 2] = [
    Fault::Fail(Code::Unknown, "write /var/lib/containerd: no space left on device"),
    Fault::Fail(Code::Internal, "ttrpc: closed"),
];
const HANGING: [Fault; 2] = [Fault::Hang, Fault::HangAfterEffect];

/// The operation, and whether the pod has no kubelet: there the replacement is created before the stop.
#[derive(Clone, Copy, Debug)]
struct Job {
    what: What,
    alone: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A restart of a container with a preStop handler and an older instance.
    Restart,
    Swap,
    /// A swap to an image that exits at once.
    Back,
}

/// The call that fails.
#[derive(Clone, Debug)]
struct Place {
    name: &'static str,
    about: String,
    /// The position among the calls of that name for that object.
    nth: usize,
    /// True when the call changes something.
    changes: bool,
}

#[derive(Clone, Debug)]
struct Cell {
    job: Job,
    place: Place,
    fault: Fault,
    /// The outcome must be the same as without a fault.
    harmless: bool,
}

impl Job {
    async fn fixture(self) -> Fixture {
        let pod = if self.alone { pod() } else { shared_pod() };
        let fixture = match self.what {
            What::Restart => Fixture::of(pod.pre_stop(r#"{"exec":{"command":["bye"]}}"#)).await.aged(),
            What::Swap | What::Back => Fixture::of(pod).await,
        };
        // Where no other program acts, no holder is requested.
        let fixture = fixture.held_by(HOLDER);
        if self.what == What::Back {
            fixture.fake.model(|m| m.image("img:v2").dies_after = Some((MOMENT, 3)));
        }
        fixture.fake.exec(|_, _| Exec::ok("bye"));
        fixture
    }

    fn text(self) -> &'static str {
        match self.what {
            What::Restart => "restart app",
            What::Swap | What::Back => "swap app=img:v2",
        }
    }

    /// The outcome without faults, and the image that runs then.
    fn end(self) -> (Phase, &'static str) {
        match self.what {
            What::Restart => (Phase::Succeeded, "img:v1"),
            What::Swap => (Phase::Succeeded, "img:v2"),
            What::Back => (Phase::RolledBack, "img:v1"),
        }
    }

    /// Every call of a run without faults. Of repeated queries, only the first after each change.
    async fn places(self) -> Vec<Place> {
        let fixture = self.fixture().await;
        let ended = fixture.ask(request(self.text())).await.unwrap();
        assert_eq!(ended.phase, self.end().0, "{ended:#?}");
        fixture.reached(&ended, self.end().1);
        let (mut changes, mut seen, mut counted) = (0, BTreeSet::new(), BTreeMap::new());
        let mut places = Vec::new();
        for call in fixture.fake.all_calls() {
            changes += usize::from(call.mutates());
            let (name, about) = (call.name, call.about.clone());
            let nth: &mut usize = counted.entry((name, about.clone())).or_default();
            *nth += 1;
            if seen.insert((changes, name, about.clone())) {
                places.push(Place { name, about, nth: *nth, changes: call.mutates() });
            }
        }
        places
    }
}

#[tokio::test]
async fn a_fault_at_any_call_of_a_restart() {
    every_fault(What::Restart).await;
}

#[tokio::test]
async fn a_fault_at_any_call_of_a_swap() {
    every_fault(What::Swap).await;
}

#[tokio::test]
async fn a_fault_at_any_call_of_a_swap_that_goes_back() {
    every_fault(What::Back).await;
}

/// One call of each kind is enough, because each costs its deadline.
#[tokio::test]
async fn a_call_that_is_never_answered() {
    let mut cells = Vec::new();
    for (what, alone) in [(What::Restart, false), (What::Swap, true)] {
        let job = Job { what, alone };
        let mut names = BTreeSet::new();
        let mut places = job.places().await;
        places.retain(|place| names.insert((place.name, place.about.contains("fence"))));
        for place in places {
            let cell = |fault| Cell { job, place: place.clone(), fault, harmless: false };
            cells.extend(HANGING[..if place.changes { 2 } else { 1 }].iter().copied().map(cell));
        }
    }
    side_by_side(cells, Cell::hang).await;
}

async fn every_fault(what: What) {
    let mut cells = Vec::new();
    for alone in [true, false] {
        cells.extend(every_cell(Job { what, alone }).await);
    }
    side_by_side(cells, Cell::fault).await;
}

async fn every_cell(job: Job) -> Vec<Cell> {
    let mut places = job.places().await;
    for must in ["ListPodSandbox", "ListContainers", "ContainerStatus", "CreateContainer", "StartContainer"] {
        assert!(places.iter().any(|place| place.name == must), "{must} is not in {places:?}");
    }
    if job.what == What::Back {
        // The way forward is the same as in the swap.
        let cycles = places.iter().position(|place| place.about == "fence app#3").unwrap();
        places.drain(..cycles);
    }
    let mut cells = Vec::new();
    for place in places {
        let cell = |harmless| {
            let place = place.clone();
            move |fault| Cell { job, place: place.clone(), fault, harmless }
        };
        cells.extend(ANY.map(cell(true)));
        cells.extend(CHANGING.into_iter().filter(|_| place.changes).map(cell(true)));
        cells.extend(NO[..if place.changes { 2 } else { 1 }].iter().copied().map(cell(false)));
    }
    cells
}

async fn side_by_side<F>(cells: Vec<Cell>, run: impl Fn(Cell) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    assert!(cells.len() > 20, "{cells:?}");
    let cycles = Arc::new(Semaphore::new(SIDE_BY_SIDE));
    let mut running = JoinSet::new();
    for cell in cells {
        let (cycles, ended) = (Arc::clone(&cycles), run(cell));
        running.spawn(async move {
            let _cycle = cycles.acquire().await;
            ended.await;
        });
    }
    let mut failed = 0;
    while let Some(ended) = running.join_next().await {
        failed += usize::from(ended.is_err());
    }
    assert_eq!(failed, 0, "so many cells failed, see above");
}

impl Cell {
    async fn fault(self) {
        let (fixture, ended) = self.run(request(self.job.text()), Duration::from_secs(120)).await;
        let reported = self.reported(&fixture, &ended);
        let handled = fixture.fake.times(&format!("ran bye in {}", fixture.original));
        assert!(handled <= if matches!(self.fault, Fault::Twice) { 2 } else { 1 }, "{reported}");
        let (phase, image) = self.job.end();
        let starts = |status: &Status| usize::from(status.phase == Phase::RolledBack) + 1;
        match ended {
            Ok(status) if status.phase == phase => {
                fixture.reached(&status, image);
                assert!(fixture.starts() <= starts(&status), "{reported}");
            }
            _ if self.harmless => panic!("{reported}"),
            Ok(status) if status.phase == Phase::RolledBack => {
                fixture.reached(&status, "img:v1");
                assert!(fixture.starts() <= starts(&status), "{reported}");
            }
            Ok(status) => {
                assert!(
                    status.phase == Phase::Failed && status.message.contains("not touched"),
                    "{reported}"
                );
                fixture.untouched();
            }
            Err(_) => fixture.untouched(),
        }
    }

    async fn hang(self) {
        // The call takes half of the time, and a restart cannot go back: it has to end in the other half, also on a slow machine.
        // A query may take long before the operation begins, and the cleanup may take long after its end.
        let request = short(self.job.text(), if self.job.what == What::Restart { 20 } else { 12 });
        let limit = Duration::from_secs(u64::from(request.deadline_seconds) + 60);
        let (fixture, ended) = self.run(request, limit).await;
        let reported = self.reported(&fixture, &ended);
        let status = ended.expect(&reported);
        match status.phase {
            Phase::Succeeded => fixture.reached(&status, self.job.end().1),
            Phase::RolledBack => fixture.reached(&status, "img:v1"),
            _ => {
                assert!(status.message.contains("not touched"), "{reported}");
                fixture.untouched();
            }
        }
    }

    async fn run(&self, request: Request, limit: Duration) -> (Fixture, Result<Status, Error>) {
        let fixture = self.job.fixture().await;
        let Place { name, about, nth, .. } = &self.place;
        fixture.fake.on(name).about(about).nth(*nth).fault(self.fault);
        let ended = tokio::time::timeout(limit, fixture.insist(request)).await;
        let ended = ended.unwrap_or_else(|_| panic!("{self:?}: no end: {:#?}", fixture.fake.story()));
        fixture.sane(&self.reported(&fixture, &ended));
        (fixture, ended)
    }

    fn reported(&self, fixture: &Fixture, ended: &Result<Status, Error>) -> String {
        format!("{self:?}: {ended:?}\n{:#?}\n{:#?}", fixture.fake.history(), fixture.fake.story())
    }
}
