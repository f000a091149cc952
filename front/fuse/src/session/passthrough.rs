//! Files that the kernel reads by itself (FUSE passthrough): those of which the file system has a backing file.
//!
//! Linux (fs/fuse/iomode.c) has an inode open in one way at a time: each opening through the same backing file, or each through the inode's
//! pages. An OPEN that is answered in another way fails with EIO. So the first opening of a node decides for all that come before its last
//! RELEASE; the kernel has ended an opening before it sends that. Only trees that cannot be changed have backing files, so no CREATE opens one.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tombolo_core::fs::{Attr, File, FileSystem, NodeId, OpenFlags};
use tombolo_sys::Errno;
use tombolo_wire_fuse::BackingId;
use tombolo_wire_fuse::layout::open::OpenOutFlags;

/// A transport's way to tell its kernel of backing files.
pub trait Backing: fmt::Debug + Send + Sync {
    /// The kernel keeps `file`.
    ///
    /// # Errors
    /// The kernel's.
    fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno>;

    /// It needs to know it no longer.
    fn close(&self, backing: BackingId);
}

/// The openings of a session whose file system may have backing files.
pub(super) struct Passthrough {
    file_system: Arc<dyn FileSystem>,
    kernel: Arc<dyn Backing>,
    nodes: Mutex<HashMap<NodeId, Openings>>,
    /// The kernel took no backing file.
    is_refused: AtomicBool,
    openings: AtomicU64,
}

/// The openings of one node, all in one way.
struct Openings {
    count: u64,
    backed: Option<Backed>,
}

struct Backed {
    id: BackingId,
    _hold: Arc<dyn Any + Send + Sync>,
}

/// A smaller file is read with a request or two, and its pages stay with the kernel: to name a backing file for it takes as long.
const BACKED_BYTES_MIN: u64 = 128 << 10;

/// What an opening must not be for to be read by the kernel itself.
const ASKED_FOR: OpenFlags =
    OpenFlags::WRITE.union(OpenFlags::APPEND).union(OpenFlags::TRUNCATE).union(OpenFlags::DIRECT);

impl Passthrough {
    /// `None` where the file system has no backing files.
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

    /// A file was opened, with these flags so far. What the kernel is told instead. `may_pass`: whether this opening may be read past the session.
    pub(super) fn opened(
        &self,
        file: File,
        how: OpenFlags,
        attr: Option<&Attr>,
        may_pass: bool,
        flags: OpenOutFlags,
    ) -> (OpenOutFlags, Option<BackingId>) {
        let reads_past = may_pass && how.contains(OpenFlags::READ) && !how.intersects(ASKED_FOR);
        let mut nodes = self.nodes();
        let openings = match nodes.entry(file.node) {
            Entry::Occupied(openings) => openings.into_mut(),
            Entry::Vacant(place) => {
                let is_large = attr.is_none_or(|attr| attr.size >= BACKED_BYTES_MIN);
                let backed = if reads_past && is_large { self.back(file) } else { None };
                place.insert(Openings { count: 0, backed })
            }
        };
        openings.count += 1;
        let Some(backed) = &openings.backed else { return (flags, None) };
        let mut flags = OpenOutFlags::PASSTHROUGH | (flags & OpenOutFlags::NOFLUSH);
        // Then only its mappings are the backing file's.
        flags.set(OpenOutFlags::DIRECT_IO, !reads_past);
        self.openings.fetch_add(u64::from(reads_past), Ordering::Relaxed);
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
                    tracing::info!(%error, "no FUSE passthrough: the kernel takes no file of the cache");
                }
                None
            }
        }
    }

    /// An opening of a node has ended. One of a directory was never counted.
    pub(super) fn released(&self, node: NodeId) {
        let mut nodes = self.nodes();
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

    /// The kernel has no opening any more, whatever it has sent: backing files end with the connection.
    pub(super) fn ended(&self) {
        drop(std::mem::take(&mut *self.nodes()));
    }

    /// How many openings the kernel reads by itself, since the session began.
    pub(super) fn openings(&self) -> u64 {
        self.openings.load(Ordering::Relaxed)
    }

    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeId, Openings>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
