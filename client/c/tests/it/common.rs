//! A directory, a server for it in this process, and a C tree on its socket.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;

use tempfile::TempDir;
use tombolo::{
    Counts, Stat, TomboloTree, tombolo_close, tombolo_counts, tombolo_list, tombolo_lstat, tombolo_open,
    tombolo_read, tombolo_readlink, tombolo_stat,
};
use tombolo_back_local_dir::{LocalDir, Options as DirOptions};
use tombolo_core::fs::Export;
use tombolo_front_vrpc_server::{Options, VrpcServer};
use tombolo_host_links::listen::{LinkListener, ListenOptions};
use tombolo_host_links::rendezvous::MemoryListener;
use tombolo_host_links::server::Server;
use tombolo_host_links::shared_memory::{MemoryLocation, SharedMemory};
use tombolo_shm::doorbell;
use tombolo_shm::link::Limits;

/// A served directory whose host is watched.
pub struct Served {
    pub dir: TempDir,
    serving: Serving,
}

/// A server of one export, `src`.
pub struct Serving {
    _listener: LinkListener,
    server: Arc<Server>,
    sockets: TempDir,
}

impl Served {
    /// Creates `a/b/file`, links `a/link` to it, `away` to nothing and `loop` to itself, and `empty`.
    pub fn new() -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), b"content").unwrap();
        std::fs::write(dir.path().join("empty"), b"").unwrap();
        for (target, link) in [("b/file", "a/link"), ("nothing", "away"), ("loop", "loop")] {
            std::os::unix::fs::symlink(target, dir.path().join(link)).unwrap();
        }
        let options = DirOptions { watch_host: true, ..DirOptions::default() };
        let export = Arc::new(LocalDir::open(dir.path(), options).expect("served"));
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        Self { dir, serving: Serving::new(export) }
    }

    pub fn socket(&self) -> CString {
        self.serving.socket()
    }

    /// Returns the local path of a path of the tree.
    pub fn local(&self, path: &str) -> CString {
        c(self.dir.path().join(path))
    }

    pub fn open(&self) -> Opened {
        Opened::at(&self.socket(), c"src").expect("a tree")
    }

    /// Serves the directory over a file of that size too. Returns the listener and the file's place.
    pub fn over_memory(&self, bytes: u64) -> (MemoryListener, CString) {
        let path = self.serving.sockets.path().join("memory");
        let memory = SharedMemory::to_serve(&MemoryLocation::File(path.clone()), Some(bytes));
        let (server, mode) = (Arc::clone(&self.serving.server), doorbell::Mode::default());
        let memory = memory.expect("mapped");
        let listener = MemoryListener::start(memory, server, Limits::default(), mode, "guest");
        (listener.expect("served"), c(format!("shm+file:{}", path.display())))
    }
}

impl Serving {
    pub fn new(export: Arc<dyn Export>) -> Self {
        let service = VrpcServer::new().with_export("src", export, Options::default());
        let server = Arc::new(Server::new(Arc::new(service)));
        let sockets = TempDir::new().unwrap();
        std::fs::set_permissions(sockets.path(), Permissions::from_mode(0o755)).unwrap();
        let socket = sockets.path().join("s");
        // Any user may connect; the policy decides on access.
        let options = ListenOptions { socket_mode: 0o666, ..ListenOptions::default() };
        let listener = LinkListener::start(&socket, Arc::clone(&server), options).expect("a listener");
        Self { _listener: listener, server, sockets }
    }

    pub fn socket(&self) -> CString {
        c(self.sockets.path().join("s"))
    }
}

/// A tree, closed on drop.
pub struct Opened(pub *mut TomboloTree);

// SAFETY: any thread may use a tree (tombolo.h).
unsafe impl Send for Opened {}
// SAFETY: any number of threads at once, except for closing, which takes the only reference.
unsafe impl Sync for Opened {}

impl Opened {
    pub fn at(socket: &CStr, name: &CStr) -> Result<Self, c_int> {
        let mut tree = ptr::null_mut();
        // SAFETY: two strings, and memory for a pointer.
        let result = unsafe { tombolo_open(socket.as_ptr(), name.as_ptr(), &mut tree) };
        assert_eq!(tree.is_null(), result != 0);
        if result == 0 { Ok(Self(tree)) } else { Err(result) }
    }

    pub fn stat(&self, path: &str) -> Result<Stat, c_int> {
        let mut out = Stat::default();
        // SAFETY: an open tree, a string, and memory for attributes.
        sure(unsafe { tombolo_stat(self.0, c(path).as_ptr(), &mut out) }, out)
    }

    pub fn lstat(&self, path: &str) -> Result<Stat, c_int> {
        let mut out = Stat::default();
        // SAFETY: an open tree, a string, and memory for attributes.
        sure(unsafe { tombolo_lstat(self.0, c(path).as_ptr(), &mut out) }, out)
    }

    pub fn read(&self, path: &str, size: usize) -> Result<(usize, Vec<u8>), c_int> {
        let mut buffer = vec![0xee; size];
        // SAFETY: an open tree, a string, and `size` bytes.
        let count = unsafe { tombolo_read(self.0, c(path).as_ptr(), buffer.as_mut_ptr().cast(), size) };
        usize::try_from(count).map(|count| (count, buffer)).map_err(|_| count as c_int)
    }

    pub fn read_link(&self, path: &str, size: usize) -> Result<Vec<u8>, c_int> {
        let mut buffer = vec![0xee_u8; size];
        // SAFETY: an open tree, a string, and `size` bytes.
        let count = unsafe { tombolo_readlink(self.0, c(path).as_ptr(), buffer.as_mut_ptr().cast(), size) };
        buffer.truncate(usize::try_from(count).map_err(|_| count as c_int)?);
        Ok(buffer)
    }

    /// Returns name, type and inode number of each entry, sorted by name.
    pub fn list(&self, path: &str) -> Result<Vec<(String, c_uint, u64)>, c_int> {
        unsafe extern "C" fn each(
            context: *mut c_void,
            name: *const c_char,
            kind: c_uint,
            ino: u64,
        ) -> c_int {
            // SAFETY: the list declared below, which nothing else refers to meanwhile.
            let found = unsafe { &mut *context.cast::<Vec<(String, c_uint, u64)>>() };
            // SAFETY: a string, until this returns.
            let name = unsafe { CStr::from_ptr(name) };
            found.push((name.to_str().unwrap().to_owned(), kind, ino));
            0
        }
        let mut found: Vec<(String, c_uint, u64)> = Vec::new();
        // SAFETY: an open tree, a string, and a function that takes the list.
        let result = unsafe { tombolo_list(self.0, c(path).as_ptr(), Some(each), (&raw mut found).cast()) };
        found.sort();
        sure(result, found)
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        // SAFETY: an open tree, and memory for the counters.
        assert_eq!(unsafe { tombolo_counts(self.0, &mut counts) }, 0);
        counts
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: an open tree that nothing else uses any more.
        unsafe { tombolo_close(self.0) }
    }
}

pub fn c(text: impl AsRef<Path>) -> CString {
    CString::new(text.as_ref().as_os_str().as_encoded_bytes()).expect("no zero in it")
}

pub fn sure<T>(result: c_int, value: T) -> Result<T, c_int> {
    if result == 0 { Ok(value) } else { Err(result) }
}
