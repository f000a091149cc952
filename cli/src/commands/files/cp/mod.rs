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
use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};
use crate::progress::{Screen, Style};

use super::open_path::{OpenPath, Opener, WaitArgs};
use super::shown::size;
use super::stop;
use progress::Progress;
use report::Report;
use sink::Sink;
use source::Source;
use target::{NameRules, Target};

/// Copy files and trees between NFS servers and this host, in any direction, without a mount.
///
/// Many files are under way at once, and many pieces of a large one. What replaces a file, and what is larger
/// than 1 MiB, arrives as `.NAME.tombolo-part` and is renamed when it is complete, so that no program sees
/// half of it; a file that is replaced becomes a new one. A DST that is a link stands for what it leads to;
/// links within a tree that is copied into are replaced. A pipe or device of this host as DST is written
/// into; within a tree they are never replaced by files.
///
/// After an interruption the same command with --resume goes on: parts are continued where they are known to
/// be complete, and files that are there with the size and time of their source are left out (copy with -p
/// from the start, so that times are the source's).
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    #[command(flatten)]
    wait: WaitArgs,
    /// Copy directories and what is in them; links, pipes and devices become what they are.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
    /// The same as -r -p.
    #[arg(short, long)]
    archive: bool,
    /// Keep modes, times, names of one file, and as root owners.
    #[arg(short, long)]
    preserve: bool,
    /// Go on with what an earlier copy left.
    #[arg(long, conflicts_with = "no_clobber")]
    resume: bool,
    /// Leave files that exist.
    #[arg(short, long)]
    no_clobber: bool,
    /// Replace files that exist, which is done anyway.
    #[arg(short, long, conflicts_with = "no_clobber")]
    force: bool,
    /// Leave holes for blocks of zeros. Holes of the source are kept where its file system tells of them,
    /// also without this.
    #[arg(long)]
    sparse: bool,
    /// DST is the copy's name, not a directory to copy into.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// What DST's name stands for is replaced: no link is followed there, nothing is written into.
    #[arg(skip)]
    replaces_name: bool,
    /// Files under way at once.
    #[arg(short, long, value_name = "N", default_value_t = JOBS, value_parser = clap::value_parser!(u16).range(1..=4096))]
    jobs: u16,
    /// Tell how far it is every 10 seconds, where there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    /// What to copy: nfs://HOST[:PORT]/NAME[/PATH], dir:PATH, or a path.
    #[arg(required = true, value_name = "SRC", value_parser = Location::word_parser())]
    sources: Vec<Location>,
    /// Where to: a directory to copy into, or a name for the copy.
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
    /// `cp -a -T SOURCE TARGET`, but for what stands there already: it is treated as rename(2) does.
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

    /// Copies everything that can be copied. What went wrong is on standard error, a line each; a summary on
    /// standard output.
    pub fn run(&self, log: LogArgs) -> Outcome {
        let mut opener = Opener::for_copies().limited(self.wait);
        let mut all_opened = true;
        let mut sources = Vec::new();
        for source in &self.sources {
            match Source::find(source, &mut opener, self.is_recursive()) {
                Ok(source) => sources.push(source),
                Err(failure) => {
                    failure.print();
                    all_opened = false;
                }
            }
        }
        if let Some(sink) = Sink::of(&self.target).filter(|_| !self.replaces_name) {
            return match all_opened {
                true if self.no_clobber => Ok(()),
                true => sink.write(&sources),
                false => Err(Failure::silent()),
            };
        }
        let to = self.open_target(&mut opener, &sources)?;
        let screen = Arc::new(Screen::new(Style::for_user(log.quiet > 0, self.progress)));
        let report = Arc::new(Report::new(screen.clone(), to.tree.clone()));
        let copier = Copier::start(self.options(to.is_remote, log.verbose > 0), report.clone())
            .map_err(|error| Failure::cannot("start a thread", &error))?;
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
        .map_err(|error| Failure::cannot("watch for signals", &error))?;
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
            None if all_opened && tally.failed == 0 => Ok(()),
            None => Err(Failure::silent()),
        }
    }

    fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }

    /// Opens the tree that the target lies in; where it may be the copy's name, so that there is a directory
    /// above it.
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
            // To a server that is one round trip instead of two: a client has its data made stable when it
            // closes a file.
            small_files: if to_server { Stability::FileSync } else { Stability::Unstable },
            ..Options::default()
        }
    }
}

/// What was done, in a line.
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
