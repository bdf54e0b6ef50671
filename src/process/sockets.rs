//! `inplace sockets`: counts the listening TCP sockets of the network namespace in which it runs, by port. It runs inside
//! the pod, in the container of a fence, because a node agent without privileges cannot read another namespace.

use std::collections::BTreeMap;
use std::io::{self, Write};

/// One file for each IP version. A kernel without IPv6 has no second one.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];
/// The state of a listening socket in these tables (`TCP_LISTEN` in the kernel's `tcp_states.h`).
const LISTEN: &str = "0A";

/// Count the listening TCP sockets of this network namespace: a line `PORT COUNT` for each port
#[derive(Debug, clap::Args)]
pub struct SocketsCommand {}

impl SocketsCommand {
    /// Prints the counts.
    ///
    /// # Errors
    /// When the table of the first IP version cannot be read, or nothing can be printed.
    pub fn run(self) -> io::Result<()> {
        let Self {} = self;
        let mut counts = BTreeMap::new();
        for (index, table) in TABLES.into_iter().enumerate() {
            match std::fs::read_to_string(table) {
                Ok(text) => count(&text, &mut counts),
                Err(error) if index > 0 && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut out = io::stdout().lock();
        counts.iter().try_for_each(|(port, count)| writeln!(out, "{port} {count}"))
    }
}

/// Adds the listening sockets of one table. Each line has the local address as `HEX:PORT` in its second column and the
/// state in its fourth.
fn count(table: &str, counts: &mut BTreeMap<u16, u32>) {
    for line in table.lines() {
        let mut columns = line.split_whitespace().skip(1);
        let (Some(local), Some(state)) = (columns.next(), columns.nth(1)) else { continue };
        let port = local.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
        if let Some(port) = port.filter(|_| state == LISTEN) {
            *counts.entry(port).or_default() += 1;
        }
    }
}

/// Reads what the command prints; `None` for any other text.
pub fn parse(text: &str) -> Option<BTreeMap<u16, u32>> {
    let line = |line: &str| {
        let (port, count) = line.split_once(' ')?;
        Some((port.parse().ok()?, count.parse().ok()?))
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33033 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33034 1 0 100 0 0 10 0
   2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33035 1 0 100 0 0 10 0
   3: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 33036 1 0 20 4 30 10 -1
   4: cut
";

    #[test]
    fn only_listening_sockets_count_each_by_itself() {
        let mut counts = BTreeMap::new();
        count(TABLE, &mut counts);
        let version_6 = "h\n 0: 00000000000000000000000000000000:1F90 0:0 0A x\n 1: 0:01BB 0:0 0A x\n";
        count(version_6, &mut counts);
        assert_eq!(counts, BTreeMap::from([(80, 1), (443, 1), (8080, 3)]));
    }

    #[test]
    fn what_is_printed_is_read_and_nothing_else() {
        assert_eq!(parse("80 1\n8080 3\n"), Some(BTreeMap::from([(80, 1), (8080, 3)])));
        assert_eq!(parse(""), Some(BTreeMap::new()));
        for text in ["80", "80 x", "http 1", "70000 1", "80 1 2", "error: no such file"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
