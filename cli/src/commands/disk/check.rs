//! `tombolo disk check`: checks an image's tables, and reads all data.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use libtombolo::block_on;
use libtombolo::disk::{Unreadable, Watched, unreadable};
use serde::Serialize;
use tombolo_back_image_file::{Checked, Qcow2Image, Qcow2OpenError};
use tombolo_core::block::OpenOptions;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::disk::DiskSource;
use crate::cli::LogArgs;
use crate::commands::files::open_path::WaitArgs;
use crate::commands::files::shown::size;
use crate::commands::files::{print, print_json, stop};
use crate::failure::{Failure, OrCannot, Outcome, Reason};
use crate::progress::{Progress, Screen, Style};

use super::{shower, stopping};

/// Check the tables of an image, and read all data.
///
/// Also checks the backing files of qcow2 images and overlays. Nothing is changed. A local disk that
/// others write to is refused. Exits with 1 if the disk is damaged; after another failure too, but then no
/// result is printed.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiskCheckArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Report progress every 10 seconds if there is no terminal for a bar.
    #[arg(long)]
    progress: bool,
    #[command(flatten)]
    image: ImageOptions,
    #[command(flatten)]
    wait: WaitArgs,
    /// Disk: a file or URL, as for `tombolo disk`.
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo disk check vm.qcow2
  tombolo disk check nbd://ship/vm --progress";

/// Maximum number of unreadable ranges listed.
const UNREADABLE_MAX: usize = 10;

/// Result of a check, printed as JSON.
#[derive(Serialize)]
struct CheckResult {
    disk: String,
    /// `true` if the images lie below an overlay, which a repaired base would invalidate.
    #[serde(skip)]
    is_overlay: bool,
    images: Vec<Image>,
    /// Readable bytes of data; 0 if an image is damaged, because its data are not read.
    data_bytes: u64,
    unreadable_bytes: u64,
    unreadable: Vec<UnreadableRange>,
}

/// Damage found in one qcow2 image.
#[derive(Serialize)]
struct Image {
    path: PathBuf,
    damages_count: u64,
    damages: Vec<String>,
    leaked_bytes: Option<u64>,
}

#[derive(Serialize)]
struct UnreadableRange {
    offset: u64,
    len_bytes: u64,
    reason: String,
}

impl DiskCheckArgs {
    pub fn run(&self, log: LogArgs) -> Outcome {
        self.wait.limit_all();
        let source = DiskSource::of_word(&self.file, &self.image)?;
        let screen = Arc::new(Screen::new(Style::for_user(log.quiet > 0, self.progress)));
        let images = images(&source)?;
        let mut found = CheckResult {
            disk: source.to_string(),
            is_overlay: matches!(source, DiskSource::Overlay(_)),
            images,
            data_bytes: 0,
            unreadable_bytes: 0,
            unreadable: Vec::new(),
        };
        // Damaged tables may refer anywhere, so their data are not read.
        if found.images.iter().all(|image| image.damages_count == 0) {
            found.read(&source, &screen)?;
        }
        if self.json {
            print_json(&found)?
        } else {
            print(&found.text())?
        }
        if found.is_sound() { Ok(()) } else { Err(Failure::silent()) }
    }
}

/// Checks the tables of an image and of its backing chain.
fn images(source: &DiskSource) -> Result<Vec<Image>, Failure> {
    let cannot = |error: &Qcow2OpenError| Failure::cannot("check a disk", error);
    let layers = source.layers()?.into_iter().filter(|layer| layer.cluster_bytes.is_some());
    let paths = layers.filter_map(|layer| layer.source.file().map(PathBuf::from));
    let images = paths.map(|path| {
        let Checked { damages, damages_count, leaked_bytes } =
            Qcow2Image::check(&path).map_err(|error| cannot(&error))?;
        let damages = damages.iter().map(ToString::to_string).collect();
        Ok(Image { path, damages_count, damages, leaked_bytes })
    });
    images.collect()
}

impl CheckResult {
    fn read(&mut self, source: &DiskSource, screen: &Arc<Screen>) -> Outcome {
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let stop = stopping(screen)?;
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let disk = source.open(&options, &pool)?.disk;
        let watched = Watched::default();
        let progress = Progress::start(screen, shower("read", &*disk, &watched));
        let found = block_on(unreadable(disk, UNREADABLE_MAX, &stop, watched.clone()));
        drop(progress);
        let Unreadable { ranges, bytes, .. } = found.or_cannot(format_args!("check {source}"))?;
        if let Some(signal) = stop::came() {
            return Err(Failure::stopped(signal));
        }
        self.data_bytes = watched.tally().data_bytes - bytes;
        self.unreadable_bytes = bytes;
        self.unreadable = ranges
            .into_iter()
            .map(|(range, error)| UnreadableRange {
                offset: range.offset,
                len_bytes: range.len_bytes,
                reason: Reason::from(&error).into(),
            })
            .collect();
        Ok(())
    }

    /// Returns the advice `how` on a repair, unless the repair would invalidate an overlay.
    fn advice(&self, how: &'static str) -> &'static str {
        if self.is_overlay { "repairing a base invalidates its overlays" } else { how }
    }

    fn is_sound(&self) -> bool {
        self.unreadable_bytes == 0 && self.images.iter().all(|image| image.damages_count == 0)
    }

    fn text(&self) -> String {
        let mut lines = Vec::new();
        for image in &self.images {
            let path = image.path.display();
            for damage in &image.damages {
                lines.push(format!("{path}: {damage}"));
            }
            match image.damages_count.saturating_sub(image.damages.len() as u64) {
                0 => {}
                more => lines.push(format!("{path}: and {more} more")),
            }
            if let Some(leaked @ 1..) = image.leaked_bytes {
                let (leaked, advice) = (size(leaked), self.advice("free them with qemu-img check -r leaks"));
                lines.push(format!("{path}: {leaked} leaked: {advice}"));
            }
        }
        for UnreadableRange { offset, len_bytes, reason } in &self.unreadable {
            lines.push(format!("{}: {len_bytes} bytes at {offset} cannot be read: {reason}", self.disk));
        }
        let (read, unreadable) = (size(self.data_bytes), size(self.unreadable_bytes));
        lines.push(match (self.is_sound(), self.unreadable_bytes) {
            (true, _) => format!("{} is sound: {read} of data read", self.disk),
            (false, 0) => {
                format!("{} is damaged: {}", self.disk, self.advice("qemu-img check -r all may repair it"))
            }
            (false, _) => {
                format!("{} is damaged: {read} of data read, {unreadable} unreadable", self.disk)
            }
        });
        lines.join("\n")
    }
}
