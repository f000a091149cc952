//! FUSE passthrough: the kernel itself reads files of which the file system has a backing file.
//!
//! Linux (fs/fuse/iomode.c) has an inode open in one mode at a time: every opening through the same backing
//! file, or every opening through the inode's pages. An OPEN answered with the other mode fails with EIO.
//! Hence the first opening of a node decides for all openings before its last RELEASE; the kernel has closed
//! an opening before it sends RELEASE. Only read-only file systems have backing files, so CREATE opens none.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{Attr, File, FileSystem, NodeId, OpenFlags};
use tombolo_core::lock;
use tombolo_sys::Errno;
use tombolo_wire_fuse::BackingId;
use tombolo_wire_fuse::layout::open::OpenOutFlags;

/// A transport's registration of backing files with its kernel.
pub trait Backing: fmt::Debug + Send + Sync {
    /// Registers `file`.
    ///
    /// # Errors
    /// The kernel's error.
    fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno>;

    /// Unregisters a backing file.
    fn close(&self, backing: BackingId);
}

/// The openings of a session whose file system may have backing files.
pub(super) struct Passthrough {
    file_system: Arc<dyn FileSystem>,
    kernel: Arc<dyn Backing>,
    nodes: Mutex<HashMap<NodeId, Openings>>,
    /// `true` once the kernel has rejected a backing file.
    is_refused: AtomicBool,
    openings: AtomicU64,
}

/// The openings of one node, all in the same mode.
struct Openings {
    count: u64,
    backed: Option<Backed>,
}

struct Backed {
    id: BackingId,
    _hold: Arc<dyn Any + Send + Sync>,
}

/// Minimum size for passthrough: a smaller file takes one or two READs and is then in the page cache;
/// registering a backing file costs as much.
const BACKED_BYTES_MIN: u64 = 128 << 10;

/// Open flags that rule passthrough out for an opening.
const EXCLUDED_FLAGS: OpenFlags =
    OpenFlags::WRITE.union(OpenFlags::APPEND).union(OpenFlags::TRUNCATE).union(OpenFlags::DIRECT);

impl Passthrough {
    /// Creates the record of a session's openings; `None` if the file system has no backing files.
    pub(super) fn new(file_system: &Arc<dyn FileSystem>, kernel: Arc<dyn Backing>) -> Option<Arc<Self>> {
        file_system.backing_files()?;
        Some(Arc::new(Self {
            file_system: file_system.clone(),
            kernel,
            nodes: Mutex::default(),
            is_refused: AtomicBool::new(false),
            openings: AtomicU64::new(0),
        }))
    }

    /// Registers an opening; returns the flags and the backing file, if any, for the reply, given `flags`
    /// without passthrough. `may_pass`: this opening may bypass the session.
    pub(super) fn opened(
        &self,
        file: File,
        how: OpenFlags,
        attr: Option<&Attr>,
        may_pass: bool,
        flags: OpenOutFlags,
    ) -> (OpenOutFlags, Option<BackingId>) {
        let bypasses_session = may_pass && how.contains(OpenFlags::READ) && !how.intersects(EXCLUDED_FLAGS);
        let mut nodes = lock(&self.nodes);
        let openings = match nodes.entry(file.node) {
            Entry::Occupied(openings) => openings.into_mut(),
            Entry::Vacant(place) => {
                let is_large = attr.is_none_or(|attr| attr.size >= BACKED_BYTES_MIN);
                let backed = if bypasses_session && is_large { self.back(file) } else { None };
                place.insert(Openings { count: 0, backed })
            }
        };
        openings.count += 1;
        let Some(backed) = &openings.backed else { return (flags, None) };
        let mut flags = OpenOutFlags::PASSTHROUGH | (flags & OpenOutFlags::NOFLUSH);
        // With DIRECT_IO only memory mappings use the backing file; reads and writes reach the session.
        flags.set(OpenOutFlags::DIRECT_IO, !bypasses_session);
        self.openings.fetch_add(u64::from(bypasses_session), Ordering::Relaxed);
        (flags, Some(backed.id))
    }

    fn back(&self, file: File) -> Option<Backed> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let backing = self.file_system.backing_files()?.backing_file(file)?;
        match self.kernel.open(backing.descriptor.as_fd()) {
            Ok(id) => Some(Backed { id, _hold: backing.hold }),
            Err(error) => {
                if !self.is_refused.swap(true, Ordering::Relaxed) {
                    tracing::info!(%error, "FUSE passthrough disabled: the kernel rejected a backing file");
                }
                None
            }
        }
    }

    /// Removes an opening of a node. Directories were never counted.
    pub(super) fn released(&self, node: NodeId) {
        let mut nodes = lock(&self.nodes);
        let Entry::Occupied(mut openings) = nodes.entry(node) else { return };
        openings.get_mut().count -= 1;
        if openings.get().count > 0 {
            return;
        }
        let ended = openings.remove();
        drop(nodes);
        if let Some(backed) = ended.backed {
            self.kernel.close(backed.id);
        }
    }

    /// Drops all openings: backing files end with the connection.
    pub(super) fn ended(&self) {
        drop(std::mem::take(&mut *lock(&self.nodes)));
    }

    /// Returns the number of passthrough openings since the session began.
    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use tombolo_back_memory::Memory;
    use tombolo_core::SessionId;
    use tombolo_core::fs::{BackingFile, BackingFiles, Client, Export, OpenId, PermissionCheck};

    /// File system with a backing file for every node.
    struct Whole(Arc<dyn FileSystem>);

    impl FileSystem for Whole {
        tombolo_core::forward!(to self.0;
            lookup forget getattr setattr access readlink create create_unnamed mkdir symlink mknod link unlink rmdir rename
            open release flush fsync read write readdir statfs syncfs profile);

        fn backing_files(&self) -> Option<&dyn BackingFiles> {
            Some(self)
        }
    }

    impl BackingFiles for Whole {
        fn backing_file(&self, _: File) -> Option<BackingFile> {
            let null = std::fs::File::open("/dev/null").expect("open");
            Some(BackingFile { descriptor: OwnedFd::from(null), hold: Arc::new(()) })
        }
    }

    /// Kernel that accepts `takes` files and records the calls.
    #[derive(Debug)]
    struct Kernel {
        takes: usize,
        calls: Mutex<Vec<(&'static str, i32)>>,
    }

    impl Backing for Kernel {
        fn open(&self, _: BorrowedFd<'_>) -> Result<BackingId, Errno> {
            let mut calls = self.calls.lock().unwrap();
            let id = calls.len() as i32 + 1;
            calls.push(("open", id));
            if calls.len() > self.takes { Err(Errno::PERM) } else { Ok(BackingId(id)) }
        }

        fn close(&self, backing: BackingId) {
            self.calls.lock().unwrap().push(("close", backing.0));
        }
    }

    fn over(takes: usize) -> (Arc<Passthrough>, Arc<Kernel>) {
        let client = Client { session: SessionId(1), label: "test".into(), checks: PermissionCheck::Caller };
        let file_system = Memory::default().attach(&client).expect("attach");
        let kernel = Arc::new(Kernel { takes, calls: Mutex::default() });
        let whole: Arc<dyn FileSystem> = Arc::new(Whole(file_system.clone()));
        assert!(Passthrough::new(&file_system, kernel.clone()).is_none(), "it has no backing files");
        (Passthrough::new(&whole, kernel.clone()).expect("it has"), kernel)
    }

    fn opened(all: &Passthrough, node: u64, how: OpenFlags) -> (OpenOutFlags, Option<i32>) {
        let file = File { node: NodeId(node), open: OpenId(1) };
        let (flags, id) = all.opened(file, how, None, true, OpenOutFlags::KEEP_CACHE);
        (flags, id.map(|id| id.0))
    }

    const ORDINARY: (OpenOutFlags, Option<i32>) = (OpenOutFlags::KEEP_CACHE, None);

    #[test]
    fn the_first_opening_decides_until_the_last_has_ended() {
        let (all, kernel) = over(9);
        let (read, write) = (OpenFlags::READ, OpenFlags::READ | OpenFlags::WRITE);
        assert_eq!(opened(&all, 5, read), (OpenOutFlags::PASSTHROUGH, Some(1)));
        assert_eq!(opened(&all, 5, read), (OpenOutFlags::PASSTHROUGH, Some(1)));
        let asked = OpenOutFlags::PASSTHROUGH | OpenOutFlags::DIRECT_IO;
        assert_eq!(opened(&all, 5, write), (asked, Some(1)), "what is written is asked for");
        assert_eq!(opened(&all, 6, write), ORDINARY);
        assert_eq!(opened(&all, 6, read), ORDINARY, "one that writes is open");
        all.released(NodeId(6));
        (0..2).for_each(|_| all.released(NodeId(5)));
        assert_eq!(*kernel.calls.lock().unwrap(), [("open", 1)], "one is open still");
        (5..8).for_each(|node| all.released(NodeId(node)));
        assert_eq!(*kernel.calls.lock().unwrap(), [("open", 1), ("close", 1)]);
        assert_eq!(opened(&all, 6, read), (OpenOutFlags::PASSTHROUGH, Some(3)));
        assert_eq!(all.openings(), 3);
        all.ended();
        assert_eq!(opened(&all, 6, write), ORDINARY, "nothing is open");
    }

    #[test]
    fn rejected_backing_file_disables_passthrough() {
        let (all, kernel) = over(0);
        (1..5).for_each(|node| assert_eq!(opened(&all, node, OpenFlags::READ), ORDINARY));
        assert_eq!(kernel.calls.lock().unwrap().len(), 1);
    }

    #[test]
    fn small_files_are_not_passed_through() {
        let (all, _) = over(9);
        let attr = |size| {
            let attr =
                tombolo_wire_fuse::layout::attr::FuseAttr { mode: 0o100_644, size, ..Default::default() };
            tombolo_wire_fuse::attr::from_wire(&attr).expect("good")
        };
        for (size, is_backed) in [(0, false), (BACKED_BYTES_MIN - 1, false), (BACKED_BYTES_MIN, true)] {
            let file = File { node: NodeId(size + 1), open: OpenId(1) };
            let (_, id) = all.opened(file, OpenFlags::READ, Some(&attr(size)), true, OpenOutFlags::empty());
            assert_eq!(id.is_some(), is_backed, "{size} bytes");
        }
    }
}
