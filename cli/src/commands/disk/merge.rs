//! `tombolo disk merge` and `tombolo disk discard`: merge and reset overlays.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use clap::Args;

use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::overlay::OverlaySource;
use crate::cli::LogArgs;
use crate::commands::files::print;
use crate::commands::files::shown::size as size_text;
use crate::failure::{Failure, Outcome};
use crate::progress::{Progress, Screen, Style};

use super::Shower;

/// Merge an overlay with the overlay that is its base.
///
/// Afterwards FILE has the changes of both overlays, and its base is the base of its former base. The former
/// base remains, unchanged, so other overlays of it stay valid, as do overlays of FILE. Overlays in use are
/// refused. If the base is no overlay, `tombolo disk convert FILE NEW.img` makes one image of both.
///
/// If the command is killed, both overlays are unchanged, or the merge is complete; with --into-base FILE may
/// then remain, but is refused. A temporary file (.FILE.tombolo-part) may remain too, and the next merge
/// overwrites it.
#[derive(Args)]
#[command(after_help = MERGE_EXAMPLES)]
pub struct DiskMergeArgs {
    /// Replace the base with the result and remove FILE (like qemu-img commit).
    ///
    /// Other overlays of that base are refused from then on. Overlays of FILE stay valid, with --base naming
    /// the new file.
    #[arg(long)]
    into_base: bool,
    /// Report progress every 10 seconds if there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    image: ImageOptions,
    /// Upper overlay.
    file: PathBuf,
}

const MERGE_EXAMPLES: &str = "\
Examples:
  tombolo disk merge monday.overlay
  tombolo disk merge --into-base monday.overlay";

/// Discard all changes in an overlay: it is equal to its base again.
///
/// The changes are lost, so this is refused without --force, as it is for an overlay in use. Overlays of this
/// overlay are refused from then on. If the command is killed, nothing has changed.
#[derive(Args)]
#[command(after_help = DISCARD_EXAMPLES)]
pub struct DiskDiscardArgs {
    /// Discard the changes.
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    image: ImageOptions,
    /// Overlay.
    file: PathBuf,
}

const DISCARD_EXAMPLES: &str = "\
Examples:
  tombolo disk discard --force vm1.overlay";

fn overlay(doing: &str, file: &std::path::Path, image: &ImageOptions) -> Result<OverlaySource, Failure> {
    match DiskSource::of_word(file, image)? {
        DiskSource::Overlay(overlay) if overlay.location.is_none() => Ok(overlay),
        DiskSource::Overlay(_) => {
            Err(Failure::cannot(format_args!("{doing} {}", file.display()), "it is not a local file"))
        }
        other => Err(Failure::cannot(format_args!("{doing} {other}"), "it is not an overlay")),
    }
}

impl DiskMergeArgs {
    pub fn run(&self, log: LogArgs) -> Outcome {
        let top = overlay("merge", &self.file, &self.image)?;
        let cannot = |reason: &str| Failure::cannot(format_args!("merge {}", self.file.display()), reason);
        let chain = top.chain()?;
        let Some(below) = chain.get(1) else {
            return Err(cannot("its base is not an overlay")
                .remedy("create a standalone image of both: tombolo disk convert FILE.overlay NEW.img"));
        };
        let is_finished = |overlay: &OverlaySource| Ok::<_, Failure>(overlay.header()?.seal.is_some());
        if is_finished(&top)? || self.into_base && is_finished(below)? {
            return Err(cannot(
                "the overlay to be replaced is finished, and other overlays may be based on it",
            )
            .remedy("create a standalone image: tombolo disk convert FILE.overlay NEW.img"));
        }
        let dir = |overlay: &OverlaySource| Some(overlay.path.canonicalize().ok()?.parent()?.to_owned());
        if self.into_base {
            if dir(&top) != dir(below) {
                return Err(cannot("its base is in another directory")
                    .remedy("merge without --into-base, then rename FILE to its base"));
            }
            // Overlays in use are refused before anything is changed.
            drop((top.locked()?, below.locked()?));
        }
        let screen = Arc::new(Screen::new(Style::for_user(log.quiet > 0, self.progress)));
        let (size_bytes, done_bytes) = (top.header()?.size_bytes, Arc::new(AtomicU64::new(0)));
        let shown_bytes = done_bytes.clone();
        let shower = Shower { size_bytes, doing: "merged", done_bytes: move || shown_bytes.load(Relaxed) };
        let progress = Progress::start(&screen, Arc::new(shower));
        let merged = top.merged(2, |done| done_bytes.store(done, Relaxed));
        drop(progress);
        if self.into_base { merged?.replace_base(&top, below) } else { merged?.replace(&top) }
    }
}

impl DiskDiscardArgs {
    pub fn run(&self, log: LogArgs) -> Outcome {
        let lost_bytes = overlay("discard", &self.file, &self.image)?.discard(self.force)?;
        let said =
            format!("{} is reset to its base: {} discarded", self.file.display(), size_text(lost_bytes));
        if log.quiet == 0 { print(&said) } else { Ok(()) }
    }
}
