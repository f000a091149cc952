//! Target of a conversion.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tombolo_back_image_file::{ImageFile, Locked, Qcow2Image};
use tombolo_core::block::{BlockDevice, OpenOptions, Range, Zeroing};
use tombolo_core::fs::Mode;
use tombolo_core::{Ctx, Error, Result as CoreResult, SessionId};
use tombolo_host_runtime::thread_pool::ThreadPool;
use tombolo_sys::namespace::{RenameFlags, rename};

use super::identity;
use super::record::Record;
use crate::assembly::options::disk::HostCache;
use crate::assembly::plan::access::Access;
use crate::assembly::plan::disk::DiskSource;
use crate::assembly::plan::overlay::merge::beside;
use crate::commands::files::user::Myself;
use crate::failure::{Failure, OrCannot, Outcome};

/// Minimum size to which a disk is truncated, in bytes.
const UNIT_BYTES: u64 = 4096;

pub struct Target {
    /// Disk that is written to.
    pub disk: DiskSource,
    destination: Destination,
}

enum Destination {
    /// Local file, written under a temporary name and renamed when complete.
    Temporary { name: PathBuf, access: Access, old: Option<Old> },
    /// File of a server (or of `dir:`) that does not exist yet, or was created by a conversion that has not
    /// progressed further.
    New { mode: Mode, is_begun: bool },
    /// Existing target, overwritten in place.
    Existing,
}

/// Existing file that the copy will replace, locked until then, and its owner.
struct Old {
    _lock: Locked,
    uid: u32,
    gid: u32,
}

/// A target ready for copying.
pub struct Prepared {
    pub disk: Arc<dyn BlockDevice>,
    /// `true` if the target reads as zeroes from the start offset on.
    pub is_blank: bool,
}

impl Target {
    /// Inspects the target for a disk of `size_bytes`; a new file gets `access`. An existing target is
    /// accepted if it may be overwritten or, except for a local file, if it has the record of an earlier
    /// conversion.
    pub fn of(
        to: &DiskSource,
        size_bytes: u64,
        overwrites: bool,
        record: Option<&Record>,
        (access, myself): (Access, &Myself),
    ) -> Result<Self, Failure> {
        let mode = access.in_group(myself.identity.gid);
        let with = |destination| Self { disk: to.clone(), destination };
        let may_write =
            || if record.is_some() { Ok(()) } else { refuse_existing(to, overwrites, WRITES_OVER) };
        match to {
            DiskSource::Raw { path, .. } | DiskSource::Qcow2 { path, .. } => {
                let failed = |error: io::Error| Failure::cannot(format_args!("convert to {to}"), &error);
                let name = resolved(path).map_err(failed)?;
                match fs::metadata(&name) {
                    Ok(found) if found.is_file() => {
                        refuse_existing(to, overwrites, "replaces it once the copy is complete")?;
                        let _lock = Locked::take(&name).or_cannot(format_args!("replace {to}"))?;
                        let old = Old { _lock, uid: found.uid(), gid: found.gid() };
                        Self::temporary(to, name, Access::like(&found), Some(old)).map_err(failed)
                    }
                    Ok(_) => may_write().map(|()| with(Destination::Existing)),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        Self::temporary(to, name, access, None).map_err(failed)
                    }
                    Err(error) => Err(failed(error)),
                }
            }
            DiskSource::File(location) => match identity::len_of(location)? {
                None => Ok(with(Destination::New { mode, is_begun: false })),
                // The file did not exist when a conversion began that has not progressed further.
                Some(len) if record.is_some_and(Record::has_just_begun) && [0, size_bytes].contains(&len) => {
                    Ok(with(Destination::New { mode, is_begun: true }))
                }
                Some(_) => may_write().map(|()| with(Destination::Existing)),
            },
            DiskSource::Overlay(_) => {
                let reason = "conversion to an overlay is not supported";
                Err(Failure::cannot(format_args!("convert to {to}"), reason).remedy(
                    "create one with tombolo disk create NAME.overlay --base DISK, or convert to qcow2 or raw",
                ))
            }
            DiskSource::Nbd(_) => may_write().map(|()| with(Destination::Existing)),
        }
    }

    /// Fails if the target may not be overwritten and is not left by an earlier conversion.
    pub fn must_be_ours(&self, overwrites: bool) -> Outcome {
        match self.destination {
            Destination::Existing => refuse_existing(&self.disk, overwrites, WRITES_OVER),
            _ => Ok(()),
        }
    }

    /// Returns `true` if opening creates a file that later conversions could not recognise by themselves.
    pub fn is_new(&self) -> bool {
        matches!(self.destination, Destination::New { .. })
    }

    fn temporary(to: &DiskSource, name: PathBuf, access: Access, old: Option<Old>) -> io::Result<Self> {
        let path = beside(&name)?;
        let disk = match to {
            DiskSource::Qcow2 { .. } => DiskSource::Qcow2 { path, backing_dir: None },
            _ => DiskSource::Raw { path, cache: HostCache::Host },
        };
        Ok(Self { disk, destination: Destination::Temporary { name, access, old } })
    }

    /// Returns the path of the temporary file, if any.
    fn part(&self) -> Option<&Path> {
        match (&self.destination, &self.disk) {
            (
                Destination::Temporary { .. },
                DiskSource::Raw { path, .. } | DiskSource::Qcow2 { path, .. },
            ) => Some(path),
            _ => None,
        }
    }

    /// Opens the target for a disk of `size_bytes`, whose first `start` bytes are complete. If none are, a
    /// temporary file is created anew.
    pub fn open(&self, size_bytes: u64, start: u64, pool: &ThreadPool) -> Result<Prepared, Failure> {
        let options = OpenOptions::default();
        let making = format!("create {}", self.disk);
        match (&self.destination, &self.disk) {
            (Destination::Temporary { .. }, DiskSource::Raw { path, .. }) if start == 0 => {
                let disk = ImageFile::create(path, size_bytes, &options, pool.lane()).or_cannot(making)?;
                return Ok(Prepared { disk, is_blank: true });
            }
            (Destination::Temporary { .. }, DiskSource::Qcow2 { path, .. }) if start == 0 => {
                let disk = Qcow2Image::create(path, size_bytes, &options, pool.lane()).or_cannot(making)?;
                return Ok(Prepared { disk, is_blank: true });
            }
            (Destination::New { mode, is_begun }, DiskSource::File(location)) => {
                identity::make(location, size_bytes, *mode, *is_begun)?;
                let disk = self.disk.open(&options, pool)?.disk;
                return Ok(Prepared { disk, is_blank: true });
            }
            _ => {}
        }
        let disk = self.disk.open(&options, pool)?.disk;
        if disk.profile().read_only {
            let reason = "it is read-only";
            return Err(Failure::cannot(format_args!("write to {}", self.disk), reason));
        }
        let block_bytes = disk.geometry().block_bytes;
        if !size_bytes.is_multiple_of(u64::from(block_bytes)) {
            let reason = format!(
                "the source's {size_bytes} bytes are not a multiple of its block size, {block_bytes} bytes"
            );
            return Err(Failure::cannot(format_args!("convert to {}", self.disk), reason));
        }
        let is_blank =
            blank_from(&*disk, start, size_bytes).or_cannot(format_args!("clear {}", self.disk))?;
        let has_bytes = disk.geometry().size_bytes;
        if has_bytes < size_bytes {
            let reason = format!("it has {has_bytes} bytes, but the source has {size_bytes}");
            return Err(
                Failure::cannot(format_args!("convert to {}", self.disk), reason).remedy("enlarge it first")
            );
        }
        Ok(Prepared { disk, is_blank })
    }

    /// Renames a copy under a temporary name to the name of the target. All data must be durable. Does
    /// nothing for other targets.
    pub fn finish(&self) -> Outcome {
        let (Destination::Temporary { name, access, old }, Some(part)) = (&self.destination, self.part())
        else {
            return Ok(());
        };
        let named = || -> io::Result<()> {
            let file = File::open(part)?;
            if let Some(Old { uid, gid, .. }) = old {
                // If this user may not change the owner, the copy belongs to this user.
                let _ = fchown(&file, Some(*uid), Some(*gid));
            }
            access.give(&file)?;
            file.sync_all()?;
            let dir = File::open(name.parent().unwrap_or(Path::new("/")))?;
            let flags = if old.is_some() { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            let [from, to] = [part, name].map(|path| path.file_name().unwrap_or_default().as_bytes());
            rename(dir.as_fd(), from, dir.as_fd(), to, flags)?;
            dir.sync_all()
        };
        named().or_cannot(format_args!("rename to {}", name.display()))
    }

    /// Removes a copy under a temporary name. Returns `false` if there is none, or if it could not be
    /// removed.
    pub fn abandon(&self) -> bool {
        self.part().is_some_and(|part| fs::remove_file(part).is_ok())
    }
}

const WRITES_OVER: &str = "overwrites its contents";

fn refuse_existing(to: &DiskSource, overwrites: bool, force: &str) -> Outcome {
    if overwrites {
        return Ok(());
    }
    let reason = "it already exists";
    Err(Failure::cannot(format_args!("convert to {to}"), reason).remedy(format_args!("--force {force}")))
}

/// Returns the path of the file, following symbolic links.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            Ok(parent.unwrap_or(Path::new(".")).canonicalize()?.join(name))
        }
        found => found,
    }
}

/// Resizes the disk to `size_bytes` and zeroes it from `start` on, by truncating it there first. Returns
/// `false` if its length is fixed.
fn blank_from(disk: &dyn BlockDevice, start: u64, size_bytes: u64) -> CoreResult<bool> {
    let Some(resize) = disk.resize() else { return Ok(false) };
    let cx = Ctx::root(SessionId(0));
    // A disk cannot be empty.
    let kept_bytes = start.max(UNIT_BYTES).min(size_bytes);
    match resize.set_size(&cx, kept_bytes).wait() {
        Err(Error::NotSupported) => return Ok(false),
        cut => cut?,
    }
    if kept_bytes > start {
        let range = Range { offset: start, len_bytes: kept_bytes - start };
        let zeroed = disk.write_zeroes(&cx, range, Zeroing::default());
        disk.submit();
        zeroed.wait()?;
    }
    resize.set_size(&cx, size_bytes).wait()?;
    Ok(true)
}
