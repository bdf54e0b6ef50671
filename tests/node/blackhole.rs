//! A registry that never answers.

use std::{
    io::Read,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::json;

use crate::support::wait::eventually;

/// A registry that accepts every connection and never answers.
pub(crate) struct Blackhole {
    port: u16,
    taken: Arc<Mutex<Vec<TcpStream>>>,
}

impl Blackhole {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let taken = Arc::new(Mutex::new(Vec::new()));
        let streams = Arc::clone(&taken);
        // The thread ends with the process.
        thread::spawn(move || listener.incoming().for_each(|s| streams.lock().unwrap().push(s.unwrap())));
        Self { port, taken }
    }

    /// An image whose pull never ends.
    pub(crate) fn image(&self) -> String {
        format!("127.0.0.1:{}/slow:v1", self.port)
    }

    /// A request that swaps `app` to an image of this registry.
    pub(crate) fn swap(&self, id: &str, deadline: u32) -> String {
        let image = self.image();
        json!({"id": id, "deadlineSeconds": deadline, "containers": [{"name": "app", "image": image}]})
            .to_string()
    }

    /// The number of hanging pulls.
    pub(crate) fn open(&self) -> usize {
        let is_open = |stream: &&TcpStream| {
            stream.set_nonblocking(true).unwrap();
            // The client's data must be read first; only after it does the end of the connection show.
            loop {
                match (&mut &**stream).read(&mut [0; 4096]) {
                    Ok(0) => return false,
                    Ok(_) => {}
                    Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
                }
            }
        };
        self.taken.lock().unwrap().iter().filter(is_open).count()
    }

    /// Waits until this many pulls hang.
    pub(crate) fn await_open(&self, count: usize) {
        eventually(&format!("{count} pulls to hang"), || (self.open() == count).then_some(()));
    }
}

impl Drop for Blackhole {
    fn drop(&mut self) {
        for stream in self.taken.lock().unwrap().iter() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
