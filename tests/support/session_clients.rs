//! Clients of the server in `docs/examples/hot-standby`: each has a session, never stops, and asserts that each of its
//! requests is counted exactly once. Must not know what is done to the server meanwhile.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use jiff::Timestamp;

use crate::support::wait::eventually;

/// Time limit of one request.
const LIMIT: Duration = Duration::from_secs(10);
/// Pause of a client between two requests, which leaves the machine to others.
const PAUSE: Duration = Duration::from_millis(1);

/// A request that was counted once: when it was answered, and the start of the process that counted it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) at: Timestamp,
    pub(crate) server: Timestamp,
}

/// Clients that send requests until they are dropped.
pub(crate) struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<(), String>>>,
    answers: Vec<Arc<Mutex<Vec<Answer>>>>,
}

impl Clients {
    /// Starts clients that stay connected, with the sessions from 0, and clients with a connection for each request. Returns
    /// when each has had answers.
    pub(crate) fn start(address: SocketAddr, staying: usize, others: usize) -> Self {
        let mut clients = Self { stop: Arc::default(), threads: Vec::new(), answers: Vec::new() };
        for session in 0..staying + others {
            let (stop, answers) = (Arc::clone(&clients.stop), Arc::<Mutex<Vec<Answer>>>::default());
            clients.answers.push(Arc::clone(&answers));
            clients.threads.push(thread::spawn(move || {
                let mut connection = None;
                while !stop.load(Ordering::Relaxed) {
                    let expected = answers.lock().unwrap().len() + 1;
                    let counted =
                        connection.take().map_or_else(|| connect(address), Ok).and_then(|mut stream| {
                            let counted = count(&mut stream, session)?;
                            connection = (session < staying).then_some(stream);
                            Ok(counted)
                        });
                    match counted {
                        Ok((count, server)) if count == expected => {
                            answers.lock().unwrap().push(Answer { at: now(), server });
                        }
                        other => return Err(format!("request {expected} of session {session}: {other:?}")),
                    }
                    thread::sleep(PAUSE);
                }
                Ok(())
            }));
        }
        eventually("answers for each client", || {
            clients.answers.iter().all(|answers| answers.lock().unwrap().len() > 10).then_some(())
        });
        clients
    }

    /// Stops, asserts that every request was answered and counted once, and returns the answers by session.
    pub(crate) fn end(mut self) -> Vec<Vec<Answer>> {
        self.stop.store(true, Ordering::Relaxed);
        let failed: Vec<_> =
            self.threads.drain(..).filter_map(|thread| thread.join().unwrap().err()).collect();
        assert_eq!(failed, Vec::<String>::new());
        self.answers.iter().map(|answers| answers.lock().unwrap().clone()).collect()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The processes that answered, in order.
pub(crate) fn servers(answers: &[Answer]) -> Vec<Timestamp> {
    let mut servers: Vec<_> = answers.iter().map(|answer| answer.server).collect();
    servers.dedup();
    servers
}

/// The longest time between two answers.
pub(crate) fn gap(answers: &[Answer]) -> jiff::SignedDuration {
    let pairs = answers.iter().zip(answers.iter().skip(1));
    pairs.map(|(one, next)| next.at.duration_since(one.at)).max().unwrap_or_default()
}

pub(crate) fn connect(address: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    Ok(BufReader::new(stream))
}

/// Sends a line for a session, in two parts, and reads its count and the process that answers.
pub(crate) fn count(stream: &mut BufReader<TcpStream>, session: usize) -> io::Result<(usize, Timestamp)> {
    stream.get_mut().set_nodelay(true)?;
    stream.get_mut().write_all(session.to_string().as_bytes())?;
    stream.get_mut().write_all(b"\n")?;
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let answer = match line.split_whitespace().collect::<Vec<_>>().as_slice() {
        [of, count, server] if of.parse() == Ok(session) => {
            let milliseconds = server.replace('.', "").parse().ok();
            let server = milliseconds.and_then(|server| Timestamp::from_millisecond(server).ok());
            count.parse().ok().zip(server)
        }
        _ => None,
    };
    answer.ok_or_else(|| io::Error::other(format!("answer {line:?}")))
}

#[allow(clippy::disallowed_methods, reason = "the server's time is the machine's")]
fn now() -> Timestamp {
    Timestamp::now()
}
