//! `tombolo cp`: copies files and trees.

mod progress;
mod report;
mod sink;
mod source;
mod target;

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use libtombolo::copy::{Copier, Existing, From, Holes, Options, Tally};
use tombolo_core::Stability;

use crate::cli::LogArgs;
use crate::failure::{Failure, OrCannot, Outcome};
use crate::location::{End, Location};
use crate::progress::{Screen, Style};

use super::open_path::{OpenPath, Opener, WaitArgs};
use super::problem::Failures;
use super::shown::size;
use super::stop;
use progress::Progress;
use report::Report;
use sink::Sink;
use source::Source;
use target::{NameRules, Target};

/// Copy files and trees between NFS servers and this host.
///
/// Many files, and many pieces of a large file, are copied concurrently. Files larger than 1 MiB, and files
/// that replace others, are written as `.NAME.tombolo-part` and renamed when complete, so that no program
/// sees a partial file; a replaced file becomes a new one. A DST that is a symbolic link is followed;
/// symbolic links within an existing target tree are replaced. A local pipe or device as DST is written to;
/// files never replace pipes and devices within a tree.
///
/// After an interruption, the same command with --resume continues: partial files are continued after the
/// part that is known to be complete, and files with the size and time of their source are skipped (so copy
/// with -p from the start).
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Copy directories recursively; symbolic links, pipes and devices are recreated.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// Same as -r -p.
    #[arg(short, long)]
    archive: bool,
    /// Preserve modes, times and hard links, and owners if run by root.
    #[arg(short, long)]
    preserve: bool,
    /// Continue an interrupted copy.
    #[arg(long, conflicts_with = "no_clobber")]
    resume: bool,
    /// Do not overwrite existing files.
    #[arg(short, long)]
    no_clobber: bool,
    /// Overwrite existing files (the default).
    #[arg(short, long, conflicts_with = "no_clobber")]
    force: bool,
    /// Make holes of blocks of zeroes. Holes that the source's file system reports are always preserved.
    #[arg(long)]
    sparse: bool,
    /// Treat DST as the copy's name, not as a directory to copy into.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Replace whatever DST names: do not follow a link, do not write into a pipe or device.
    #[arg(skip)]
    replaces_name: bool,
    /// Number of files copied concurrently.
    #[arg(short, long, value_name = "N", default_value_t = JOBS, value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: u16,
    /// Report progress every 10 seconds if there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    /// Files to copy: nfs://HOST[:PORT]/NAME[/PATH], nfs+ssh://HOST/PATH, shm:SOCKET/NAME[/PATH], dir:PATH,
    /// or a path.
    #[arg(required = true, value_name = "SRC", value_parser = Location::word_parser())]
    sources: Vec<Location>,
    /// Destination: a directory to copy into, or a name for the copy.
    #[arg(required = true, value_name = "DST", value_parser = Location::word_parser())]
    target: Location,
}

const JOBS: u16 = 64;

const EXAMPLES: &str = "\
Examples:
  tombolo cp nfs://server/export/disk.img .
  tombolo cp -r -p src nfs://server:20049/backup
  tombolo cp -r -p --resume src nfs://server:20049/backup
  tombolo cp -r nfs://one/tree nfs://other/tree";

impl CpArgs {
    /// Returns the arguments of `cp -a -T SOURCE TARGET`, with an existing target treated as by rename(2).
    pub fn to_name(source: Location, target: Location, wait: WaitArgs) -> Self {
        Self {
            wait,
            recursive: true,
            archive: true,
            preserve: true,
            resume: false,
            no_clobber: false,
            force: false,
            sparse: false,
            no_target_directory: true,
            replaces_name: true,
            jobs: JOBS,
            progress: false,
            sources: vec![source],
            target,
        }
    }

    /// Copies as much as possible. Errors are printed to standard error, one line each; a summary to standard
    /// output.
    pub fn run(&self, log: LogArgs) -> Outcome {
        let mut opener = Opener::for_copies().limited(self.wait);
        let mut failures = Failures::default();
        let mut sources = Vec::new();
        for source in &self.sources {
            sources.extend(failures.told(Source::find(source, &mut opener, self.is_recursive())));
        }
        if let Some(sink) = Sink::of(&self.target).filter(|_| !self.replaces_name) {
            failures.outcome()?;
            return if self.no_clobber { Ok(()) } else { sink.write(&sources) };
        }
        let to = self.open_target(&mut opener, &sources)?;
        let screen = Arc::new(Screen::new(Style::for_user(log.quiet > 0, self.progress)));
        let report = Arc::new(Report::new(screen.clone(), to.tree.clone()));
        let copier = Copier::start(self.options(to.is_remote, log.verbose > 0), report.clone())
            .or_cannot("start a thread")?;
        let rules = NameRules {
            is_name: self.no_target_directory,
            replaces_name: self.replaces_name,
            resume: self.resume,
        };
        let target = Target::of(to, &sources, rules)?;
        target.must_take(self.sources.len())?;
        let stopper = copier.stopper();
        let stopping = report.clone();
        stop::on_signal(move |signal| {
            stopper.stop();
            stopping.stopping(signal);
        })
        .or_cannot("watch for signals")?;
        let start = Instant::now();
        let mut progress = Progress::start(&screen, copier.watcher(), opener.watched());
        for Source { place, node, name, .. } in sources {
            progress.measure(node.clone());
            let from = From { node, path: place.label };
            match target.name_for(name.as_ref()) {
                Some(to) => copier.add(from, to),
                None => copier.add_contents(from, target.dir.clone(), target.path.clone()),
            }
        }
        let tally = copier.finish();
        progress.finish();
        report.sum_up();
        if log.quiet == 0 {
            super::ls::print(&summary(&tally, start.elapsed().as_secs_f64()))?;
        }
        match report.stopped_by() {
            Some(signal) => Err(Failure::stopped(signal)),
            None if tally.failed > 0 => Err(Failure::silent()),
            None => failures.outcome(),
        }
    }

    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Opens the tree of the target. If the target may be the name of the copy, the tree includes its
    /// parent directory.
    fn open_target(&self, opener: &mut Opener, sources: &[Source]) -> Result<OpenPath, Failure> {
        if self.replaces_name {
            return opener.open(&self.target, End::Name);
        }
        let Location::Dir(path) = &self.target else { return opener.open(&self.target, End::Target) };
        let is_link_copied = matches!(sources, [source] if source.is_link());
        let may_be_name = self.no_target_directory || self.resume;
        match path.canonicalize() {
            Ok(found) if found.is_dir() && may_be_name => {
                Ok(opener.open(&Location::Dir(found), End::Name)?.called(&self.target))
            }
            Ok(found) if !found.is_dir() && is_link_copied => opener.open(&self.target, End::Name),
            _ => opener.open(&self.target, End::Target),
        }
    }

    fn options(&self, to_server: bool, tell_each: bool) -> Options {
        Options {
            jobs: usize::from(self.jobs),
            recursive: self.is_recursive(),
            preserve: self.preserve || self.archive,
            tell_each,
            existing: if self.no_clobber { Existing::Keep } else { Existing::Replace },
            resume: self.resume,
            holes: if self.sparse { Holes::Make } else { Holes::AsTheyAre },
            // FILE_SYNC writes save the COMMIT that a client sends when it closes a file: one round trip
            // instead of two.
            small_files: if to_server { Stability::FileSync } else { Stability::Unstable },
            ..Options::default()
        }
    }
}

fn summary(tally: &Tally, seconds: f64) -> String {
    let mut parts = vec![counted(tally.files, "file", "files")];
    for (count, one, many) in [
        (tally.directories, "directory", "directories"),
        (tally.others, "link or special file", "links and special files"),
    ] {
        if count > 0 {
            parts.push(counted(count, one, many));
        }
    }
    let bytes = tally.written_bytes;
    let rate = (bytes as f64 / seconds.max(0.001)) as u64;
    let mut text =
        format!("copied {}, {} in {seconds:.1} s ({}/s)", parts.join(", "), size(bytes), size(rate));
    for (count, what) in [(tally.skipped, "skipped"), (tally.failed, "failed")] {
        if count > 0 {
            text = format!("{text}; {count} {what}");
        }
    }
    text
}

fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_reads_like_a_sentence() {
        let tally = Tally { files: 1, directories: 2, written_bytes: 3 << 20, failed: 1, ..Tally::default() };
        assert_eq!(
            summary(&tally, 1.5),
            "copied 1 file, 2 directories, 3.0 MiB in 1.5 s (2.0 MiB/s); 1 failed"
        );
        assert_eq!(size(1023), "1023 bytes");
        assert_eq!(size(u64::MAX), "16.0 EiB");
    }
}
