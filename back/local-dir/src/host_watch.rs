//! Changes by other processes of the host: a thread that reads fanotify events while any session is
//! subscribed.
//!
//! A change by this process is reported by the session that makes it, so its events are ignored, unless
//! another export of this process shows the same files (`overlapping`). Events name files by handle, from
//! which the inode number is read, so a file system must have handles of a known format, and support
//! fanotify. With any other file system in the export the watch is incomplete, and front ends do not rely on
//! notifications. Stores through shared mappings raise no event (see `volatile`), and neither do reads.

use std::cell::LazyCell;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use tombolo_core::fs::{Name, NameBuf, NodeId, Notice};
use tombolo_core::lock;
use tombolo_sys::Errno;
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::fanotify::{Event, EventMask, Fanotify};
use tombolo_sys::handle::FileHandle;

use crate::mounts::Mount;
use crate::state::{ExportState, Session};
use crate::table::Key;

/// The fanotify watch of one export.
#[derive(Debug, Default)]
pub(crate) struct HostWatch {
    state: Mutex<WatchState>,
    /// `true` if the watch has failed, or a file system of the export cannot be watched.
    is_incomplete: AtomicBool,
}

#[derive(Debug, Default)]
struct WatchState {
    /// Number of subscribed sessions.
    sessions: usize,
    running: Option<Running>,
}

/// A running watch thread; stopped on drop.
#[derive(Debug)]
struct Running {
    events: Arc<Fanotify>,
    stop: Arc<EventFd>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // The watch thread is not joined, because a session may be dropped on that thread itself.
        self.stop.notify();
    }
}

impl HostWatch {
    /// Registers a subscribed session, and starts the watch unless it runs or the options have no
    /// `watch_host`.
    pub fn begin(&self, export: &Arc<ExportState>) {
        let mut state = lock(&self.state);
        state.sessions += 1;
        if state.running.is_some() || !export.options.watch_host {
            return;
        }
        self.is_incomplete.store(false, Ordering::SeqCst);
        match start(export) {
            Ok(running) => {
                let mounts = export.mounts.all();
                mounts.iter().for_each(|mount| self.add(&running, mount));
                state.running = Some(running);
                // Every file counts as changed, because changes before the start were not observed.
                export.changed_everything();
            }
            Err(error) => {
                tracing::warn!(%error, "changes by other processes of the host are not observed: clients revalidate");
                self.is_incomplete.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Unregisters a subscribed session, and stops the watch after the last.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.sessions = state.sessions.saturating_sub(1);
        if state.sessions == 0 {
            state.running = None;
        }
    }

    /// Adds a file system that was found inside the export to the watch, if it is running.
    pub fn joined(&self, export: &ExportState, mount: &Mount) {
        let is_watched = lock(&self.state).running.as_ref().map(|running| self.add(running, mount)).is_some();
        // The lock is not held while notifying: this thread may drop the last reference to a session, and
        // that drop takes the lock.
        if is_watched && !self.is_complete() {
            notify_everything(export);
        }
    }

    /// Records that this mount has a btrfs subvolume, whose files fanotify events name by the device of the
    /// containing file system: such events cannot be matched with nodes, so the watch becomes incomplete.
    pub fn met_volume(&self, export: &ExportState, mount: &Mount) {
        // The subvolume is recorded first: a watch that starts later finds it.
        if mount.record_volume() && lock(&self.state).running.is_some() {
            tracing::warn!("a subvolume of the export cannot be watched: clients revalidate");
            self.is_incomplete.store(true, Ordering::SeqCst);
            notify_everything(export);
        }
    }

    /// Returns `false` once the watch has failed or misses the changes of a file system; `true` also before
    /// it has started.
    pub fn is_complete(&self) -> bool {
        !self.is_incomplete.load(Ordering::SeqCst)
    }

    fn add(&self, running: &Running, mount: &Mount) {
        let added = match mount.descriptor() {
            Some(root) if mount.handles_have_inodes && !mount.has_volumes() => {
                running.events.add_file_system(root)
            }
            _ => Err(Errno::OPNOTSUPP),
        };
        if let Err(error) = added {
            tracing::warn!(%error, "a file system of the export cannot be watched: clients revalidate");
            self.is_incomplete.store(true, Ordering::SeqCst);
        }
    }
}

fn start(export: &Arc<ExportState>) -> tombolo_sys::Result<Running> {
    let running = Running { events: Arc::new(Fanotify::new()?), stop: Arc::new(EventFd::new()?) };
    let epoll = Epoll::new()?;
    epoll.add(&*running.events, EVENTS, Interest::Readable)?;
    epoll.add(&*running.stop, STOP, Interest::Readable)?;
    let mounts = File::open("/proc/self/mountinfo").map_err(|_| Errno::NOENT)?;
    epoll.add(&mounts, MOUNTS, Interest::Alarms)?;
    let (events, stop, export) = (running.events.clone(), running.stop.clone(), Arc::downgrade(export));
    let submounts = submounts_of(&export);
    let watch = move || {
        let outcome = watch(&epoll, &events, &export, submounts);
        drop((stop, mounts));
        if let (Err(error), Some(export)) = (outcome, export.upgrade()) {
            tracing::error!(%error, "the watch for changes by the host failed: clients revalidate");
            export.host_watch.is_incomplete.store(true, Ordering::SeqCst);
            notify_everything(&export);
        }
    };
    thread::Builder::new().name("host-watch".into()).spawn(watch).map_err(|_| Errno::AGAIN)?;
    Ok(running)
}

/// Tokens of the files that the watch thread polls: fanotify, the event that stops it, the mount list.
const EVENTS: u64 = 0;
const STOP: u64 = 1;
const MOUNTS: u64 = 2;

fn watch(
    epoll: &Epoll,
    fanotify: &Fanotify,
    export: &Weak<ExportState>,
    mut submounts: Vec<Vec<u8>>,
) -> tombolo_sys::Result<()> {
    let (mut ready, mut buffer, own) = (Vec::new(), Vec::new(), std::process::id());
    loop {
        epoll.wait(&mut ready, None)?;
        if ready.iter().any(|event| event.token == STOP) {
            return Ok(());
        }
        if ready.iter().any(|event| event.token == MOUNTS) {
            let now = submounts_of(export);
            // A mount may have covered files that sessions know.
            if std::mem::replace(&mut submounts, now) != submounts
                && let Some(export) = export.upgrade()
            {
                notify_everything(&export);
            }
        }
        let Some(export) = export.upgrade() else { return Ok(()) };
        let has_overlapping_export = LazyCell::new(|| export.has_overlapping_export());
        fanotify.read(&mut buffer, |event| {
            if event.deeds.contains(EventMask::OVERFLOW) {
                tracing::warn!("change events of the host overflowed: clients revalidate everything");
                notify_everything(&export);
            } else if event.process != own || *has_overlapping_export {
                notify(&export, event);
            }
        })?;
    }
}

fn submounts_of(export: &Weak<ExportState>) -> Vec<Vec<u8>> {
    let lines = export.upgrade().map(|export| export.submount_lines());
    lines.and_then(|lines| lines.ok()).unwrap_or_default()
}

fn notify_everything(export: &ExportState) {
    export.changed_everything();
    export.watchers.tell(|session| session.notices.push(Notice::Everything));
}

fn notify(export: &ExportState, event: &Event<'_>) {
    let directory = event.name.as_ref().filter(|_| event.deeds.concerns_name());
    let name = directory.and_then(|(dir, name)| Some((dir, Name::new(name).ok()?.to_owned())));
    let dir = event.name.as_ref().map(|(dir, _)| dir);
    for handle in dir.into_iter().chain(&event.file) {
        match handle.inode() {
            Some(inode) => export.keys_of(inode).for_each(|key| export.changed_uncounted(&key)),
            None => export.changed_everything(),
        }
    }
    export.watchers.tell(|session| {
        if event.deeds.contains(EventMask::DELETE)
            && let (Some((dir, name)), Some(file)) = (&name, &event.file)
        {
            let dir = session.nodes_of(dir).next();
            let nodes = session.nodes_of(file).filter(|node| session.is_gone(*node));
            let gone = |node| Notice::Gone { node, name: dir.map(|dir| (dir, name.clone())) };
            nodes.map(gone).for_each(|notice| session.notices.push(notice));
        }
        if let Some((dir, name)) = &name {
            each_node(session, dir, |dir| {
                [Notice::Name { dir, name: NameBuf::clone(name) }, Notice::Attributes(dir)]
            });
        }
        let Some(file) = &event.file else { return };
        if event.deeds.contains(EventMask::MODIFY) {
            each_node(session, file, |node| [Notice::Data { node, start: 0, last: u64::MAX }]);
        } else {
            // The link count is an attribute too.
            each_node(session, file, |node| [Notice::Attributes(node)]);
        }
    });
}

/// Sends a session the notices for each of its nodes of the file with this handle.
fn each_node<const N: usize>(
    session: &Session,
    handle: &FileHandle,
    notices: impl Fn(NodeId) -> [Notice; N],
) {
    if handle.inode().is_none() {
        return session.notices.push(Notice::Everything);
    }
    for node in session.nodes_of(handle) {
        notices(node).into_iter().for_each(|notice| session.notices.push(notice));
    }
}

impl Session {
    /// Returns the session's nodes of the file with that handle, on all mounts of the export.
    fn nodes_of(&self, handle: &FileHandle) -> impl Iterator<Item = NodeId> {
        let keys = handle.inode().into_iter().flat_map(|inode| self.export.keys_of(inode));
        keys.filter_map(|key| self.node_of(&key))
    }
}

impl ExportState {
    /// Returns the keys that a file with this inode number may have. Keys of other file systems of the export
    /// may be among them; a superfluous notice does no harm.
    fn keys_of(&self, inode: u64) -> impl Iterator<Item = Key> {
        let mounts = self.mounts.all().into_iter().zip(0..);
        mounts.map(move |(mount, index)| Key { inode, device: mount.device, mount: index })
    }
}
