//! `tombolo disk merge` and `tombolo disk discard`: what overlays have, brought together or taken back.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use indicatif::ProgressBar;

use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::overlay::OverlaySource;
use crate::cli::LogArgs;
use crate::commands::files::print;
use crate::commands::files::shown::size as size_text;
use crate::failure::{Failure, Outcome};
use crate::progress::{Progress, Screen, Shown, Style};

/// Make one overlay of two: of FILE and of the overlay that it stands on.
///
/// FILE is the same disk afterwards and stands on what the other one stood on, which stays as it is, for
/// others that stand on it. What stands on FILE goes on to. What is in use is refused. If this is killed both
/// are as before, or it is done but for removing FILE.
#[derive(Args)]
#[command(after_help = MERGE_EXAMPLES)]
pub struct DiskMergeArgs {
    /// The one below is replaced by both and FILE is gone (qemu-img commit). Whatever else stood on it is
    /// refused from then on.
    #[arg(long)]
    into_base: bool,
    /// Tell how far it is every 10 seconds, where there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    image: ImageOptions,
    /// The upper overlay.
    file: PathBuf,
}

const MERGE_EXAMPLES: &str = "\
Examples:
  tombolo disk merge monday.overlay
  tombolo disk merge --into-base monday.overlay";

/// Take back all that was written to an overlay: it begins anew as its base is now.
///
/// What was written is gone for good, so this is refused without --force. What stands on the overlay is
/// refused from then on. If this is killed it is as before.
#[derive(Args)]
#[command(after_help = DISCARD_EXAMPLES)]
pub struct DiskDiscardArgs {
    /// Discard what was written.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    image: ImageOptions,
    /// The overlay.
    file: PathBuf,
}

const DISCARD_EXAMPLES: &str = "\
Examples:
  tombolo disk discard --force vm1.overlay";

fn overlay(doing: &str, file: &std::path::Path, image: &ImageOptions) -> Result<OverlaySource, Failure> {
    match DiskSource::of_word(file, image)? {
        DiskSource::Overlay(overlay) if overlay.location.is_none() => Ok(overlay),
        DiskSource::Overlay(_) => {
            Err(Failure::cannot(format_args!("{doing} {}", file.display()), "it is no file of this host"))
        }
        other => Err(Failure::cannot(format_args!("{doing} {other}"), "it is no overlay")),
    }
}

impl DiskMergeArgs {
    pub fn run(&self, log: LogArgs) -> Outcome {
        let top = overlay("merge", &self.file, &self.image)?;
        let cannot = |reason: &str| Failure::cannot(format_args!("merge {}", self.file.display()), reason);
        let chain = top.chain()?;
        let Some(below) = chain.get(1) else {
            return Err(cannot("what it stands on is no overlay")
                .remedy("make a whole image of both: tombolo disk convert FILE.overlay NEW.img"));
        };
        let is_finished = |overlay: &OverlaySource| Ok::<_, Failure>(overlay.header()?.seal.is_some());
        if is_finished(&top)? || self.into_base && is_finished(below)? {
            return Err(cannot("what it would replace is finished, and others may stand on it")
                .remedy("make a disk of its own: tombolo disk convert FILE.overlay NEW.img"));
        }
        let dir = |overlay: &OverlaySource| Some(overlay.path.canonicalize().ok()?.parent()?.to_owned());
        if self.into_base {
            if dir(&top) != dir(below) {
                return Err(cannot("what it stands on lies in another directory")
                    .remedy("leave --into-base out, and give it the other one's name afterwards"));
            }
            // What is in use is refused before anything is done.
            drop((top.locked()?, below.locked()?));
        }
        let screen = Arc::new(Screen::new(Style::for_user(log.quiet > 0, self.progress)));
        let shower = Arc::new(Shower { size_bytes: top.header()?.size_bytes, done_bytes: AtomicU64::new(0) });
        let progress = Progress::start(&screen, shower.clone());
        let merged = top.merged(2, |done| shower.done_bytes.store(done, Ordering::Relaxed));
        drop(progress);
        if self.into_base { merged?.replace_base(&top, below) } else { merged?.replace(&top) }
    }
}

impl DiskDiscardArgs {
    pub fn run(&self, log: LogArgs) -> Outcome {
        let lost_bytes = overlay("discard", &self.file, &self.image)?.discard(self.force)?;
        let said = format!("{} begins anew: {} were discarded", self.file.display(), size_text(lost_bytes));
        if log.quiet == 0 { print(&said) } else { Ok(()) }
    }
}

/// How far a merge is.
struct Shower {
    size_bytes: u64,
    done_bytes: AtomicU64,
}

impl Shown for Shower {
    fn draw(&self, bar: &ProgressBar) {
        bar.set_length(self.size_bytes);
        bar.set_position(self.done_bytes.load(Ordering::Relaxed));
        bar.set_message("merged");
    }

    fn line(&self) -> String {
        let done = self.done_bytes.load(Ordering::Relaxed);
        format!("{} of {} merged", size_text(done), size_text(self.size_bytes))
    }
}
