//! A device that does nothing, its server, and the log of this process.

use std::borrow::Cow;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tombolo_host_vhost::{Chain, Device, QueueIndex, Server, Settings};

struct Silent;

impl Device for Silent {
    fn name(&self) -> &str {
        "silent"
    }

    fn config(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }

    fn queue_count(&self) -> u16 {
        2
    }

    fn handle(&self, _queue: QueueIndex, chain: Chain) {
        chain.complete(0);
    }
}

/// Serves the silent device at `socket`.
pub fn serve(socket: &Path) -> Server {
    let make = |_| {
        let device: Arc<dyn Device> = Arc::new(Silent);
        Ok(device)
    };
    Server::start(UnixListener::bind(socket).unwrap(), Settings::default(), Box::new(make)).unwrap()
}

/// The log, in memory.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Takes the log of this process, which can be done once.
    pub fn begin() -> Self {
        let log = Self::default();
        let writer = log.clone();
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
        log
    }

    /// The lines so far that contain `part`.
    pub fn lines(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
