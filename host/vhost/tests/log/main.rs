//! Log output of a device that does nothing; one test at a time.

mod broken_queue;
mod memory_not_shared;

use std::borrow::Cow;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use tombolo_host_vhost::{Chain, Device, QueueIndex, Server, Settings};
use tracing_subscriber::fmt::MakeWriter;

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
    serve_at(UnixListener::bind(socket).unwrap())
}

/// Serves the silent device at a listening socket.
pub fn serve_at(listener: UnixListener) -> Server {
    let make = |_| {
        let device: Arc<dyn Device> = Arc::new(Silent);
        Ok(device)
    };
    Server::start(listener, Settings::default(), Box::new(make)).unwrap()
}

/// Log output since a test began.
static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn lines() -> MutexGuard<'static, Vec<u8>> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The log, owned by one test at a time.
pub struct Log(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Log {
    /// Acquires the log and clears it.
    pub fn begin() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        static STARTED: Once = Once::new();
        let log = Self(ALONE.lock().unwrap_or_else(PoisonError::into_inner));
        STARTED.call_once(|| {
            tracing_subscriber::fmt().with_ansi(false).with_writer(|| LINES.make_writer()).init()
        });
        lines().clear();
        log
    }

    /// Returns the lines so far that contain `part`.
    pub fn lines(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(lines().clone()).unwrap();
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}
