//! A request of HTTP over a connection that exists. Sets no time limit: the caller does.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

/// Status code and body of the answer to a GET; `None` if the connection ends before.
pub(crate) fn get(mut stream: TcpStream, path: &str) -> Option<(u16, String)> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
