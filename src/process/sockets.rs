//! `inplace sockets`: counts the sockets that listen in the network namespace in which it runs, by port. It runs inside
//! the pod, in the container of a fence, because a node agent without privileges cannot read another namespace.
//!
//! Does not tell to which process a socket belongs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};

mod listening;

/// The tables of the kernel, one for each IP version. A kernel without IPv6 lacks the second one.
const TCP_TABLES: [Table; 2] = [
    Table { path: "/proc/net/tcp", state: LISTEN, suffix: "" },
    Table { path: "/proc/net/tcp6", state: LISTEN, suffix: "" },
];
const UDP_TABLES: [Table; 2] = [
    Table { path: "/proc/net/udp", state: UNCONNECTED, suffix: "/udp" },
    Table { path: "/proc/net/udp6", state: UNCONNECTED, suffix: "/udp" },
];
/// The state of a listening TCP socket in these tables (`TCP_LISTEN` in the kernel's `tcp_states.h`).
const LISTEN: &str = "0A";
/// The state of a UDP socket that receives from every address (`TCP_CLOSE` in `tcp_states.h`).
const UNCONNECTED: &str = "07";

struct Table {
    path: &'static str,
    /// The state of the sockets that count.
    state: &'static str,
    /// What follows the number of a port in the output.
    suffix: &'static str,
}

/// The number of sockets by suffix and port.
type Counts = BTreeMap<(&'static str, u16), u32>;

/// Count the listening sockets of this network namespace: a line `PORT COUNT` for each TCP port and `PORT/udp COUNT` for
/// each UDP port
#[derive(Debug, clap::Args)]
pub struct SocketsCommand {}

impl SocketsCommand {
    /// Prints the counts.
    ///
    /// # Errors
    /// When the table of the first IP version cannot be read, or nothing can be printed.
    pub fn run(self) -> io::Result<()> {
        let Self {} = self;
        let mut counts = Counts::new();
        if let Ok(ports) = listening::tcp_ports() {
            for port in ports {
                *counts.entry(("", port)).or_default() += 1;
            }
        } else {
            read(TCP_TABLES, &mut counts)?;
        }
        read(UDP_TABLES, &mut counts)?;
        let mut out = io::stdout().lock();
        counts.iter().try_for_each(|((suffix, port), count)| writeln!(out, "{port}{suffix} {count}"))
    }
}

/// Adds the sockets of the tables of both IP versions.
fn read(tables: [Table; 2], counts: &mut Counts) -> io::Result<()> {
    for table in tables {
        match File::open(table.path) {
            Ok(file) => count(&table, BufReader::new(file), counts)?,
            Err(error) if table.path.ends_with('6') && error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Adds the sockets of one table. Each line has the local address as `HEX:PORT` in its second column and the state in its
/// fourth. A table has a line for each connection too, so that it is not read as a whole.
fn count(table: &Table, mut lines: impl BufRead, counts: &mut Counts) -> io::Result<()> {
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let mut columns = line.split_whitespace().skip(1);
        if let (Some(local), Some(state)) = (columns.next(), columns.nth(1)) {
            let port = local.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            if let Some(port) = port.filter(|_| state == table.state) {
                *counts.entry((table.suffix, port)).or_default() += 1;
            }
        }
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33033 1 0 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33034 1 0 100 0 0 10 0
   2: 0100007F:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 33035 1 0 100 0 0 10 0
   3: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 33036 1 0 20 4 30 10 -1
   4: cut
";
    const UDP: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 00000000:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 33040 2 0000000000000000 0
  101: 0100007F:8D11 0100007F:0035 01 00000000:00000000 00:00000000 00000000     0        0 33041 2 0000000000000000 0
";

    #[test]
    fn only_sockets_that_receive_from_every_address_count_each_by_itself() {
        let mut counts = Counts::new();
        let ([tcp, tcp6], [udp, _]) = (TCP_TABLES, UDP_TABLES);
        let version_6 = "h\n 0: 00000000000000000000000000000000:1F90 0:0 0A x\n 1: 0:01BB 0:0 0A x\n";
        for (table, text) in [(tcp, TCP), (tcp6, version_6), (udp, UDP)] {
            count(&table, text.as_bytes(), &mut counts).unwrap();
        }
        let expected = [(("", 80), 1), (("", 443), 1), (("", 8080), 3), (("/udp", 8080), 1)];
        assert_eq!(counts, Counts::from(expected));
    }
}
