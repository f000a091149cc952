//! A file system under the layer, with operation counts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fastrand::Rng;
use tempfile::TempDir;
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_back_memory::Memory;
use tombolo_core::fs::{Create, Exclusive, Export, FileType, RenameFlags};
use tombolo_core::{Answer, ClientId, Ctx, KeyProperties, RequestKey, Want};
use tombolo_layer_basic::stats::{self, Counters};
use tombolo_layer_replies as replies;
use tombolo_layer_replies::{Options, Replies};
use tombolo_test_support::history::Action;
use tombolo_test_support::{READ_WRITE, Session, mode, name, with_session};

/// The file system at the bottom.
#[derive(Clone, Copy, Debug)]
pub enum Bottom {
    Memory,
    /// A directory in memory (tmpfs).
    Tmpfs,
    /// A directory on disk.
    Disk,
}

pub const BOTTOMS: [Bottom; 3] = [Bottom::Memory, Bottom::Tmpfs, Bottom::Disk];

impl Bottom {
    /// Creates the export, with the directory that must outlive it.
    pub fn export(self) -> (Arc<dyn Export>, Option<TempDir>) {
        match self.scratch() {
            None => (Arc::new(Memory::default()), None),
            Some(scratch) => (local_dir(scratch.path()), Some(scratch)),
        }
    }

    /// Creates a scratch directory, for exports that need one.
    pub fn scratch(self) -> Option<TempDir> {
        let place = match self {
            Self::Memory => return None,
            Self::Tmpfs => "/dev/shm",
            Self::Disk => env!("CARGO_TARGET_TMPDIR"),
        };
        Some(tempfile::tempdir_in(place).expect("a scratch directory"))
    }
}

pub fn local_dir(path: &Path) -> Arc<dyn Export> {
    Arc::new(LocalDir::open(path, DirOptions::default()).expect("the export"))
}

/// The layer over an export, and a session of it.
pub struct Fixture {
    pub export: Arc<Replies>,
    session: Session,
    /// Counters of operations that reach the bottom.
    pub below: Arc<Counters>,
    _scratch: Option<TempDir>,
}

with_session!(Fixture);

impl Fixture {
    pub fn new(bottom: Bottom) -> Self {
        Self::with(bottom, &Options::default(), |export| export)
    }

    /// Creates a fixture with another layer below the tested one, above which operations are counted.
    pub fn with(
        bottom: Bottom,
        options: &Options,
        under: impl FnOnce(Arc<dyn Export>) -> Arc<dyn Export>,
    ) -> Self {
        let (export, scratch) = bottom.export();
        let below = Counters::new();
        let counted = Arc::new(stats::over(under(export), below.clone()));
        let export = Arc::new(replies::over(counted, options));
        let session = attach(&*export);
        Self { export, session, below, _scratch: scratch }
    }

    /// Returns the number of times that the bottom performed an operation.
    pub fn ran(&self, op: &str) -> u64 {
        self.below.snapshot().operation(op).map_or(0, |operation| operation.count)
    }
}

/// Begins a session that requests all attributes.
pub fn attach(export: &dyn Export) -> Session {
    let session = Session::attach(export);
    session.with(Ctx { want: Want::CHANGE_ATTRS, ..session.cx.clone() })
}

/// Returns a session whose operations are one request.
pub fn request(session: &Session) -> Session {
    keyed(session, fresh_key())
}

/// Starts a mkdir, which returns the new directory's inode number.
pub fn start_mkdir(at: &Session, text: &str) -> Answer<u64> {
    at.fs.mkdir(&at.cx, at.dir, name(text), mode(0o755)).map(|made| made.entry.attr.fileid)
}

/// Returns an unused key.
pub fn fresh_key() -> RequestKey {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    rpc(7, NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn rpc(client: u64, xid: u32) -> RequestKey {
    call_key(client, xid, 9, 1)
}

/// Returns the key of a call to an NFS server.
pub fn call_key(client: u64, xid: u32, procedure: u32, checksum: u32) -> RequestKey {
    let key = u128::from(xid) | u128::from(procedure) << 32 | u128::from(checksum) << 64;
    RequestKey { client: client.into(), key, properties: KeyProperties::empty() }
}

/// Returns the key of a request numbered by `incarnation` of the peer `peer`.
pub fn numbered(incarnation: u8, peer: u64, number: u64) -> RequestKey {
    let mut client = [incarnation; 24];
    client[16..].copy_from_slice(&peer.to_le_bytes());
    let properties = KeyProperties::FENCED | KeyProperties::FEW_UNDER_WAY;
    RequestKey { client: ClientId(client), key: number.into(), properties }
}

pub fn keyed(session: &Session, key: impl Into<Option<RequestKey>>) -> Session {
    session.with(Ctx { key: key.into(), ..session.cx.clone() })
}

/// Returns the parameters of a new file, which must not exist.
pub fn plain() -> Create {
    Create { exclusive: Exclusive::Yes, ..tombolo_test_support::plain() }
}

/// Samples a change of names or of a size.
pub fn change(random: &mut Rng) -> Action {
    loop {
        break match Action::on_name(random) {
            Action::Lookup(_) => continue,
            Action::Create(at, _, _, exclusive) => Action::Create(at, 0o644, READ_WRITE, exclusive),
            Action::Mkdir(at, _) => Action::Mkdir(at, 0o755),
            Action::Mknod(at, _) => Action::Mknod(at, FileType::Fifo),
            Action::Rename(..) if random.u8(..3) == 0 => {
                Action::Resize(random.usize(..12), random.u64(..200))
            }
            Action::Rename(from, to, _) => Action::Rename(from, to, RenameFlags::empty()),
            other => other,
        };
    }
}
