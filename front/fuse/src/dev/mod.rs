//! FUSE-device transport: mounts on this host.
//!
//! [`Mount::start`] mounts a file system and serves it with a few threads, each with its own descriptor. The
//! mount lasts until it is unmounted. A dead mount left by an earlier server is removed before mounting.

mod buffer_pool;
mod device;
mod mounter;
mod notifier;
mod read_ahead;
mod thread_pool;
mod worker;

use crate::session::{Backing, Coherence, Options as SessionOptions, Session};
use buffer_pool::BufferPool;
use device::Device;
pub use mounter::{DirectMounter, Mounter};
use notifier::Notifier;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use thread_pool::ThreadPool;
use tombolo_core::fs::{Client, Export, FileSystem, FileType, NodeId, PermissionCheck};
use tombolo_core::{Ctx, Error as FsError, SessionId, lock};
use tombolo_sys::{Errno, creds, fuse_dev};

/// Mount options.
#[derive(Clone, Debug)]
pub struct Options {
    /// Source shown by `df` and `/proc/mounts`.
    pub source: String,
    /// `true` if other users may use the mount. Otherwise only the server's user may, with its rights.
    pub allow_other: bool,
    /// `true` if the kernel checks mode bits when others may use the mount. The kernel caches names looked up
    /// by one user, and no other check applies to another user that walks them. `false` has an effect only if
    /// the file system checks permissions itself.
    pub kernel_checks: bool,
    /// `true` to refuse changes in the kernel.
    pub read_only: bool,
    /// `true` to honour device nodes; ignored if fusermount3 mounts.
    pub devices: bool,
    /// `true` to honour set-user-id bits; ignored if fusermount3 mounts.
    pub set_id: bool,
    /// `true` to allow execution of programs.
    pub exec: bool,
    /// Number of threads, if the device can be cloned; at least one. Threads without requests sleep.
    pub threads: usize,
    /// Lifetimes of the kernel's cached names, attributes and data.
    pub coherence: Coherence,
    /// `true` if the kernel manages locks itself: it sends no lock requests, and locks are visible only to
    /// programs that use this mount.
    pub local_locks: bool,
    /// `true` if extended attributes are exposed.
    pub xattrs: bool,
    /// `true` if this kernel labels files (SELinux): missing labels must then be ENODATA.
    pub labels: bool,
    /// `true` if names are invalidated all at once where the kernel supports it (Linux 6.16), and not each by
    /// itself.
    pub epochs: bool,
    /// Read-ahead of the kernel in bytes, if other than its default. Only root can set it.
    pub read_ahead_bytes: Option<u32>,
    /// Mounter: this process, or a helper if this process is not permitted to mount.
    pub mounter: Arc<dyn Mounter>,
}

impl Default for Options {
    /// Returns options that ignore device nodes and set-user-id bits, with one thread per core, from 2 to 16:
    /// one thread can be busy with a large transfer while another takes requests.
    fn default() -> Self {
        Options {
            source: "tombolo".into(),
            allow_other: true,
            kernel_checks: true,
            read_only: false,
            devices: false,
            set_id: false,
            exec: true,
            threads: thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 16)),
            coherence: Coherence::default(),
            local_locks: false,
            xattrs: true,
            labels: has_selinux(),
            epochs: true,
            read_ahead_bytes: None,
            mounter: Arc::new(DirectMounter),
        }
    }
}

/// Returns `true` if SELinux is in use, or if that is unknown.
fn has_selinux() -> bool {
    !std::fs::read_to_string("/proc/filesystems").is_ok_and(|known| !known.contains("selinuxfs"))
}

/// Error of [`Mount::start`].
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The device cannot be opened.
    #[error("cannot open /dev/fuse (is the fuse module loaded?)")]
    Device(#[source] Errno),
    /// The mount point cannot be used.
    #[error("cannot use {} as a mount point", .path.display())]
    Target {
        /// Mount point as the caller gave it.
        path: PathBuf,
        /// Error of resolving the path, of detaching a dead mount on it, or `NotADirectory`.
        source: io::Error,
    },
    /// The kernel, or fusermount3, refused to mount.
    #[error("cannot mount on {}", .path.display())]
    Mount {
        /// Mount point without symbolic links.
        path: PathBuf,
        /// Error of mount(2), or of fusermount3 with its message.
        source: io::Error,
    },
    /// The file system cannot be attached, or its root cannot be queried or is not a directory.
    #[error("cannot attach to the file system")]
    FileSystem(#[source] FsError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A mount that is being served. Dropping it does not unmount; call [`Mount::unmount`].
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    mounter: Arc<dyn Mounter>,
    /// `true` if fusermount3 has mounted, and must unmount.
    by_helper: bool,
    session: Arc<Session>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Thread that notifies the kernel; present with [`Coherence::Push`].
    notifier: Mutex<Option<Notifier>>,
}

impl Mount {
    /// Mounts `export` on the directory `target` and starts to serve it. A dead mount left by a killed server
    /// is removed before mounting.
    ///
    /// # Errors
    /// See [`MountError`]. If a thread cannot be started, the file system is unmounted again.
    pub fn start(
        export: &dyn Export,
        session: SessionId,
        target: &Path,
        options: &Options,
    ) -> Result<Mount, MountError> {
        let mounter = &options.mounter;
        let (path, was_dead) = mounter.prepare(target)?;
        if was_dead {
            tracing::warn!(path = %path.display(), "removing a dead mount");
        }
        let client = Client { session, label: path.display().to_string(), checks: PermissionCheck::Caller };
        let file_system = export.attach(&client).map_err(MountError::FileSystem)?;
        check_root(file_system.as_ref(), session)?;
        let checks_itself = file_system.profile().permission_check != PermissionCheck::Caller;
        let kernel_checks = options.kernel_checks || !checks_itself;
        let (device, by_helper) = mounter.mount(&path, options, kernel_checks)?;
        let devices = descriptors(device, options.threads);
        let backing = devices.first().filter(|_| fuse_dev::may_back());
        let session_options = SessionOptions {
            backing: backing.map(|device| Arc::new(Arc::downgrade(device)) as Arc<dyn Backing>),
            coherence: options.coherence,
            kernel_checks: options.allow_other,
            // POSIX_ACL turns the kernel's checks on; in a mount of one user only root passes them all.
            kernel_may_check: kernel_checks && (options.allow_other || creds::own_ids().0 == 0),
            local_callers: true,
            local_locks: options.local_locks,
            xattrs: options.xattrs,
            labels: options.labels,
            epochs: options.epochs,
            ..Default::default()
        };
        let buffers = BufferPool::new(session_options.max_write_bytes);
        let session = Session::new(session, file_system, session_options);
        let mount = Mount {
            path,
            mounter: mounter.clone(),
            by_helper,
            session: session.clone(),
            threads: Mutex::default(),
            notifier: Mutex::default(),
        };
        let notifier = devices.first().map(|device| Notifier::start(&session, device));
        match notifier.transpose() {
            Ok(notifier) => *lock(&mount.notifier) = notifier.flatten(),
            Err(error) => {
                mount.unmount().ok();
                return Err(MountError::Thread(error));
            }
        }
        let pool = ThreadPool::new(session, buffers);
        for (number, device) in devices.into_iter().enumerate() {
            let pool = pool.clone();
            let thread = thread::Builder::new().name(format!("fuse-{number}"));
            match thread.spawn(move || worker::serve(&pool, &device)) {
                Ok(thread) => lock(&mount.threads).push(thread),
                Err(error) => {
                    mount.unmount().ok();
                    return Err(MountError::Thread(error));
                }
            }
        }
        mount.read_ahead(options.read_ahead_bytes);
        Ok(mount)
    }

    /// Returns the session, for its counters.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Returns the mount point, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts. Returns `false` if the mount is busy: it is then detached at once, and served until its last
    /// user has left.
    ///
    /// # Errors
    /// The error of detaching. A mount that was already removed is not an error.
    pub fn unmount(&self) -> io::Result<bool> {
        self.session.interrupt_all();
        let Err(error) = self.mounter.unmount(&self.path, self.by_helper, false) else { return Ok(true) };
        if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) {
            return Ok(true);
        }
        self.mounter.unmount(&self.path, self.by_helper, true)?;
        tracing::warn!(path = %self.path.display(), %error, "cannot unmount; detached");
        Ok(false)
    }

    /// Blocks until the mount has ended, for any reason, and is no longer in use.
    pub fn wait(&self) {
        let threads = std::mem::take(&mut *lock(&self.threads));
        for thread in threads {
            // A panic was logged where it occurred.
            let _ = thread.join();
        }
        // The notifier is dropped outside of the lock, because the drop blocks until the notifier has ended.
        let notifier = lock(&self.notifier).take();
        drop(notifier);
    }

    fn read_ahead(&self, bytes: Option<u32>) {
        let Some(bytes) = bytes else { return };
        // Polled: a request for the root would also wait for INIT, but a thread that waits for a FUSE server
        // in its own process keeps the process from being killed.
        let end = Instant::now() + INIT_TIMEOUT;
        while !self.session.is_initialized() && Instant::now() < end {
            thread::sleep(INIT_POLL_INTERVAL);
        }
        if let Err(error) = self.mounter.read_ahead(&self.path, bytes) {
            tracing::debug!(path = %self.path.display(), %error, "cannot set the kernel's read-ahead");
        }
    }
}

/// Maximum wait for INIT, which the kernel sends as soon as it has mounted.
const INIT_TIMEOUT: Duration = Duration::from_secs(1);
const INIT_POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Fails unless the root is a directory.
fn check_root(file_system: &dyn FileSystem, session: SessionId) -> Result<(), MountError> {
    let root = file_system.getattr(&Ctx::root(session), NodeId::ROOT, None).wait();
    match root.map_err(MountError::FileSystem)?.file_type {
        FileType::Directory => Ok(()),
        _ => Err(MountError::FileSystem(FsError::NotDirectory)),
    }
}

/// Returns one descriptor of the connection for each thread. Threads do not share descriptors, because a
/// thread that polls sets O_NONBLOCK, which would keep the others from blocking. If the device cannot be
/// cloned, there are fewer descriptors, and only one thread for each.
fn descriptors(device: OwnedFd, threads: usize) -> Vec<Arc<Device>> {
    let first = Device::new(device);
    let mut all = vec![first.clone()];
    while all.len() < threads {
        match fuse_dev::clone(first.fd()) {
            Ok(copy) => all.push(Device::new(copy)),
            Err(error) => {
                tracing::debug!(%error, threads = all.len(), "cannot clone the FUSE device; fewer threads serve");
                break;
            }
        }
    }
    all
}
