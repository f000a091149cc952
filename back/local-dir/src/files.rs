//! The open files of a session.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tombolo_core::fs::{Cookie, File, NodeId, OpenFlags, OpenId, SyncScope};
use tombolo_core::{Budget, Error, Permit, Resource, Result, lock};
use tombolo_host_runtime::descriptors::{self, Share};
use tombolo_sys::dir::{self, Cookie as SysCookie, Listing};
use tombolo_sys::{Errno, sync};

use crate::mounts::Medium;

/// An open file or directory, with a descriptor of its own.
#[derive(Debug)]
pub(crate) struct OpenFile {
    descriptor: OwnedFd,
    pub node: NodeId,
    pub flags: OpenFlags,
    /// The storage that the file lies on.
    pub medium: Medium,
    /// Read position, for directories.
    pub cursor: Option<Mutex<Cursor>>,
    /// `true` once the client has released the opening; requests in flight may still use it.
    ended: AtomicBool,
    /// Declared after the descriptor, so that it is released after the close.
    _permit: OpenPermit,
}

/// Permit for one more open descriptor, of the session's budget and of the process's limit.
#[derive(Debug)]
pub(crate) struct OpenPermit {
    _budget: Permit,
    _descriptor: descriptors::Permit,
}

/// Limits on the open files of a session.
#[derive(Debug)]
pub(crate) struct Allowance {
    budget: Arc<Budget>,
    descriptors: Share,
}

impl Allowance {
    pub fn new(budget: Arc<Budget>, descriptors: Share) -> Arc<Self> {
        Arc::new(Self { budget, descriptors })
    }

    /// Takes a permit for one more open file; [`Error::TooManyOpen`] if there is none.
    pub fn permit(&self) -> Result<OpenPermit> {
        let budget = self.budget.take(Resource::Opens, 1).ok_or(Error::TooManyOpen)?;
        let descriptor = self.descriptors.take(1).ok_or(Error::TooManyOpen)?;
        Ok(OpenPermit { _budget: budget, _descriptor: descriptor })
    }
}

impl OpenFile {
    pub fn new(
        descriptor: OwnedFd,
        permit: OpenPermit,
        node: NodeId,
        flags: OpenFlags,
        medium: Medium,
    ) -> Self {
        let cursor = flags.contains(OpenFlags::DIRECTORY).then(Mutex::default);
        Self { descriptor, node, flags, medium, cursor, ended: AtomicBool::new(false), _permit: permit }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    pub fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub fn sync(&self, what: SyncScope) -> Result<()> {
        Ok(match what {
            SyncScope::Data => sync::data(self.fd()),
            SyncScope::All | SyncScope::AllWriters => sync::file(self.fd()),
        }?)
    }

    /// Fails unless the file was opened with these flags. A directory is refused unless `DIRECTORY` is
    /// among the flags.
    pub fn require(&self, flags: OpenFlags) -> Result<()> {
        if self.cursor.is_some() && !flags.contains(OpenFlags::DIRECTORY) {
            return Err(Error::IsDirectory);
        }
        if self.flags.contains(flags) { Ok(()) } else { Err(Error::BadOpen) }
    }
}

/// Number of parts of a session's open files, each with a lock of its own.
const SHARDS: usize = 8;

/// All open files of a session, divided so that concurrent opens rarely contend for a lock.
#[derive(Default)]
pub(crate) struct Files {
    shards: [Mutex<Shard>; SHARDS],
    /// Number of files inserted so far, which selects the next one's shard.
    turn: AtomicUsize,
}

#[derive(Default)]
struct Shard {
    slots: Vec<FileSlot>,
    free: Vec<u32>,
}

struct FileSlot {
    generation: u32,
    file: Option<Arc<OpenFile>>,
}

impl Files {
    /// Registers an open file under a new id.
    pub fn insert(&self, file: OpenFile) -> OpenId {
        let shard_number = self.turn.fetch_add(1, Ordering::Relaxed) % SHARDS;
        let mut shard = self.lock(shard_number);
        let index = shard.free.pop().unwrap_or_else(|| {
            shard.slots.push(FileSlot { generation: 0, file: None });
            (shard.slots.len() - 1) as u32
        });
        let slot = &mut shard.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.file = Some(Arc::new(file));
        OpenId((u64::from(slot.generation) << 32) | (u64::from(index) * SHARDS as u64 + shard_number as u64))
    }

    /// Returns the open file; [`Error::BadOpen`] if it has been released or is of another node.
    pub fn find(&self, file: File) -> Result<Arc<OpenFile>> {
        let (shard, index, generation) = parts(file.open);
        let shard = self.lock(shard);
        let slot =
            shard.slots.get(index).filter(|slot| slot.generation == generation).ok_or(Error::BadOpen)?;
        let open = slot.file.as_ref().filter(|open| open.node == file.node).ok_or(Error::BadOpen)?;
        Ok(open.clone())
    }

    /// Removes an open file and marks it as released; `None` if it was released before or is of another node.
    pub fn remove(&self, file: File) -> Option<Arc<OpenFile>> {
        self.find(file).ok()?;
        let (shard, index, generation) = parts(file.open);
        let mut shard = self.lock(shard);
        let slot = shard.slots.get_mut(index).filter(|slot| slot.generation == generation)?;
        let open = slot.file.take()?;
        open.end();
        shard.free.push(index as u32);
        Some(open)
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        lock(&self.shards[shard])
    }
}

/// Splits an id into shard, index and generation.
fn parts(open: OpenId) -> (usize, usize, u32) {
    let low = open.0 as u32 as usize;
    (low % SHARDS, low / SHARDS, (open.0 >> 32) as u32)
}

/// Size of the buffer for directory entries.
const BUFFER_BYTES: usize = 16 << 10;

/// Read position in a directory: the buffered entries not yet returned begin at `next`, and the descriptor's
/// position is after the buffered ones.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub listing: Option<Listing>,
    /// Number of buffered entries that were returned.
    pub given: usize,
    pub next: Cookie,
    /// Buffer of the entries before or after `listing`, for file systems with cookies that lseek(2) refuses.
    spare: Option<Listing>,
    is_spare_ahead: bool,
}

impl Default for Cursor {
    fn default() -> Self {
        Self { listing: None, given: 0, next: Cookie::START, spare: None, is_spare_ahead: false }
    }
}

impl Cursor {
    /// Makes reading continue at `cookie`. Fails with [`Error::NotFound`] if the directory has been removed,
    /// so that its listing ends; with [`Error::BadCookie`] if it has no entry with this cookie.
    pub fn go_to(&mut self, fd: BorrowedFd<'_>, medium: Medium, cookie: Cookie) -> Result<()> {
        // The start is always sought: a restarted listing must show the directory as it is now.
        if self.next == cookie && cookie != Cookie::START {
            // The buffer was freed at the end of the directory, where the descriptor's position still is.
            self.listing.get_or_insert_with(new_listing);
            return Ok(());
        }
        if !dir::can_seek(SysCookie(cookie.0)) {
            // A search for a cookie that cannot exist would read the whole directory each time.
            return if medium.seeks_all { Err(Error::BadCookie) } else { self.find(fd, cookie) };
        }
        if dir::seek(fd, SysCookie(cookie.0)).is_err() {
            self.start_anew();
            // ext4 refuses every position in a removed directory; reading the directory distinguishes this
            // case from an invalid cookie.
            return match new_listing().fill(fd) {
                Err(Errno::NOENT) => Err(Error::NotFound),
                _ => Err(Error::BadCookie),
            };
        }
        self.start_anew();
        self.next = cookie;
        Ok(())
    }

    /// Reads the next entries; `false` at the end of the directory, where the buffer is freed.
    pub fn read(&mut self, fd: BorrowedFd<'_>) -> Result<bool> {
        self.given = 0;
        let Some(listing) = &mut self.listing else { return Ok(false) };
        if std::mem::take(&mut self.is_spare_ahead) {
            std::mem::swap(listing, self.spare.get_or_insert_with(new_listing));
            return Ok(true);
        }
        if listing.entries().any(|entry| !dir::can_seek(entry.next)) {
            std::mem::swap(listing, self.spare.get_or_insert_with(new_listing));
        }
        let more = listing.fill(fd)?;
        if !more {
            self.listing = None;
        }
        Ok(more)
    }

    /// Finds a cookie that lseek(2) refuses. Usually the cookie is among the entries read last, of
    /// which the caller did not take all; otherwise the directory is read from its start.
    fn find(&mut self, fd: BorrowedFd<'_>, cookie: Cookie) -> Result<()> {
        if self.continue_in_listing(cookie) {
            return Ok(());
        }
        if self.spare.is_some() {
            std::mem::swap(&mut self.listing, &mut self.spare);
            self.is_spare_ahead = !self.is_spare_ahead && self.spare.is_some();
            if self.continue_in_listing(cookie) {
                return Ok(());
            }
        }
        dir::seek(fd, SysCookie(Cookie::START.0)).map_err(|_| Error::BadCookie)?;
        self.start_anew();
        while self.read(fd)? {
            if self.continue_in_listing(cookie) {
                return Ok(());
            }
        }
        self.start_anew();
        Err(Error::BadCookie)
    }

    /// Continues after the entry with this cookie; returns `false` if it is not buffered.
    fn continue_in_listing(&mut self, cookie: Cookie) -> bool {
        let Some(listing) = &self.listing else { return false };
        let Some(index) = listing.entries().position(|entry| entry.next.0 == cookie.0) else { return false };
        (self.given, self.next) = (index + 1, cookie);
        true
    }

    fn start_anew(&mut self) {
        self.listing.get_or_insert_with(new_listing).clear();
        (self.given, self.next) = (0, Cookie::START);
        (self.spare, self.is_spare_ahead) = (None, false);
    }
}

fn new_listing() -> Listing {
    Listing::with_size(BUFFER_BYTES)
}

#[cfg(test)]
mod tests {
    use tombolo_sys::statfs;

    use super::*;

    #[test]
    fn far_places_are_looked_for_where_some_may_be() {
        const FUSE: u64 = 0x6573_5546;
        let tree = tempfile::tempdir().expect("a directory");
        let dir = std::fs::File::open(tree.path()).expect("opened");
        let media =
            [statfs::MAGIC_EXT4, statfs::MAGIC_XFS, statfs::MAGIC_BTRFS, statfs::MAGIC_TMPFS, FUSE, 0];
        let reads = media.map(|magic| {
            let mut cursor = Cursor::default();
            let found = cursor.go_to(dir.as_fd(), Medium::of(magic), Cookie(1 << 63));
            assert!(matches!(found, Err(Error::BadCookie)), "{magic:x}");
            cursor.listing.is_some()
        });
        assert_eq!(reads, [false, false, false, false, true, true]);
    }
}
