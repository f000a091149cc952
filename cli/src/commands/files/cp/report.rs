//! Messages of a copy to its user.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use libtombolo::Tree;
use libtombolo::copy::{Event, Failure as CopyFailure, Observer, Step};
use tombolo_core::lock;
use tombolo_host_runtime::signals::StopSignal;

use crate::failure::Failure;

use super::super::problem::{self, SQUASHED};
use super::super::shown::{self, size};
use crate::progress::Screen;

/// Maximum number of partial files listed.
const PARTS_NAMED_MAX: usize = 10;

/// Printer of failures as they occur, around the progress bar.
pub struct Report {
    screen: Arc<Screen>,
    /// Target tree, whose server may map the user to another.
    to: Tree,
    stopped: OnceLock<StopSignal>,
    /// Path and size in bytes of the first partial files that were retained.
    parts: Mutex<VecDeque<(Vec<u8>, u64)>>,
    /// Number of all partial files that were retained.
    parts_count: AtomicU64,
}

impl Report {
    pub fn new(screen: Arc<Screen>, to: Tree) -> Self {
        Self { screen, to, stopped: OnceLock::new(), parts: Mutex::default(), parts_count: AtomicU64::new(0) }
    }

    pub fn print(&self, failure: &Failure) {
        self.screen.around_bar(|| failure.print());
    }

    pub fn stopping(&self, signal: StopSignal) {
        let _ = self.stopped.set(signal);
        self.screen.say(&format!("{signal}: finishing outstanding requests; repeat to end at once"));
    }

    pub fn stopped_by(&self) -> Option<StopSignal> {
        self.stopped.get().copied()
    }

    /// Prints which partial files were retained for `--resume`, and how to continue.
    pub fn sum_up(&self) {
        let parts = lock(&self.parts);
        for (path, size_bytes) in parts.iter() {
            self.screen.say(&format!(
                "{} is incomplete: {} kept for --resume",
                shown::name(path),
                size(*size_bytes)
            ));
        }
        let unnamed = self.parts_count.load(Ordering::Relaxed).saturating_sub(parts.len() as u64);
        if unnamed > 0 {
            self.screen.say(&format!("and {unnamed} more incomplete files"));
        }
        if self.stopped_by().is_some() {
            self.screen.say("interrupted: continue with the same command and --resume");
        } else if !parts.is_empty() {
            self.screen.say("continue with the same command and --resume");
        }
    }

    fn explained(&self, failure: &CopyFailure) -> Failure {
        let (from, to) = (shown::name(&failure.from), shown::name(&failure.to));
        let copying = format!("copy {from}");
        let error = &failure.error;
        match failure.step {
            Step::Read => Failure::cannot(format_args!("read {from}"), error),
            Step::Make => problem::cannot(format_args!("create {to}"), error, &self.to),
            Step::Write => problem::cannot(format_args!("write {to}"), error, &self.to),
            Step::Rename => problem::cannot(format_args!("rename {to}"), error, &self.to),
            Step::Attributes => problem::cannot(format_args!("set mode and times of {to}"), error, &self.to),
            Step::Owner if self.to.realm() == "local" => {
                Failure::cannot(format_args!("set owners, first of {to}"), error)
                    .remedy("everything else is copied")
            }
            Step::Owner => Failure::cannot(format_args!("set owners, first of {to}"), error).remedy(SQUASHED),
            Step::OmitDirectory => Failure::cannot(copying, "it is a directory").remedy("use -r"),
            Step::OmitSpecial => {
                Failure::cannot(copying, "it is a pipe, socket or device").remedy("use -r to recreate it")
            }
            Step::IntoItself => {
                Failure::cannot(copying, "the copy lies within it").remedy("everything else is copied")
            }
            Step::SameFile => Failure::cannot(copying, format!("{to} is the same file")),
            Step::OtherKind => {
                Failure::cannot(format_args!("copy {from} to {to}"), "one is a directory, the other is not")
                    .remedy("remove it first")
            }
            Step::OntoSpecial => Failure::cannot(copying, format!("{to} is a pipe, socket or device"))
                .remedy("remove it first"),
            Step::Twice => Failure::cannot(copying, format!("another source is also copied to {to}")),
            Step::Changed => Failure::cannot(copying, "it changed while the copy was resumed")
                .remedy("copy it again from the start"),
        }
    }
}

impl Observer for Report {
    fn see(&self, event: Event) {
        match event {
            Event::Failed(failure) => self.print(&self.explained(&failure)),
            Event::Copied { from, to } => {
                let line = format!("{} -> {}", shown::name(&from), shown::name(&to));
                // Nothing can be reported with the output closed.
                self.screen.around_bar(|| drop(writeln!(io::stdout(), "{line}")));
            }
            Event::PartKept { to, size_bytes } => {
                self.parts_count.fetch_add(1, Ordering::Relaxed);
                let mut parts = lock(&self.parts);
                if parts.len() < PARTS_NAMED_MAX {
                    parts.push_back((to, size_bytes));
                }
            }
        }
    }
}
