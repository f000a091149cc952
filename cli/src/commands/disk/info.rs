//! `tombolo disk info`: shows a disk's size and allocation.

use std::path::PathBuf;

use clap::Args;
use libtombolo::block_on;
use libtombolo::disk::Room;
use serde::Serialize;
use tombolo_core::block::OpenOptions;
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use crate::assembly::options::disk::ImageOptions;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::layers::Layer;
use crate::commands::files::open_path::WaitArgs;
use crate::commands::files::{print, print_json, shown};
use crate::failure::{Failure, OrCannot, Outcome};

/// Show the size of a disk and how much of it is data.
///
/// Changes nothing and takes no lock, so it works on a disk in use; the numbers are then a snapshot.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiskInfoArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    image: ImageOptions,
    #[command(flatten)]
    wait: WaitArgs,
    /// Disk: a file or URL, as for `tombolo disk`.
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo disk info vm.img
  tombolo disk info vm1.overlay
  tombolo disk info --json nbd://ship/vm | jq .data_bytes";

/// Description of a disk, printed as JSON.
#[derive(Serialize)]
struct Info {
    disk: String,
    size_bytes: u64,
    block_bytes: u32,
    data_bytes: u64,
    /// Bytes that are allocated, but read as zeroes.
    zero_bytes: u64,
    hole_bytes: u64,
    /// A qcow2 image or an overlay, and its backing chain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    images: Vec<Image>,
}

#[derive(Serialize)]
struct Image {
    path: PathBuf,
    format: &'static str,
    size_bytes: u64,
    cluster_bytes: Option<u64>,
    data_file: Option<PathBuf>,
}

impl DiskInfoArgs {
    pub fn run(&self) -> Outcome {
        self.wait.limit_all();
        let source = DiskSource::of_word(&self.file, &self.image)?;
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let options = OpenOptions { read_only: true, locks: false, ..OpenOptions::default() };
        let opened = source.open(&options, &pool)?;
        let disk = &*opened.disk;
        let room = block_on(Room::of(disk)).or_cannot(format_args!("map the data of {source}"))?;
        let geometry = disk.geometry();
        let info = Info {
            disk: source.to_string(),
            size_bytes: geometry.size_bytes,
            block_bytes: geometry.block_bytes,
            data_bytes: room.data_bytes,
            zero_bytes: room.zero_bytes,
            hole_bytes: room.hole_bytes,
            images: images(&source)?,
        };
        if self.json { print_json(&info) } else { print(&info.text()) }
    }
}

/// Returns the image and its backing chain; empty for formats without one.
fn images(source: &DiskSource) -> Result<Vec<Image>, Failure> {
    if !matches!(source, DiskSource::Qcow2 { .. } | DiskSource::Overlay(_)) {
        return Ok(Vec::new());
    }
    let image = |layer: Layer| Image {
        path: layer.source.file().map_or_else(|| layer.source.to_string().into(), PathBuf::from),
        format: match layer.source {
            DiskSource::Qcow2 { .. } | DiskSource::Overlay(_) => layer.source.format(),
            _ => "raw",
        },
        size_bytes: layer.size_bytes.unwrap_or_default(),
        cluster_bytes: layer.cluster_bytes,
        data_file: layer.data_file,
    };
    Ok(source.layers()?.into_iter().map(image).collect())
}

impl Info {
    fn text(&self) -> String {
        let of = |bytes| format!("{} ({bytes} bytes)", shown::short_size(bytes));
        let lines = [
            ("disk", self.disk.clone()),
            ("size", of(self.size_bytes)),
            ("data", of(self.data_bytes)),
            ("zeroes", of(self.zero_bytes)),
            ("holes", of(self.hole_bytes)),
        ];
        let below = self.images.iter().skip(1);
        let below = below.map(|image| ("over", format!("{} ({})", image.path.display(), image.format)));
        let lines: Vec<_> =
            lines.into_iter().chain(below).map(|(name, value)| format!("{name:<8}{value}")).collect();
        lines.join("\n")
    }
}
