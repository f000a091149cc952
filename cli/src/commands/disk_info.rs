//! `tombolo disk info`: what a disk is, and how much of it is there.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tombolo_core::block::{Allocation, BlockDevice, OpenOptions, Range};
use tombolo_core::{Ctx, Error, Result as CoreResult, SessionId};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use crate::assembly::options::disk::ImageFormat;
use crate::assembly::plan::disk::DiskSource;
use crate::commands::files::{print, shown};
use crate::failure::{Failure, Outcome};

/// Show how long a disk is and how much of it is data.
///
/// Nothing is changed, and nothing is locked: also of a disk that a guest writes to, whose numbers are those of a moment.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct DiskInfoArgs {
    /// As JSON.
    #[arg(long)]
    json: bool,
    /// What kind of image it is (by default qcow2 where the name ends in .qcow2, else raw).
    #[arg(long, value_name = "FORMAT")]
    format: Option<ImageFormat>,
    /// Where images may lie that a qcow2 image stands on, besides its own directory.
    #[arg(long, value_name = "DIR")]
    backing_dir: Option<PathBuf>,
    /// The disk, as for a server of it.
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo disk info vm.img
  tombolo disk info --json nbd://ship/vm | jq .data_bytes";

/// What is known of a disk, as it goes out as JSON.
#[derive(Serialize)]
struct Info {
    disk: String,
    size_bytes: u64,
    block_bytes: u32,
    #[serde(flatten)]
    room: Room,
}

/// How many bytes are what; together the whole disk.
#[derive(Default, Serialize)]
struct Room {
    data_bytes: u64,
    /// Room is taken, and it reads as zeroes.
    zero_bytes: u64,
    hole_bytes: u64,
}

impl DiskInfoArgs {
    pub fn run(&self) -> Outcome {
        let source = DiskSource::of_word(&self.file, self.format, self.backing_dir.as_deref())?;
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let options = OpenOptions { read_only: true, locks: false, ..OpenOptions::default() };
        let opened = source.open(&options, &pool)?;
        let disk = &*opened.disk;
        let room = Room::of(disk)
            .map_err(|error| Failure::cannot(format_args!("ask what {source} holds"), &error))?;
        let geometry = disk.geometry();
        let info = Info {
            disk: source.to_string(),
            size_bytes: geometry.size_bytes,
            block_bytes: geometry.block_bytes,
            room,
        };
        let text = if self.json {
            serde_json::to_string_pretty(&info).map_err(|error| Failure::cannot("write JSON", &error))?
        } else {
            info.text()
        };
        print(&text)
    }
}

impl Room {
    /// Asks for all extents, some at a time.
    fn of(disk: &dyn BlockDevice) -> CoreResult<Self> {
        const COUNT_MAX: usize = 1024;
        /// What one question covers at most, in bytes: NBD counts with 32 bits.
        const ASKED_MAX: u64 = 1 << 30;
        let (cx, mut room, mut offset) = (Ctx::root(SessionId(0)), Self::default(), 0);
        loop {
            let left_bytes = disk.geometry().size_bytes.saturating_sub(offset);
            if left_bytes == 0 {
                return Ok(room);
            }
            let range = Range { offset, len_bytes: left_bytes.min(ASKED_MAX) };
            let asked = disk.extents(&cx, range, COUNT_MAX);
            disk.submit();
            let extents = asked.wait()?;
            // An answer without extents would be asked for without end.
            if extents.next_offset() <= offset {
                return Err(Error::Io { source: None });
            }
            offset = extents.next_offset();
            for extent in extents.as_slice() {
                *match extent.allocation {
                    Allocation::Data => &mut room.data_bytes,
                    Allocation::Zero => &mut room.zero_bytes,
                    Allocation::Hole => &mut room.hole_bytes,
                } += extent.len_bytes;
            }
        }
    }
}

impl Info {
    fn text(&self) -> String {
        let of = |bytes| format!("{} ({bytes} bytes)", shown::short_size(bytes));
        let Room { data_bytes, zero_bytes, hole_bytes } = self.room;
        let lines = [
            ("disk", self.disk.clone()),
            ("size", of(self.size_bytes)),
            ("data", of(data_bytes)),
            ("zeroes", of(zero_bytes)),
            ("holes", of(hole_bytes)),
        ];
        lines.map(|(name, value)| format!("{name:<8}{value}")).join("\n")
    }
}
