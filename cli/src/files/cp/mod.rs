//! `tombolo cp`: copies files and trees.

mod progress;
mod report;
mod target;

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use libtombolo::Last;
use libtombolo::copy::{Copier, Existing, From, Holes, Options, Tally};
use tombolo_core::fs::Stability;
use tombolo_host::signals;

use crate::cli::LogArgs;
use crate::failure::{Failure, Outcome};
use crate::location::{End, Location};

use super::place::{Places, own_name};
use progress::{Progress, Style};
use report::Report;
use target::Target;

/// Copy files and trees between NFS servers and this host, in any direction, without a mount.
///
/// Many files are under way at once, and many pieces of a large one. What replaces a file, and what is larger than 1 MiB,
/// arrives as `.NAME.tombolo-part` and is renamed when it is complete, so that nobody sees half of it; a file that is
/// replaced becomes a new one, and a link in its place is replaced, not followed.
///
/// An interrupted copy goes on with --resume: parts are continued where they are known to be complete, and files that
/// are there with the size and time of their source are left out (copy with -p from the start, so that times are the
/// source's).
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CpArgs {
    /// Copy directories and what is in them; links, pipes and devices become what they are.
    #[arg(short, long, short_alias = 'R')]
    recursive: bool,
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
    /// Leave holes for blocks of zeros. Holes of the source are kept where its file system tells of them, also without this.
    #[arg(long)]
    sparse: bool,
    /// DST is the copy's name, not a directory to copy into.
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Files under way at once.
    #[arg(short, long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
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

const EXAMPLES: &str = "\
Examples:
  tombolo cp nfs://server/export/disk.img .
  tombolo cp -r -p src nfs://server:20049/backup
  tombolo cp -r -p --resume src nfs://server:20049/backup
  tombolo cp -r nfs://one/tree nfs://other/tree";

impl CpArgs {
    /// Copies everything that can be copied. What went wrong is on standard error, a line each; a summary on standard output.
    pub fn run(&self, log: LogArgs) -> Outcome {
        let is_quiet = log.quiet > 0;
        let mut places = Places::for_copies();
        let to = places.open(&self.target, End::Target)?;
        let style = Style::for_user(is_quiet, self.progress, io::stderr().is_terminal());
        let report = Arc::new(Report::new(style, to.tree.clone()));
        let copier = Copier::start(self.options(to.is_remote), report.clone())
            .map_err(|error| Failure::cannot("start a thread", &error))?;
        let target = Target::of(to, self.no_target_directory)?;
        target.must_take(self.sources.len())?;
        let stopper = copier.stopper();
        let stopping = report.clone();
        signals::on_stop(move |signal| {
            stopping.stopping(&signal.to_string());
            stopper.stop();
        })
        .map_err(|error| Failure::cannot("watch for signals", &error))?;
        let start = Instant::now();
        let mut progress = Progress::start(style, report.clone(), copier.watcher());
        let mut all_opened = true;
        for source in &self.sources {
            if let Err(failure) = self.add(source, &mut places, &copier, &target, &mut progress) {
                report.print(&failure);
                all_opened = false;
            }
        }
        let tally = copier.finish();
        progress.finish();
        report.sum_up();
        if !is_quiet {
            super::ls::print(&summary(&tally, start.elapsed().as_secs_f64()))?;
        }
        if all_opened && tally.failed == 0 && !report.is_stopped() { Ok(()) } else { Err(Failure::silent()) }
    }

    /// Begins with one source.
    fn add(
        &self,
        source: &Location,
        places: &mut Places,
        copier: &Copier,
        target: &Target,
        progress: &mut Progress,
    ) -> Outcome {
        // Of a tree, links are copied; of a file that is named, what it leads to.
        let (end, last) = if self.recursive { (End::Name, Last::Keep) } else { (End::Target, Last::Follow) };
        let place = places.open(source, end)?;
        let node = place.found(last)?;
        progress.measure(node.clone());
        let from = From { node, path: place.label.clone() };
        match target.name_for(own_name(source)) {
            Some(to) => copier.add(from, to),
            None => copier.add_contents(from, target.dir.clone(), target.path.clone()),
        }
        Ok(())
    }

    fn options(&self, to_server: bool) -> Options {
        Options {
            jobs: usize::from(self.jobs),
            recursive: self.recursive,
            preserve: self.preserve,
            existing: if self.no_clobber { Existing::Keep } else { Existing::Replace },
            resume: self.resume,
            holes: if self.sparse { Holes::Make } else { Holes::AsTheyAre },
            // To a server that is one round trip instead of two: a client has its data made stable when it closes a file.
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
    for (count, what) in [(tally.skipped, "left out"), (tally.failed, "failed")] {
        if count > 0 {
            text = format!("{text}; {count} {what}");
        }
    }
    text
}

fn counted(count: u64, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

/// Bytes in the largest unit that leaves a number above one.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = None;
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(name);
    }
    unit.map_or_else(|| format!("{bytes} bytes"), |unit| format!("{value:.1} {unit}"))
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
