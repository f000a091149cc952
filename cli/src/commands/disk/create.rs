//! `tombolo disk create`: creates a disk.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Arg, Args};
use tombolo_back_image_file::{ImageFile, Qcow2Image};
use tombolo_core::block::{BlockDevice, OpenOptions};
use tombolo_core::{Ctx, SessionId};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};

use super::checked;
use crate::assembly::options::disk::{ImageOptions, size};
use crate::assembly::plan::access::Access;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::overlay::{OverlaySource, sync_name};
use crate::commands::files::user::Myself;
use crate::failure::{Failure, OrCannot, Outcome};

/// Create an empty image, or an overlay.
///
/// An overlay stores the changes to another disk, its base, in a file of its own.
///
/// The base of an overlay is neither copied nor changed. Many overlays may share a base, and overlays may be
/// stacked. The base must not change: an overlay whose base was written to is refused. A base that is
/// given as a URL must be named with --base whenever the overlay is used.
#[derive(Args)]
#[command(after_help = EXAMPLES, mut_arg("base", describe_base))]
pub struct DiskCreateArgs {
    /// Size of the disk in bytes; K, M, G and T are powers of 1024 (by default the size of the base, of which
    /// a smaller disk shows only the beginning).
    #[arg(long, value_name = "SIZE", value_parser = checked)]
    size: Option<String>,
    #[command(flatten)]
    image: ImageOptions,
    /// File to create. It must not exist.
    file: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  tombolo disk create vm.qcow2 --size 20G
  tombolo disk create vm1.overlay --base golden.img
  tombolo disk create vm1.overlay --base nfs://ship/images/golden.img --size 40G";

/// Replaces the help of --base for overlays that exist.
fn describe_base(base: Arg) -> Arg {
    let help = "Base of the new overlay, a file or a URL as for `tombolo disk`. Repeat for the base of a base that is \
                an overlay itself";
    base.help(help)
}

impl DiskCreateArgs {
    pub fn run(&self) -> Outcome {
        let size_bytes = self.size.as_deref().and_then(size);
        let source = DiskSource::of_word(&self.file, &self.image)?;
        if let DiskSource::Overlay(overlay @ OverlaySource { location: None, .. }) = &source {
            if self.image.base.is_empty() {
                return Err(Failure::usage("an overlay needs a base").remedy("add --base DISK"));
            }
            let Myself { umask, .. } = Myself::ask();
            return overlay.create(size_bytes, Access::of(&overlay.base()?, umask)?);
        }
        let Some(size_bytes) = size_bytes else {
            return Err(
                Failure::usage("the size of the disk is missing").remedy("add --size SIZE, such as 20G")
            );
        };
        let making = format!("create {source}");
        let (options, pool) = (OpenOptions::default(), ThreadPool::new("disk", ThreadPoolLimits::default()));
        let (DiskSource::Raw { path, .. } | DiskSource::Qcow2 { path, .. }) = &source else {
            return Err(Failure::cannot(making, "disks can only be created in local files"));
        };
        let file = fs::File::create_new(path).or_cannot(&making)?;
        let made = || -> Outcome {
            let disk: Arc<dyn BlockDevice> = match &source {
                DiskSource::Qcow2 { .. } => {
                    Qcow2Image::create(path, size_bytes, &options, pool.lane()).or_cannot(&making)?
                }
                _ => ImageFile::create(path, size_bytes, &options, pool.lane()).or_cannot(&making)?,
            };
            disk.flush(&Ctx::root(SessionId(0))).wait().or_cannot(&making)?;
            // The length of a raw image is metadata, which no flush covers.
            file.sync_all().and_then(|()| sync_name(path)).or_cannot(&making)
        };
        made().inspect_err(|_| drop(fs::remove_file(path)))
    }
}
