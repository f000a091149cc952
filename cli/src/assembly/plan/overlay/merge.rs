//! Merging and discarding of redo logs.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use libtombolo::block_on;
use libtombolo::copy::part_name;
use tombolo_back_image_file::{ImageFile, Locked};
use tombolo_core::block::{BlockDevice, OpenOptions as DiskOpenOptions};
use tombolo_core::fs::{NAME_MAX, Name};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_layer_overlay::{Header, Overlay};

use super::super::access::Access;
use super::super::disk::{DiskSource, OpenedDisk};
use super::{OverlaySource, cx, read_only, sync_name};
use crate::commands::files::shown::size;
use crate::failure::{Failure, OrCannot, Outcome};

/// The unit of `st_blocks`, in bytes (stat(3type)).
const STAT_BLOCK_BYTES: u64 = 512;

/// A new redo log with the merged content of a chain, whose files are locked against writers meanwhile. It is
/// removed on drop, unless it has replaced a layer.
pub struct Merged {
    /// Temporary name of the new redo log.
    path: PathBuf,
    /// Merged layers, from the top down.
    layers: Vec<Arc<Overlay>>,
    /// Overlay of the new redo log over the base of the lowest layer.
    into: Arc<Overlay>,
    _base: OpenedDisk,
    /// Pool for blocking operations on local disks.
    _pool: ThreadPool,
}

impl Drop for Merged {
    fn drop(&mut self) {
        // The file is absent if it was renamed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Returns a temporary name in the same directory. A file left by a killed process is overwritten.
pub fn beside(path: &Path) -> io::Result<PathBuf> {
    let own = Name::new(path.file_name().unwrap_or_default().as_bytes()).map_err(io::Error::other)?;
    let part = part_name(own, NAME_MAX as u32).map_err(io::Error::other)?;
    Ok(path.with_file_name(OsStr::from_bytes(part.as_name().as_bytes())))
}

impl OverlaySource {
    /// Returns the overlay and the overlays below it, from the top down.
    pub fn chain(&self) -> Result<Vec<Self>, Failure> {
        let mut chain = vec![self.clone()];
        while let Some(DiskSource::Overlay(below)) = chain.last().map(Self::base).transpose()? {
            chain.push(below);
        }
        Ok(chain)
    }

    /// Merges this redo log and the ones below it, `count` in all, into a new one in the same directory, with
    /// the base of the lowest. `done` receives the progress in bytes of the disk.
    pub fn merged(&self, count: usize, done: impl Fn(u64)) -> Result<Merged, Failure> {
        self.merged_beside(&self.path, count, None, done)
    }

    /// Merges `count` redo logs into a finished one that names its base `base_name`. The contents of the new
    /// file are durable, its directory entry is not.
    pub fn finished(&self, count: usize, to: &Path, base_name: &[u8]) -> Outcome {
        let merged = self.merged_beside(to, count, Some(base_name), |_| ())?;
        let writing = format!("write {}", to.display());
        block_on(merged.into.seal(&cx())).or_cannot(&writing)?;
        fs::rename(&merged.path, to).or_cannot(writing)
    }

    fn merged_beside(
        &self,
        to: &Path,
        count: usize,
        base_name: Option<&[u8]>,
        done: impl Fn(u64),
    ) -> Result<Merged, Failure> {
        let chain: Vec<_> = self.chain()?.into_iter().take(count).collect();
        let merging = format!("merge overlay {}", self.path.display());
        let lowest = chain.last().unwrap_or(self);
        let base = lowest.base()?;
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let options = read_only();
        let opened = lowest.open_base(&base, &options, &pool)?;
        let (mut disk, mut layers) = (opened.disk.clone(), Vec::new());
        for source in chain.iter().rev() {
            let layer =
                source.open_over(&source.base()?, disk, source.open_log(&options, &pool)?.disk, &options)?;
            disk = layer.clone();
            layers.insert(0, layer);
        }
        let path = beside(to).or_cannot(&merging)?;
        let into = Self { path, states: None, ..lowest.clone() };
        let base_name = match base_name {
            Some(name) => name.to_vec(),
            None => self.base_name(&base).or_cannot(&merging)?,
        };
        let header =
            Header { size_bytes: self.header()?.size_bytes, base_name, seal: None, ..lowest.header()? };
        let into_log = into.new_log(&header, &pool)?;
        let into_disk = into
            .open_over(&base, opened.disk.clone(), into_log, &DiskOpenOptions::default())
            .inspect_err(|_| drop(fs::remove_file(&into.path)))?;
        let merged = Merged { path: into.path, layers, into: into_disk, _base: opened, _pool: pool };
        let copied = block_on(Overlay::merge(&cx(), &merged.layers, &merged.into, done));
        copied
            .and_then(|()| merged.into.flush(&cx()).wait())
            .or_cannot(format_args!("write {}", merged.path.display()))?;
        Ok(merged)
    }

    /// Creates an empty redo log.
    pub(super) fn new_log(&self, header: &Header, pool: &ThreadPool) -> Result<Arc<ImageFile>, Failure> {
        let making = format!("make {}", self.path.display());
        let options = DiskOpenOptions::default();
        let log =
            ImageFile::create(&self.path, header.log_bytes(), &options, pool.lane()).or_cannot(&making)?;
        block_on(header.write_to(&cx(), &*log)).map_err(|error| {
            let _ = fs::remove_file(&self.path);
            Failure::cannot(&making, &error)
        })?;
        Ok(log)
    }

    /// Removes the redo log and the leftovers of a killed merge into it.
    pub fn remove(&self) -> Outcome {
        let removed = || {
            let _ = fs::remove_file(beside(&self.path)?);
            fs::remove_file(&self.path)
        };
        removed().or_cannot(format_args!("remove {}", self.path.display()))
    }

    /// Discards all changes; returns their allocated size in bytes. Fails unless `forced`. Overlays on top of
    /// this one become invalid.
    pub fn discard(&self, forced: bool) -> Result<u64, Failure> {
        let discarding = format!("discard the changes in {}", self.path.display());
        let size_bytes = self.header()?.size_bytes;
        let _lock = self.locked()?;
        let lost_bytes = fs::metadata(&self.path).or_cannot(&discarding)?.blocks() * STAT_BLOCK_BYTES;
        if !forced {
            let reason = format!("{} of changes would be lost", size(lost_bytes));
            return Err(Failure::cannot(&discarding, reason).remedy("use --force to discard them"));
        }
        let path = beside(&self.path).or_cannot(&discarding)?;
        let _ = fs::remove_file(&path);
        let mut empty = Self { path, states: None, ..self.clone() };
        if empty.bases.is_empty() {
            empty.bases.push(self.named()?);
            empty.bases_no_links = true;
        }
        empty.create(Some(size_bytes), Access::PRIVATE)?;
        put_in_place(&empty.path, &self.path, None)
            .or_cannot(&discarding)
            .inspect_err(|_| drop(fs::remove_file(&empty.path)))?;
        Ok(lost_bytes)
    }

    /// Locks the redo log against other users.
    pub fn locked(&self) -> Result<Locked, Failure> {
        Locked::take(&self.path).or_cannot(format_args!("change {}", self.path.display()))
    }
}

/// Puts a new file in the place of an old one, with its owner and permissions, and a modification time if
/// given.
fn put_in_place(new: &Path, old: &Path, modified: Option<SystemTime>) -> io::Result<()> {
    let (file, replaced) = (File::open(new)?, fs::metadata(old)?);
    // Without permission to do so, the file remains this user's.
    let _ = fchown(&file, Some(replaced.uid()), Some(replaced.gid()));
    // A new file that remains in another group gets fewer group bits: that group had no such permissions.
    Access::like(&replaced).give(&file)?;
    if let Some(modified) = modified {
        file.set_times(FileTimes::new().set_modified(modified))?;
    }
    file.sync_all()?;
    fs::rename(new, old)?;
    sync_name(old)
}

impl Merged {
    /// Replaces the topmost of the merged layers, which has the same content. Overlays on top of that one
    /// remain valid.
    pub fn replace(self, top: &OverlaySource) -> Outcome {
        // Overlays on top have recorded this modification time as the mark of their base.
        let own = fs::metadata(&top.path).and_then(|old| old.modified());
        own.and_then(|own| put_in_place(&self.path, &top.path, Some(own)))
            .or_cannot(format_args!("replace {}", top.path.display()))
    }

    /// Replaces the lower of two redo logs by the merged one in one step, and then removes the upper one.
    /// Neither may be in use; other overlays on the lower one become invalid. If the process is killed
    /// between the two steps, the upper one remains and is invalid too.
    pub fn replace_base(mut self, top: &OverlaySource, below: &OverlaySource) -> Outcome {
        // The locks of the merged layers exclude writers only, and would conflict with the exclusive locks
        // taken next.
        self.layers.clear();
        let _locks = (top.locked()?, below.locked()?);
        let replaced = || -> io::Result<()> {
            let modified = |path: &Path| fs::metadata(path)?.modified();
            // The modification time is the mark of a base. The merged file gets the time of the upper file,
            // with which overlays on top of that file remain valid. If both files have equal times, it gets
            // another one, because other overlays on the lower file must become invalid.
            let (upper, lower) = (modified(&top.path)?, modified(&below.path)?);
            let own = if upper == lower { upper + Duration::from_nanos(1000) } else { upper };
            put_in_place(&self.path, &below.path, Some(own))?;
            fs::remove_file(&top.path)?;
            sync_name(&top.path)
        };
        replaced().or_cannot(format_args!("replace {}", below.path.display()))
    }
}
