//! The client of the benchmark counts what a server does to it: a request that failed is never hidden, and one that was only
//! sent again is not called failed. Must not measure.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::time::Instant;

use self::client::{Addresses, Client, Requests};
use crate::support::wait::eventually;

#[path = "../bench/client.rs"]
mod client;
#[path = "../bench/report.rs"]
#[allow(dead_code, clippy::print_stdout, reason = "the benchmark prints")]
mod report;

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nv1\n";
/// Requests of each kind before a client is stopped.
const ENOUGH: usize = 200;
/// The senders of a client, of both kinds. Each has one request at a time.
const SENDERS: usize = 8;

/// Serves connections, each by a thread: `serve` answers the request with that number on the connection, or closes.
fn server(serve: impl Fn(&mut TcpStream, usize) -> bool + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = Arc::new(serve);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, serve) = (stream.unwrap(), Arc::clone(&serve));
            thread::spawn(move || {
                let mut request = [0; 1024];
                let mut number = 0;
                while stream.read(&mut request).is_ok_and(|count| count > 0) {
                    number += 1;
                    let closes = String::from_utf8_lossy(&request).contains("Connection: close");
                    if !serve(&mut stream, number) || closes {
                        return;
                    }
                    request.fill(0);
                }
            });
        }
    });
    address
}

/// What a client counts that asks these addresses: over a connection per request, and over kept ones.
fn asked(addresses: &[SocketAddr]) -> [Requests; 2] {
    let all = Addresses::default();
    all.set(addresses);
    let begin = Instant::now();
    let client = Client::start(&all);
    eventually("enough requests", || (client.sent() >= ENOUGH).then_some(()));
    let mut figures: [Requests; 2] = Default::default();
    client.stop(begin, Instant::now(), &mut figures);
    figures
}

fn answer(stream: &mut TcpStream) -> bool {
    stream.write_all(ANSWER).is_ok()
}

#[test]
fn requests_that_are_answered_have_not_failed() {
    for Requests { count, failed, again, versions, during, .. } in
        asked(&[server(|stream, _| answer(stream))])
    {
        assert!(count >= ENOUGH, "{count}");
        assert_eq!((failed, again, Vec::from_iter(versions)), (0, 0, vec!['1']));
        assert!(during.took.p99() > 0.0);
    }
}

#[test]
fn a_request_over_a_kept_connection_that_was_closed_is_sent_again() {
    let [new, kept] = asked(&[server(|stream, number| number <= 5 && answer(stream) && number < 5)]);
    assert_eq!((new.failed, new.again), (0, 0), "{:?}", new.errors);
    assert_eq!(kept.failed, 0, "{:?}", kept.errors);
    assert!(kept.again >= ENOUGH / 10, "{}", kept.again);
}

#[test]
fn an_answer_that_is_cut_off_is_a_failed_request() {
    let cut = |stream: &mut TcpStream| stream.write_all(&ANSWER[..ANSWER.len() - 2]).is_err();
    for requests in asked(&[server(move |stream, _| cut(stream))]) {
        assert_eq!((requests.failed, requests.again), (requests.count, 0), "{:?}", requests.errors);
    }
    let [new, kept] =
        asked(&[server(move |stream, number| if number == 1 { answer(stream) } else { cut(stream) })]);
    assert_eq!((new.failed, kept.again), (0, 0), "{:?}", new.errors);
    assert!(kept.failed.abs_diff(kept.count / 2) <= 4, "{} of {}", kept.failed, kept.count);
}

#[test]
fn another_status_than_200_and_no_server_at_all_are_failed_requests() {
    let unavailable =
        server(|stream, _| stream.write_all(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n").is_ok());
    // It has a port, so that no other test gets that, and does not listen.
    let silent = TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let nobody = silent.local_addr().unwrap();
    for (addresses, why) in
        [(&[unavailable][..], "503"), (&[nobody], "refused"), (&[], "no address to send it to")]
    {
        for requests in asked(addresses) {
            assert_eq!((requests.failed, requests.again), (requests.count, 0), "{:?}", requests.errors);
            assert!(requests.errors.keys().all(|error| error.contains(why)), "{why}: {:?}", requests.errors);
        }
    }
}

#[test]
fn one_of_two_servers_that_fails_is_half_of_the_requests() {
    let works = server(|stream, _| answer(stream));
    let fails = server(|_, _| false);
    for requests in asked(&[works, fails]) {
        let half = requests.count / 2;
        assert!(requests.failed.abs_diff(half) <= 4, "{} of {}", requests.failed, requests.count);
    }
}

#[test]
fn a_time_without_answers_is_the_gap() {
    const PAUSE: Duration = Duration::from_millis(300);
    let (answers, waiting, pausing) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let address = server(move |stream, _| {
        if answers.fetch_add(1, Ordering::SeqCst) == ENOUGH / 2 {
            pausing.store(true, Ordering::SeqCst);
            // Then each sender has read its last answer: none is on its way when the pause begins.
            eventually("all senders wait", || (waiting.load(Ordering::SeqCst) >= SENDERS - 1).then_some(()));
            thread::sleep(PAUSE);
            pausing.store(false, Ordering::SeqCst);
        } else if pausing.load(Ordering::SeqCst) {
            waiting.fetch_add(1, Ordering::SeqCst);
            while pausing.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        answer(stream)
    });
    let figures = asked(&[address]);
    let gaps = figures.each_ref().map(|requests| requests.during.gap);
    assert!(gaps.iter().all(|gap| *gap >= PAUSE), "{gaps:?}");
    assert!(figures.iter().all(|requests| requests.failed == 0));
}
