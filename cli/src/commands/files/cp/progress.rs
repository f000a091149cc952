//! How far a copy is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use libtombolo::copy::{Tally, Watcher, measure};
use libtombolo::{Node, block_on};

use super::super::open_path::Watched;
use super::super::shown::size;
use super::report::Report;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Nothing,
    Bar,
    Lines,
}

impl Style {
    /// A bar on a terminal, lines where they are asked for.
    pub fn for_user(is_quiet: bool, wants_lines: bool, is_terminal: bool) -> Self {
        match (is_quiet, is_terminal, wants_lines) {
            (true, ..) => Self::Nothing,
            (false, true, _) => Self::Bar,
            (false, false, true) => Self::Lines,
            (false, false, false) => Self::Nothing,
        }
    }
}

const BAR_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Shows how far a copy is, from a thread of its own.
pub struct Progress {
    shared: Arc<Shared>,
    shower: Option<JoinHandle<()>>,
    measurers: Vec<JoinHandle<()>>,
}

struct Shared {
    style: Style,
    report: Arc<Report>,
    watcher: Watcher,
    servers: Vec<Watched>,
    /// What all sources hold, as far as that is known.
    total_bytes: AtomicU64,
    measuring: AtomicU64,
    is_over: AtomicBool,
}

/// A bar that nothing is on yet.
pub fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let known = "{bar:24} {bytes}/{total_bytes}  {msg}  {binary_bytes_per_sec}  {eta} left";
    // A template that is wrong would be seen by the first test; without one the bar is a plain one.
    if let Ok(style) = ProgressStyle::with_template(known) {
        bar.set_style(style);
    }
    bar
}

impl Progress {
    pub fn start(style: Style, report: Arc<Report>, watcher: Watcher, servers: Vec<Watched>) -> Self {
        let shared = Arc::new(Shared {
            style,
            report,
            watcher,
            servers,
            total_bytes: AtomicU64::new(0),
            measuring: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        });
        let shower = (style != Style::Nothing).then(|| {
            let shared = shared.clone();
            std::thread::Builder::new().name("progress".into()).spawn(move || shared.show())
        });
        // Without the thread nothing is shown, and everything copied.
        Self { shared, shower: shower.and_then(Result::ok), measurers: Vec::new() }
    }

    /// Finds out how much there is to copy, beside the copying.
    pub fn measure(&mut self, source: Node) {
        if self.shared.style != Style::Bar {
            return;
        }
        let shared = self.shared.clone();
        shared.measuring.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::Builder::new().name("measure".into()).spawn(move || {
            let add = |bytes| {
                shared.total_bytes.fetch_add(bytes, Ordering::Relaxed);
                !shared.is_over.load(Ordering::Relaxed)
            };
            // What cannot be read is reported by the copy.
            let _ = block_on(measure(&source, add));
            shared.measuring.fetch_sub(1, Ordering::Relaxed);
        });
        self.measurers.extend(thread);
    }

    pub fn finish(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.shower.take().into_iter().chain(self.measurers.drain(..)) {
            thread.thread().unpark();
            let _ = thread.join();
        }
        if let Some(bar) = self.shared.report.bar() {
            bar.finish_and_clear();
        }
    }
}

impl Shared {
    fn show(&self) {
        let every = if self.style == Style::Bar { BAR_EVERY } else { LINE_EVERY };
        let mut next = Instant::now() + every;
        while !self.is_over.load(Ordering::Relaxed) {
            let now = Instant::now();
            if now < next {
                std::thread::park_timeout(next - now);
                continue;
            }
            next = now + every;
            let tally = self.watcher.tally();
            match self.report.bar() {
                Some(bar) => self.draw(bar, &tally),
                None => self.report.say(&line(&tally)),
            }
        }
    }

    fn draw(&self, bar: &ProgressBar, tally: &Tally) {
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
}

fn line(tally: &Tally) -> String {
    let mut text =
        format!("{} files, {} of {} met so far", tally.files, size(tally.size_bytes), size(tally.met_bytes));
    if tally.failed > 0 {
        text = format!("{text}, {} failed", tally.failed);
    }
    text
}
