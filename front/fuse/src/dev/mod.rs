//! The FUSE device as a transport: a mount on this host.
//!
//! [`Mount::start`] mounts a file system and serves it with a few threads, each with a descriptor of its own.
//! It unmounts when told to, and finds the ruins of an earlier server at its mount point.

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
pub use mounter::{Directly, Mounter};
use notifier::Notifier;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use thread_pool::ThreadPool;
use tombolo_core::fs::{Client, Export, FileSystem, FileType, NodeId, PermissionCheck};
use tombolo_core::{Ctx, Error as FsError, SessionId};
use tombolo_sys::{Errno, creds, fuse_dev};

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// What `df` and `/proc/mounts` show as the source.
    pub source: String,
    /// May users other than the one that mounts use it? Then the kernel checks permissions for the file
    /// system. Without others there is nothing to check: the one user has what the server has.
    pub allow_other: bool,
    /// Does the kernel check by mode bits when others may use it? It keeps names that one user looked up, and
    /// another one nothing else checks the user that walks them. Only a file system that checks for itself
    /// can do without.
    pub kernel_checks: bool,
    /// Refuse changes in the kernel already.
    pub read_only: bool,
    /// Honour device nodes.
    pub devices: bool,
    /// Honour set-user-id bits.
    pub set_id: bool,
    /// Let programs be executed.
    pub exec: bool,
    /// How many threads there are to take requests; at least one. They sleep unless there is work for them.
    pub threads: usize,
    /// How long the kernel may keep what it was told.
    pub coherence: Coherence,
    /// Does the kernel keep locks itself? Then they cost no request, and exclude only programs that use this
    /// mount.
    pub local_locks: bool,
    /// Are extended attributes shown?
    pub xattrs: bool,
    /// This kernel labels files, so that it makes a difference why a file has no label.
    pub labels: bool,
    /// How far the kernel is to read ahead of a program, in bytes, where that is more or less than it does
    /// anyway. Only root can have it so.
    pub read_ahead_bytes: Option<u32>,
    /// What mounts and unmounts.
    pub mounter: Arc<dyn Mounter>,
}

impl Default for Options {
    /// No devices, no set-user-id; a thread per core up to 16, and two at least: one can be busy with a big
    /// transfer while the other takes requests.
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
            read_ahead_bytes: None,
            mounter: Arc::new(Directly),
        }
    }
}

/// Returns true where SELinux is in use, or that cannot be told.
fn has_selinux() -> bool {
    !std::fs::read_to_string("/proc/filesystems").is_ok_and(|known| !known.contains("selinuxfs"))
}

/// Why a mount did not come about.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The device cannot be opened.
    #[error("cannot open /dev/fuse (is the fuse module loaded?)")]
    Device(#[source] Errno),
    /// The mount point cannot be used.
    #[error("cannot use {} as a mount point", .path.display())]
    Target {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("cannot mount on {}", .path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file system could not be attached to, or has no root.
    #[error("the file system is not there")]
    FileSystem(#[source] FsError),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// A mount that is being served. Dropping it leaves it mounted; end it with [`Mount::unmount`].
#[derive(Debug)]
pub struct Mount {
    path: PathBuf,
    mounter: Arc<dyn Mounter>,
    by_helper: bool,
    session: Arc<Session>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// With [`Coherence::Push`].
    notifier: Mutex<Option<Notifier>>,
}

impl Mount {
    /// Mounts `export` on the directory `target` and starts to serve it. A dead mount there, left behind by a
    /// server that was killed, is taken away first.
    ///
    /// # Errors
    /// See [`MountError`]. Nothing stays mounted then.
    pub fn start(
        export: &dyn Export,
        session: SessionId,
        target: &Path,
        options: &Options,
    ) -> Result<Mount, MountError> {
        let mounter = &options.mounter;
        let (path, was_dead) = mounter.prepare(target)?;
        if was_dead {
            tracing::warn!(path = %path.display(), "taking a dead mount away");
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
            // The superuser alone passes each check of the kernel's.
            kernel_may_check: kernel_checks && (options.allow_other || creds::own_ids().0 == 0),
            local_callers: true,
            local_locks: options.local_locks,
            xattrs: options.xattrs,
            labels: options.labels,
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
            Ok(notifier) => *mount.notifier() = notifier.flatten(),
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
                Ok(thread) => mount.threads().push(thread),
                Err(error) => {
                    mount.unmount().ok();
                    return Err(MountError::Thread(error));
                }
            }
        }
        mount.read_ahead(options.read_ahead_bytes);
        Ok(mount)
    }

    /// The session, for its counters.
    pub fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Ends the mount. One that is in use is taken out of sight at once, and served until its last user has
    /// left; then this returns false.
    ///
    /// # Errors
    /// The kernel's. It is not an error if it was unmounted otherwise.
    pub fn unmount(&self) -> io::Result<bool> {
        self.session.interrupt_all();
        match self.mounter.unmount(&self.path, self.by_helper, false) {
            Ok(()) => return Ok(true),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => return Ok(true),
            Err(error) => tracing::warn!(path = %self.path.display(), %error, "in use; detached"),
        }
        self.mounter.unmount(&self.path, self.by_helper, true).map(|()| false)
    }

    /// Waits until the mount has ended, however, and is not in use any more.
    pub fn wait(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for thread in threads {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
        // Not with the lock held: it is waited for.
        let notifier = self.notifier().take();
        drop(notifier);
    }

    fn read_ahead(&self, bytes: Option<u32>) {
        let Some(bytes) = bytes else { return };
        // Not by asking for the root, as others would: a thread that waits for its own process keeps it from
        // dying.
        let end = Instant::now() + INIT_PATIENCE;
        while !self.session.is_agreed() && Instant::now() < end {
            thread::sleep(INIT_PAUSE);
        }
        if let Err(error) = self.mounter.read_ahead(&self.path, bytes) {
            tracing::debug!(path = %self.path.display(), %error, "the kernel reads ahead as it likes");
        }
    }

    fn notifier(&self) -> std::sync::MutexGuard<'_, Option<Notifier>> {
        self.notifier.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kernel sends INIT as soon as it has mounted.
const INIT_PATIENCE: Duration = Duration::from_secs(1);
const INIT_PAUSE: Duration = Duration::from_micros(200);

/// A mount has a directory as its root.
fn check_root(file_system: &dyn FileSystem, session: SessionId) -> Result<(), MountError> {
    let root = file_system.getattr(&Ctx::root(session), NodeId::ROOT, None).wait();
    match root.map_err(MountError::FileSystem)?.file_type {
        FileType::Directory => Ok(()),
        _ => Err(MountError::FileSystem(FsError::NotDirectory)),
    }
}

/// A descriptor of the connection for each thread. Where the device cannot be cloned, one thread must do: two
/// cannot look and sleep at one descriptor.
fn descriptors(device: OwnedFd, threads: usize) -> Vec<Arc<Device>> {
    let first = Device::new(device);
    let mut all = vec![first.clone()];
    while all.len() < threads {
        match fuse_dev::clone(first.fd()) {
            Ok(copy) => all.push(Device::new(copy)),
            Err(error) => {
                tracing::debug!(%error, "the FUSE device cannot be cloned; one thread serves the mount");
                break;
            }
        }
    }
    all
}
