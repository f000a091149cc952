//! A thread that closes idle openings.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::service::NfsService;

/// How often idle openings are looked for.
const INTERVAL: Duration = Duration::from_secs(1);

/// Closes a service's idle openings, with a thread of its own, until it is dropped.
pub struct IdleCloser {
    /// Dropped to end the thread.
    running: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IdleCloser {
    /// Begins.
    ///
    /// # Errors
    /// There is no thread.
    pub fn start(service: &Arc<NfsService>) -> io::Result<Self> {
        let (running, ended) = mpsc::channel();
        let service = service.clone();
        let close_idle = move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                service.close_idle();
            }
        };
        let thread = thread::Builder::new().name("nfs-tidy".into()).spawn(close_idle)?;
        Ok(Self { running: Some(running), thread: Some(thread) })
    }
}

impl Drop for IdleCloser {
    fn drop(&mut self) {
        drop(self.running.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("idle-file thread panicked");
        }
    }
}
