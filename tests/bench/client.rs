//! A client that sends HTTP requests at a fixed pace until it is stopped, over a connection per request and over
//! connections that it keeps, and the figures of its requests. It asks the addresses of [`Addresses`] in turn. Must not
//! know what is done to the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::time::Instant;

use super::report::Samples;

/// Senders of each kind. All of them have a request at the same time.
const SENDERS: usize = 4;
/// The pause between the beginnings of two requests of a sender. After a longer request the next one follows at once.
const PACE: Duration = Duration::from_millis(1);
/// Time limit of connecting, and of each wait for bytes.
const LIMIT: Duration = Duration::from_secs(1);

/// How a client uses connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connections {
    /// A new one for each request. An error is a failed request.
    PerRequest,
    /// One for many requests. A server may close an idle one at any time, and a request may be on its way at that
    /// moment: it is sent again, over a new connection, if no byte of an answer came (RFC 9112, 9.3.1).
    Kept,
}

impl Connections {
    pub(crate) const ALL: [Self; 2] = [Self::PerRequest, Self::Kept];
}

impl fmt::Display for Connections {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::PerRequest => "a connection per request",
            Self::Kept => "keep-alive",
        })
    }
}

/// The addresses that a client asks. Whoever observes the servers changes them meanwhile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Addresses(Arc<RwLock<Arc<[SocketAddr]>>>);

impl Addresses {
    pub(crate) fn set(&self, addresses: impl Into<Arc<[SocketAddr]>>) {
        *self.0.write().unwrap() = addresses.into();
    }

    pub(crate) fn get(&self) -> Arc<[SocketAddr]> {
        Arc::clone(&self.0.read().unwrap())
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
enum Outcome {
    Answered(Answer),
    /// The same, but the first attempt met a connection that its server had closed.
    AnsweredAgain(Answer),
    Failed(String),
}

/// One request of a sender.
#[derive(Clone, Debug)]
struct Record {
    began: Instant,
    ended: Instant,
    outcome: Outcome,
}

/// A running client.
pub(crate) struct Client {
    stop: Arc<AtomicBool>,
    /// The number of requests so far, for each of [`Connections::ALL`].
    sent: [Arc<AtomicUsize>; 2],
    senders: Vec<(Connections, JoinHandle<Vec<Record>>)>,
    began: Instant,
}

impl Client {
    /// Starts to send.
    pub(crate) fn start(addresses: &Addresses) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let sent = [Arc::default(), Arc::default()];
        let mut senders = Vec::new();
        for (connections, count) in Connections::ALL.into_iter().zip(&sent) {
            for next in 0..SENDERS {
                let (stop, count) = (Arc::clone(&stop), Arc::clone(count));
                let sender = Sender { addresses: addresses.clone(), connections, next, open: Vec::new() };
                senders.push((connections, thread::spawn(move || sender.send(&stop, &count))));
            }
        }
        Self { stop, sent, senders, began: Instant::now() }
    }

    /// The number of requests so far over connections of either kind, whichever is smaller.
    pub(crate) fn sent(&self) -> usize {
        self.sent.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap_or_default()
    }

    /// Stops, and adds the requests of each of [`Connections::ALL`] to `figures`. `begin` and `end` are those of the operation.
    pub(crate) fn stop(mut self, begin: Instant, end: Instant, figures: &mut [Requests; 2]) {
        self.stop.store(true, Ordering::Relaxed);
        let mut records: [Vec<Record>; 2] = Default::default();
        for (connections, sender) in self.senders.drain(..) {
            records[connections as usize].extend(sender.join().unwrap());
        }
        for (records, figures) in records.into_iter().zip(figures) {
            figures.lasted += self.began.elapsed();
            figures.add(records, begin, end);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The figures of requests over one kind of connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests {
    pub(crate) count: usize,
    /// How long they were sent.
    pub(crate) lasted: Duration,
    pub(crate) failed: usize,
    /// Answered over a second connection.
    pub(crate) again: usize,
    /// The versions that answered, by the last character of the body.
    pub(crate) versions: BTreeSet<char>,
    /// Why requests failed, and how many.
    pub(crate) errors: BTreeMap<String, usize>,
    /// Answers before and after the operations.
    pub(crate) quiet: Times,
    pub(crate) during: Times,
}

/// The times of answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// From the beginning of a request to the end of its answer.
    pub(crate) took: Samples,
    /// The longest time without an answer.
    pub(crate) gap: Duration,
}

impl Requests {
    /// Adds the requests of one operation.
    fn add(&mut self, mut records: Vec<Record>, begin: Instant, end: Instant) {
        records.sort_by_key(|record| record.ended);
        self.count += records.len();
        let mut last = None::<Instant>;
        for Record { began, ended, outcome } in records {
            let answer = match outcome {
                Outcome::Failed(error) => {
                    self.failed += 1;
                    *self.errors.entry(error).or_default() += 1;
                    continue;
                }
                Outcome::Answered(answer) => answer,
                Outcome::AnsweredAgain(answer) => {
                    self.again += 1;
                    answer
                }
            };
            self.versions.insert(answer.version);
            let times = if ended < begin || began > end { &mut self.quiet } else { &mut self.during };
            times.took.add(ended - began);
            let Some(last) = last.replace(ended) else { continue };
            let times = if ended < begin || last > end { &mut self.quiet } else { &mut self.during };
            times.gap = times.gap.max(ended - last);
        }
        // No answer at all until the end is a gap too.
        let unanswered = end.saturating_duration_since(last.unwrap_or(begin));
        self.during.gap = self.during.gap.max(unanswered);
    }
}

/// A thread that sends requests.
struct Sender {
    addresses: Addresses,
    connections: Connections,
    /// The number of the next request, from which its address follows.
    next: usize,
    /// The connections that are kept.
    open: Vec<Connection>,
}

impl Sender {
    fn send(mut self, stop: &AtomicBool, count: &AtomicUsize) -> Vec<Record> {
        let mut records = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let (outcome, closing) = match self.request() {
                Ok((outcome, closing)) => (outcome, closing),
                Err(error) => (Outcome::Failed(error.to_string()), None),
            };
            let ended = Instant::now();
            records.push(Record { began, ended, outcome });
            count.fetch_add(1, Ordering::Relaxed);
            if let Some(connection) = closing {
                connection.await_close();
            }
            thread::sleep(PACE.saturating_sub(began.elapsed()));
        }
        records
    }

    /// Sends a request, and returns its outcome and the connection that its server closes now.
    fn request(&mut self) -> io::Result<(Outcome, Option<Connection>)> {
        let addresses = self.addresses.get();
        self.open.retain(|connection| addresses.contains(&connection.address));
        let address = self.address(&addresses)?;
        let kept = self.open.iter().position(|connection| connection.address == address);
        let mut again = false;
        let (connection, answer) = match kept.map(|index| self.open.swap_remove(index)) {
            Some(mut connection) => match connection.ask(self.connections) {
                Ok(answer) => (connection, answer),
                Err(_) if connection.read.is_empty() => {
                    again = true;
                    let address = self.address(&addresses)?;
                    self.ask_anew(address)?
                }
                Err(error) => return Err(error),
            },
            None => self.ask_anew(address)?,
        };
        let outcome = if again { Outcome::AnsweredAgain(answer) } else { Outcome::Answered(answer) };
        if self.connections == Connections::PerRequest || answer.closes {
            return Ok((outcome, Some(connection)));
        }
        self.open.push(connection);
        Ok((outcome, None))
    }

    /// The next address in turn.
    fn address(&mut self, addresses: &[SocketAddr]) -> io::Result<SocketAddr> {
        self.next += 1;
        let address = addresses.get(self.next % addresses.len().max(1));
        address.copied().ok_or_else(|| io::Error::other("no address to send it to"))
    }

    fn ask_anew(&self, address: SocketAddr) -> io::Result<(Connection, Answer)> {
        let mut connection = Connection::open(address)?;
        let answer = connection.ask(self.connections)?;
        Ok((connection, answer))
    }
}

/// A connection to a server.
struct Connection {
    address: SocketAddr,
    stream: TcpStream,
    /// What has been read of the answer to the last request.
    read: Vec<u8>,
}

/// A complete answer.
#[derive(Clone, Copy, Debug)]
struct Answer {
    /// The last character of the body, without the end of the line.
    version: char,
    /// The server closes the connection.
    closes: bool,
}

impl Connection {
    fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, LIMIT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        Ok(Self { address, stream, read: Vec::new() })
    }

    /// Sends a request and reads its answer.
    fn ask(&mut self, connections: Connections) -> io::Result<Answer> {
        self.read.clear();
        self.stream.write_all(match connections {
            Connections::PerRequest => b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n",
            Connections::Kept => b"GET / HTTP/1.1\r\nHost: bench\r\n\r\n",
        })?;
        loop {
            let mut bytes = [0; 1024];
            let count = self.stream.read(&mut bytes)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.read.extend_from_slice(&bytes[..count]);
            if let Some(answer) = parse(&self.read)? {
                return Ok(answer);
            }
        }
    }

    /// Waits until the server has closed the connection: the one that closes first keeps the port for a minute, and a client
    /// has fewer ports than it sends requests in that time.
    fn await_close(mut self) {
        let _ = self.stream.read(&mut [0; 1024]);
    }
}

/// The answer, if it is complete.
fn parse(read: &[u8]) -> io::Result<Option<Answer>> {
    let wrong = |what: &str| io::Error::other(format!("{what}: {}", String::from_utf8_lossy(read)));
    let text = str::from_utf8(read).map_err(|_| wrong("no text"))?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    let mut lines = head.to_ascii_lowercase();
    lines.push_str("\r\n");
    let field = |name: &str| Some(lines.split_once(&format!("\r\n{name}: "))?.1.split_once("\r\n")?.0);
    if !lines.starts_with("http/1.1 200 ") {
        return Err(wrong("the answer"));
    }
    let length = field("content-length").and_then(|length| length.parse::<usize>().ok());
    if body.len() < length.ok_or_else(|| wrong("no length"))? {
        return Ok(None);
    }
    let version = body.trim_end().chars().last().ok_or_else(|| wrong("no body"))?;
    Ok(Some(Answer { version, closes: field("connection") == Some("close") }))
}
