//! Progress of a command: a bar on a terminal, or lines.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Nothing,
    Bar,
    Lines,
}

impl Style {
    /// Returns the style of a command: nothing if it is quiet, a bar on a terminal, otherwise lines if
    /// requested.
    pub fn for_user(is_quiet: bool, wants_lines: bool) -> Self {
        match (is_quiet, io::stderr().is_terminal(), wants_lines) {
            (true, ..) => Self::Nothing,
            (false, true, _) => Self::Bar,
            (false, false, true) => Self::Lines,
            (false, false, false) => Self::Nothing,
        }
    }
}

const BAR_EVERY: Duration = Duration::from_millis(100);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of a running command, in the two forms that a [`Screen`] shows.
pub trait Shown: Send + Sync {
    /// Sets length, position and message of the bar.
    fn draw(&self, bar: &ProgressBar);
    fn line(&self) -> String;
}

/// Standard error, with or without a progress bar.
pub struct Screen {
    style: Style,
    bar: Option<ProgressBar>,
}

impl Screen {
    pub fn new(style: Style) -> Self {
        Self { style, bar: (style == Style::Bar).then(bar) }
    }

    pub fn has_bar(&self) -> bool {
        self.bar.is_some()
    }

    pub fn say(&self, text: &str) {
        // Nothing can be reported with standard error closed.
        self.around_bar(|| drop(writeln!(io::stderr(), "tombolo: {text}")));
    }

    /// Calls `print`, with the bar hidden meanwhile.
    pub fn around_bar(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// Creates an empty bar of bytes, invisible without a terminal.
pub fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = "{bar:24} {bytes}/{total_bytes}  {msg}  {binary_bytes_per_sec}  {eta} left";
    // With a malformed template the bar would have indicatif's default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Display of a command's progress by a thread of its own, until dropped.
pub struct Progress {
    screen: Arc<Screen>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub fn start(screen: &Arc<Screen>, shown: Arc<dyn Shown>) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = (screen.style != Style::Nothing).then(|| {
            let (screen, is_over) = (screen.clone(), is_over.clone());
            let show = move || show(&screen, &*shown, &is_over);
            std::thread::Builder::new().name("progress".into()).spawn(show)
        });
        // Without the thread only the progress is lost.
        Self { screen: screen.clone(), is_over, thread: thread.and_then(Result::ok) }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
        if let Some(bar) = &self.screen.bar {
            bar.finish_and_clear();
        }
    }
}

fn show(screen: &Screen, shown: &dyn Shown, is_over: &AtomicBool) {
    let every = if screen.has_bar() { BAR_EVERY } else { LINE_EVERY };
    let mut next = Instant::now() + every;
    while !is_over.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now < next {
            std::thread::park_timeout(next - now);
            continue;
        }
        next = now + every;
        match &screen.bar {
            Some(bar) => shown.draw(bar),
            None => screen.say(&shown.line()),
        }
    }
}
