//! Overlay: a redo log over a base. The header of the redo log names the base and has its mark, the
//! modification times of its files, by which a changed base is detected (docs/formats/overlay.md).

pub mod merge;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::UNIX_EPOCH;

use libtombolo::block_on;
use tombolo_back_image_file::{ImageFile, LinkPolicy, lock_open_image};
use tombolo_core::block::{BlockDevice, OpenOptions as DiskOpenOptions};
use tombolo_core::fs::Timestamp;
use tombolo_core::{Ctx, SessionId};
use tombolo_host_runtime::thread_pool::{ThreadPool, ThreadPoolLimits};
use tombolo_host_service::sandbox::Needs;
use tombolo_layer_basic::record;
use tombolo_layer_overlay::{HEADER_BYTES, Header, Identity, Overlay, OverlayError, StateMemory};
use tombolo_sys::memfd;

use super::access::Access;
use super::disk::{DiskSource, OpenedDisk, open_file};
use super::layers::Layer;
use super::needs;
use crate::assembly::options::disk::ImageOptions;
use crate::commands::files::open_path::attr_of;
use crate::failure::{Failure, OrCannot, Outcome, Reason};
use crate::location::Location;

const KEEPING: &str = "retain unflushed writes of an overlay";

/// Maximum depth of a chain of overlays: a read may query each layer.
const DEPTH_MAX: u32 = 16;

#[derive(Clone, Debug, Default)]
pub struct OverlaySource {
    pub path: PathBuf,
    /// Location of the redo log, if it is not given as a plain path; the overlay is then read-only.
    pub location: Option<Location>,
    /// Bases given on the command line, which override those recorded in the redo logs.
    bases: Vec<PathBuf>,
    /// `true` if bases behind symbolic links are refused.
    bases_no_links: bool,
    /// `true` if the redo log itself is refused behind a symbolic link.
    no_links: bool,
    backing_dir: Option<PathBuf>,
    /// Number of overlays above this one.
    depth: u32,
    /// Memory that a keeper retains for the states of unflushed writes; `None` without a keeper.
    states: Option<StateMemory>,
    /// Trace file for reads of the base.
    record: Option<Arc<File>>,
    /// Trace file for reads of the redo log itself.
    record_log: Option<Arc<File>>,
    /// Number of overlays below this one, and the slot for the disk under the lowest of them.
    bottom: Option<(u32, Bottom)>,
    /// `true` if the base is still written to, so that its mark is not verified.
    pub base_in_use: bool,
}

/// Slot for the disk below changing overlays, filled when that disk is opened.
#[derive(Clone, Default)]
pub struct Bottom(Arc<OnceLock<Arc<dyn BlockDevice>>>);

impl Bottom {
    pub fn disk(&self) -> Option<Arc<dyn BlockDevice>> {
        self.0.get().cloned()
    }
}

impl std::fmt::Debug for Bottom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bottom").finish_non_exhaustive()
    }
}

impl OverlaySource {
    pub fn new(path: PathBuf, options: &ImageOptions) -> Self {
        let ImageOptions { base: bases, base_no_links: bases_no_links, backing_dir, .. } = options.clone();
        Self { path, bases, bases_no_links, backing_dir, ..Self::default() }
    }

    /// Returns an overlay whose finished redo log is a file at a location, such as one of an NFS server.
    pub fn elsewhere(path: PathBuf, location: Location, options: &ImageOptions) -> Self {
        Self { location: Some(location), ..Self::new(path, options) }
    }

    /// Returns the overlay with a policy that fails its opening if the path leads through a symbolic link.
    pub fn without_links(self) -> Self {
        Self { no_links: true, ..self }
    }

    fn cannot(&self, reason: impl Into<Reason>) -> Failure {
        Failure::cannot(format_args!("open overlay {}", self.path.display()), reason)
    }

    /// Returns the base. The name in a redo log is only followed to the directory of the redo log and to the
    /// backing directory, so that an untrusted redo log opens no other file.
    pub fn base(&self) -> Result<DiskSource, Failure> {
        if self.depth == DEPTH_MAX {
            let reason = format!("the chain has more than {DEPTH_MAX} overlays");
            return Err(self
                .cannot(reason)
                .remedy("convert one of them to a standalone image: tombolo disk convert"));
        }
        let mut bases = self.bases.iter().cloned();
        let word = match bases.next() {
            Some(word) => word,
            None => self.named()?,
        };
        // The back end behind `dir:` follows links by rules of its own: the path is opened without that
        // prefix.
        let plain = word.to_str().and_then(|word| word.strip_prefix("dir:")).map(PathBuf::from);
        let word = plain.filter(|_| self.bases_no_links).unwrap_or(word);
        let (backing_dir, base, base_no_links) =
            (self.backing_dir.clone(), bases.collect(), self.bases_no_links);
        let options = ImageOptions { backing_dir, base, base_no_links, ..ImageOptions::default() };
        let mut base = DiskSource::of_word(&word, &options)?;
        if let DiskSource::Overlay(below) = &mut base {
            below.depth = self.depth + 1;
            below.no_links = self.base_link_policy().no_links;
            below.bottom =
                self.bottom.as_ref().and_then(|(more, place)| Some((more.checked_sub(1)?, place.clone())));
        }
        Ok(base)
    }

    /// Returns the link policy for opening the base. A base named in the redo log was checked by its path,
    /// where another user may place a link afterwards.
    fn base_link_policy(&self) -> LinkPolicy {
        LinkPolicy { no_links: self.bases_no_links || self.bases.is_empty() }
    }

    fn open_base(
        &self,
        base: &DiskSource,
        options: &DiskOpenOptions,
        pool: &ThreadPool,
    ) -> Result<OpenedDisk, Failure> {
        let no_links = self.base_link_policy().no_links;
        base.open(&DiskOpenOptions { read_only: true, no_links, ..of_log(options) }, pool)
    }

    /// Returns the header of the redo log.
    pub fn header(&self) -> Result<Header, Failure> {
        if let Some(location) = &self.location {
            let log = open_file(location, &read_only())?.disk;
            return block_on(Header::read_from(&cx(), &*log)).map_err(|error| self.cannot(&error));
        }
        let page = first_page(&self.path, LinkPolicy { no_links: self.no_links })
            .map_err(|error| self.cannot(&error))?;
        Header::from_page(&page).map_err(|error| self.cannot(&error))
    }

    /// Refuses a redo log that may still be written to.
    pub fn check_finished(&self) -> Outcome {
        self.finished_or_not(self.header()?.seal.is_some())
    }

    fn finished_or_not(&self, is_finished: bool) -> Outcome {
        if is_finished {
            return Ok(());
        }
        let reason = "it is not finished: it may still be written to, or is an incomplete copy";
        Err(self.cannot(reason).remedy("create one with tombolo vm suspend --to DIR --changes"))
    }

    /// Returns the base named in the redo log.
    fn named(&self) -> Result<PathBuf, Failure> {
        let mut own = self.clone();
        if self.location.is_none() && !self.no_links {
            // The link is resolved once; relative names in the redo log are relative to its target.
            own.path = self.path.canonicalize().map_err(|error| self.cannot(&error))?;
            own.no_links = true;
        }
        let header = own.header()?;
        let name = Path::new(OsStr::from_bytes(&header.base_name));
        let say_it =
            |reason: String| self.cannot(reason).remedy("give its base with --base DISK, in chain order");
        if DiskSource::is_elsewhere(name) || self.location.is_some() {
            return Err(say_it(format!("its base is {}", name.display())));
        }
        let looking =
            |path: &Path| path.canonicalize().map_err(|error| say_it(format!("{}: {error}", path.display())));
        let own = own.path.parent().unwrap_or(Path::new("/"));
        let base = looking(&own.join(name))?;
        let backing_dir = self.backing_dir.as_deref().map(looking).transpose()?;
        let is_allowed = |dir: &Path| base.parent() == Some(dir);
        if is_allowed(own) || backing_dir.as_deref().is_some_and(is_allowed) {
            return Ok(base);
        }
        let reason = format!("{} is in another directory", base.display());
        Err(say_it(reason).remedy("permit it with --backing-dir DIR"))
    }

    /// Returns the needs of serving the overlay. A base reached over the network is opened inside the
    /// sandbox.
    pub fn needs(&self) -> Needs {
        // A missing base is reported when it is opened.
        let mut needs = Needs::default();
        if let Ok(base) = self.base() {
            needs::join(&mut needs, base.needs());
            // A local base below a remote redo log is opened inside the sandbox too.
            if self.location.is_some() {
                needs.reads.extend(base.file().and_then(|path| path.canonicalize().ok()));
            }
        }
        match &self.location {
            Some(location) => needs::join(&mut needs, DiskSource::File(location.clone()).needs()),
            None => needs.changes.extend(self.path.canonicalize()),
        }
        needs
    }

    /// Returns `true` if the redo log or a layer below it is a file at a `shm:` location.
    pub fn is_behind_memory(&self) -> bool {
        matches!(self.location, Some(Location::Shm(_)))
            || self.base().is_ok_and(|base| base.is_behind_memory())
    }

    /// Creates memory for the states of unflushed writes, which outlives servers, and the descriptor by
    /// which servers inherit it.
    pub fn memory_for_states(&self) -> Result<(OwnedFd, i32), Failure> {
        let made = memfd::heritable("overlay-states", self.header()?.kept_bytes() as u64);
        made.map_err(|errno| Failure::cannot(KEEPING, &std::io::Error::from(errno)))
    }

    /// Maps the memory that the keeper has passed in `descriptor`, with the states that an earlier server
    /// left.
    pub fn keep_states_in(&mut self, descriptor: i32) -> Outcome {
        let header = self.header()?;
        let memory = memfd::inherited(descriptor).map_err(std::io::Error::from);
        let (memory, identity) =
            memory.and_then(|memory| Ok((memory, self.identity()?))).or_cannot(KEEPING)?;
        let kept = StateMemory::map(&memory, &header, identity);
        self.states = Some(kept.or_cannot(KEEPING)?);
        Ok(())
    }

    /// Makes the opened overlay append the first reads of its base to this file, which must exist and is
    /// opened now.
    pub fn record_in(&mut self, path: &Path) -> Outcome {
        let opened = File::options().append(true).open(path);
        let file = opened.or_cannot(format_args!("record in {}", path.display()))?;
        self.record = Some(Arc::new(file));
        Ok(())
    }

    /// Makes [`open`](Self::open) publish, in the slot [`bottom`](Self::bottom()), the disk below the lowest
    /// of `layers` overlays that lie under this one.
    pub fn hand_out_below(&mut self, layers: u32) {
        self.bottom = Some((layers, Bottom::default()));
    }

    /// Returns the slot that [`hand_out_below`](Self::hand_out_below) has created, if any.
    pub fn bottom(&self) -> Option<Bottom> {
        self.bottom.as_ref().map(|(_, place)| place.clone())
    }

    pub fn is_recorded(&self) -> bool {
        self.record.is_some()
    }

    /// Returns an identity of the redo log that differs from that of a later file of the same name, if the
    /// file system records birth times.
    fn identity(&self) -> std::io::Result<Identity> {
        let it = fs::metadata(&self.path)?;
        // Inode numbers are reused, birth times are not.
        let born = it.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        let born = born.map_or(0, |born| born.as_nanos() as u64);
        let mut identity = Identity::default();
        let places = identity.chunks_exact_mut(8);
        places
            .zip([it.dev(), it.ino(), born])
            .for_each(|(place, it)| place.copy_from_slice(&it.to_le_bytes()));
        Ok(identity)
    }

    /// Opens the overlay, and its base read-only.
    pub fn open(&self, options: &DiskOpenOptions, pool: &ThreadPool) -> Result<OpenedDisk, Failure> {
        let log = self.open_log(options, pool)?;
        // The name of the base is read again under the lock: no other process replaces the redo log from now
        // on.
        let mut base = self.base()?;
        if let (DiskSource::Overlay(below), Some(file)) = (&mut base, &self.record) {
            // Records reads of the redo log below; the layers under that one have traces of their own.
            below.record_log = Some(Arc::clone(file));
        }
        let opened = self.open_base(&base, options, pool)?;
        let below = match &self.record {
            Some(file) if !matches!(base, DiskSource::Overlay(_)) => {
                record::over(opened.disk, Arc::clone(file), &base.name())
            }
            _ => opened.disk,
        };
        if let Some((0, place)) = &self.bottom {
            let _ = place.0.set(below.clone());
        }
        let disk = self.open_over(&base, below, log.disk, options)?;
        Ok(OpenedDisk { disk, client: opened.client.or(log.client) })
    }

    fn open_log(&self, options: &DiskOpenOptions, pool: &ThreadPool) -> Result<OpenedDisk, Failure> {
        let opened = match &self.location {
            Some(_) if !options.read_only => {
                let reason = "remote overlays are read-only";
                return Err(Failure::cannot(format_args!("write to {}", self.path.display()), reason)
                    .remedy("create a local overlay of it: tombolo disk create NAME.overlay --base URL"));
            }
            Some(location) => open_file(location, &of_log(options))?,
            None => {
                let options = DiskOpenOptions { no_links: self.no_links, ..of_log(options) };
                let log = ImageFile::open(&self.path, &options, pool.lane());
                OpenedDisk { disk: log.map_err(|error| self.cannot(&error))?, client: None }
            }
        };
        Ok(match &self.record_log {
            Some(file) => {
                let name = DiskSource::Overlay(self.clone()).name();
                OpenedDisk { disk: record::over(opened.disk, Arc::clone(file), &name), ..opened }
            }
            None => opened,
        })
    }

    /// Opens the redo log over the base.
    fn open_over(
        &self,
        base: &DiskSource,
        disk: Arc<dyn BlockDevice>,
        log: Arc<dyn BlockDevice>,
        options: &DiskOpenOptions,
    ) -> Result<Arc<Overlay>, Failure> {
        let mark = mark_of(base, self.base_link_policy())?;
        let mark = if self.base_in_use { self.header()?.base_mark } else { mark };
        let opened = block_on(Overlay::open(&cx(), disk, &mark, log, options, self.states.clone()));
        let overlay = opened.map_err(|error| {
            let failure = self.cannot(&error);
            match error {
                OverlayError::BaseChanged => {
                    failure.remedy(format_args!("restore the original base (size and mtime): {base}"))
                }
                OverlayError::Sealed => {
                    failure.remedy("create an overlay of it: tombolo disk create NAME.overlay --base OVERLAY")
                }
                OverlayError::Torn | OverlayError::TooShort { .. } => {
                    failure.remedy("create the overlay again")
                }
                _ => failure,
            }
        })?;
        // The lock of this host does not exclude remote writers.
        self.finished_or_not(self.location.is_none() || overlay.is_sealed())?;
        Ok(overlay)
    }

    /// Creates an empty redo log with this access. The file must not exist.
    pub fn create(&self, size_bytes: Option<u64>, access: Access) -> Outcome {
        let base = self.base()?;
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let base_bytes = self.open_base(&base, &read_only(), &pool)?.disk.geometry().size_bytes;
        let making = format!("make {}", self.path.display());
        // A power failure that reverted the base's modification time would invalidate the mark.
        if let Some(file) = base.file() {
            self.base_link_policy().read(file).and_then(|file| file.sync_all()).or_cannot(&making)?;
        }
        let file =
            File::options().write(true).create_new(true).mode(0o600).open(&self.path).or_cannot(&making)?;
        let written = || -> Outcome {
            let header = Header {
                size_bytes: size_bytes.unwrap_or(base_bytes),
                base_bytes,
                base_name: self.base_name(&base).or_cannot(&making)?,
                base_mark: mark_of(&base, self.base_link_policy())?,
                seal: None,
            };
            self.new_log(&header, &pool)?;
            access.give(&file).and_then(|()| sync_name(&self.path)).or_cannot(&making)
        };
        written().inspect_err(|_| drop(fs::remove_file(&self.path)))
    }

    /// Returns the recorded name of the base: relative if it is in the same directory, so that both can be
    /// moved.
    fn base_name(&self, base: &DiskSource) -> std::io::Result<Vec<u8>> {
        let Some(path) = base.file() else { return Ok(base.to_string().into_bytes()) };
        let (base, own) = (path.canonicalize()?, self.path.canonicalize()?);
        let name = match (base.parent() == own.parent(), base.file_name()) {
            (true, Some(name)) => name.as_bytes(),
            _ => base.as_os_str().as_bytes(),
        };
        Ok(name.to_vec())
    }
}

fn first_page(path: &Path, way: LinkPolicy) -> std::io::Result<Vec<u8>> {
    // Checked before the file is opened: opening a pipe blocks until its peer opens it.
    if !way.look(path)?.is_file() {
        return Err(std::io::Error::other("it is not a file"));
    }
    let mut page = Vec::new();
    way.read(path)?.take(HEADER_BYTES).read_to_end(&mut page)?;
    Ok(page)
}

fn read_only() -> DiskOpenOptions {
    DiskOpenOptions { read_only: true, ..DiskOpenOptions::default() }
}

/// Replaces the block size by that of redo logs.
fn of_log(options: &DiskOpenOptions) -> DiskOpenOptions {
    DiskOpenOptions { block_bytes: DiskOpenOptions::default().block_bytes, ..*options }
}

/// Syncs the directory of a file, which makes the creation, renaming or removal of the file durable.
pub fn sync_name(path: &Path) -> std::io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    File::open(dir.unwrap_or(Path::new(".")))?.sync_all()
}

fn cx() -> Ctx {
    Ctx::root(SessionId(0))
}

/// Returns the mark of a disk as recorded in a redo log (docs/formats/overlay.md): the modification times of
/// its file and of the files below it; empty for a block device or an NBD disk. Of an overlay only the redo
/// log counts, since an overlay verifies its own base.
fn mark_of(disk: &DiskSource, way: LinkPolicy) -> Result<Vec<u8>, Failure> {
    if let Some(location) = disk.location() {
        let Timestamp { secs, nanos } = attr_of(location)?.mtime;
        return Ok(mark_of_time(secs, nanos).to_vec());
    }
    let mut mark = Vec::new();
    let files: Vec<PathBuf> = match disk {
        DiskSource::Overlay(overlay) => vec![overlay.path.clone()],
        _ => disk.layers()?.iter().flat_map(Layer::files).map(Path::to_owned).collect(),
    };
    for path in files {
        let it = way.look(&path).or_cannot(format_args!("get attributes of {}", path.display()))?;
        if it.is_file() {
            mark.extend(mark_of_time(it.mtime(), it.mtime_nsec() as u32));
        }
    }
    Ok(mark)
}

impl OverlaySource {
    /// Creates an empty redo log at `path`, the draft of the layer above this overlay. Later this overlay is
    /// renamed to `base_name`, and the draft to this overlay's present name; until then this overlay may be
    /// written to. The returned file is locked for writing. The contents of the draft are durable, its
    /// directory entry is not, and its header has no valid mark before [`mark_base`].
    pub fn draft(&self, path: &Path, base_name: &str) -> Result<File, Failure> {
        let header = self.header()?;
        let drafted = || -> std::io::Result<File> {
            // A process that was killed may have left this file.
            let _ = fs::remove_file(path);
            let (size_bytes, base_mark) = (header.size_bytes, vec![0; mark_of_time(0, 0).len()]);
            let base_name = base_name.as_bytes().to_vec();
            let header = Header { size_bytes, base_bytes: size_bytes, base_name, base_mark, seal: None };
            let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
            file.set_len(header.log_bytes())?;
            file.write_all_at(&header.to_page().map_err(std::io::Error::other)?, 0)?;
            lock_open_image(path, &file, &DiskOpenOptions::default()).map_err(std::io::Error::other)?;
            file.sync_all()?;
            Ok(file)
        };
        drafted().or_cannot(format_args!("make {}", path.display()))
    }
}

/// Records the mark of the base durably in a [draft](OverlaySource::draft), or in an overlay opened with its
/// base in use. The base must not be written to afterwards: its mark would change.
pub fn mark_base(draft: &File, base: &Path) -> std::io::Result<()> {
    let base = File::open(base)?;
    // Makes the modification time durable too, which a flush of a disk does not.
    base.sync_all()?;
    let mut page = vec![0; HEADER_BYTES as usize];
    draft.read_exact_at(&mut page, 0)?;
    let header = Header::from_page(&page).map_err(std::io::Error::other)?;
    let header = Header { base_mark: mark_of_overlay(&base)?, ..header };
    draft.write_all_at(&header.to_page().map_err(std::io::Error::other)?, 0)?;
    draft.sync_all()
}

/// Returns the mark of an overlay that is a base.
pub fn mark_of_overlay(file: &File) -> std::io::Result<Vec<u8>> {
    let it = file.metadata()?;
    Ok(mark_of_time(it.mtime(), it.mtime_nsec() as u32).to_vec())
}

fn mark_of_time(secs: i64, nanos: u32) -> [u8; 12] {
    let mut mark = [0; 12];
    let (of_secs, of_nanos) = mark.split_at_mut(8);
    of_secs.copy_from_slice(&secs.to_le_bytes());
    of_nanos.copy_from_slice(&nanos.to_le_bytes());
    mark
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn base_replaced_by_link_is_refused() {
        let (dir, elsewhere) =
            (tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("another"));
        let [log, base] = ["top.overlay", "base.img"].map(|name| dir.path().join(name));
        let secret = elsewhere.path().join("secret");
        for file in [&base, &secret] {
            File::create(file).and_then(|file| file.set_len(1 << 20)).expect("made");
        }
        let said = ImageOptions { base: vec![base.clone()], ..ImageOptions::default() };
        OverlaySource::new(log.clone(), &said).create(None, Access::PRIVATE).expect("made");
        let source = OverlaySource::new(log, &ImageOptions::default());
        let pool = ThreadPool::new("disk", ThreadPoolLimits::default());
        let named = source.base().expect("beside it");
        source.open_base(&named, &read_only(), &pool).expect("a file");
        fs::remove_file(&base).and_then(|()| symlink(&secret, &base)).expect("a link");
        let refused = source.open_base(&named, &read_only(), &pool).err().expect("a link").to_string();
        assert!(refused.contains("base.img"), "{refused}");
    }
}
