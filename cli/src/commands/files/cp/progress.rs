//! Progress of a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use indicatif::ProgressBar;
use libtombolo::copy::{Tally, Watcher, measure};
use libtombolo::{Node, block_on};

use super::super::open_path::Watched;
use super::super::shown::size;
use crate::progress::{self, Screen, Shown};

/// Display of a copy's progress, which measures the total size concurrently.
pub struct Progress {
    shown: Option<progress::Progress>,
    shared: Arc<CopyProgress>,
    measurers: Vec<JoinHandle<()>>,
    has_bar: bool,
}

struct CopyProgress {
    watcher: Watcher,
    servers: Vec<Watched>,
    /// Total size of all sources measured so far.
    total_bytes: AtomicU64,
    /// Number of sources whose size is still being measured.
    measuring: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    pub fn start(screen: &Arc<Screen>, watcher: Watcher, servers: Vec<Watched>) -> Self {
        let shared = Arc::new(CopyProgress {
            watcher,
            servers,
            total_bytes: AtomicU64::new(0),
            measuring: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let shown = Some(progress::Progress::start(screen, shared.clone()));
        Self { shown, shared, measurers: Vec::new(), has_bar: screen.has_bar() }
    }

    /// Measures a source in the background, if there is a bar.
    pub fn measure(&mut self, source: Node) {
        if !self.has_bar {
            return;
        }
        let shared = self.shared.clone();
        shared.measuring.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("measure".into()).spawn(move || {
            let add = |bytes| {
                shared.total_bytes.fetch_add(bytes, Ordering::Relaxed);
                !shared.is_over.load(Ordering::Relaxed)
            };
            // Read errors are reported by the copy.
            let _ = block_on(measure(&source, add));
            shared.measuring.fetch_sub(1, Ordering::Relaxed);
        });
        self.measurers.extend(thread);
    }

    pub fn finish(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shown = None;
        for thread in self.measurers.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shown for CopyProgress {
    fn draw(&self, bar: &ProgressBar) {
        let tally = self.watcher.tally();
        let known = self.total_bytes.load(Ordering::Relaxed).max(tally.met_bytes);
        bar.set_length(known.max(tally.size_bytes));
        bar.set_position(tally.size_bytes);
        if let Some(server) = self.servers.iter().find(|server| server.is_unresponsive()) {
            bar.set_message(format!("server {} not responding, still trying", server.host));
            return;
        }
        let more = if self.measuring.load(Ordering::Relaxed) > 0 { "+" } else { "" };
        bar.set_message(format!("{} files{more}", tally.files));
    }

    fn line(&self) -> String {
        let Tally { files, size_bytes, met_bytes, failed, .. } = self.watcher.tally();
        let text = format!("{files} files, {} of {} found so far", size(size_bytes), size(met_bytes));
        if failed > 0 { format!("{text}, {failed} failed") } else { text }
    }
}
