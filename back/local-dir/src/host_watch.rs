//! Telling sessions what other processes of the host do: a thread that reads fanotify events, only while a
//! session is to be told.
//!
//! What this process does itself is told by the session that does it, and skipped here, unless another of its
//! exports shows the same files. Events name files by handle, in which the inode number is read; so it takes
//! a file system whose handles are known, and can be marked. Where there is another one in the export the
//! watch is not complete, and front ends do not believe what they were not told. No event comes of stores
//! through a shared mapping, and none of reads: for the former see `volatile`.

use std::cell::LazyCell;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;

use tombolo_core::fs::{Name, NameBuf, NodeId, Notice};
use tombolo_host_runtime::lock;
use tombolo_sys::Errno;
use tombolo_sys::epoll::{Epoll, EventFd, Interest};
use tombolo_sys::fanotify::{Deeds, Event, Fanotify};
use tombolo_sys::handle::FileHandle;

use crate::mounts::Mount;
use crate::state::{Session, Shared};
use crate::table::Key;

/// The watch of one export.
#[derive(Debug, Default)]
pub(crate) struct HostWatch {
    state: Mutex<State>,
    /// Some of what happens is not seen.
    is_blind: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// How many sessions are to be told.
    sessions: usize,
    running: Option<Running>,
}

/// Ends its thread when dropped.
#[derive(Debug)]
struct Running {
    events: Arc<Fanotify>,
    stop: Arc<EventFd>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Not waited for: a session may end on the watch's own thread.
        self.stop.notify();
    }
}

impl HostWatch {
    /// A session is to be told from now on.
    pub fn begin(&self, export: &Arc<Shared>) {
        let mut state = lock(&self.state);
        state.sessions += 1;
        if state.running.is_some() || !export.options.watch_host {
            return;
        }
        self.is_blind.store(false, Ordering::SeqCst);
        match start(export) {
            Ok(running) => {
                let mounts = export.mounts.all();
                mounts.iter().for_each(|mount| self.add(&running, mount));
                state.running = Some(running);
                // What happened before is not known.
                export.changed_everything();
            }
            Err(error) => {
                tracing::warn!(%error, "what other processes of the host change is not seen: clients ask");
                self.is_blind.store(true, Ordering::SeqCst);
            }
        }
    }

    /// A session that was to be told has ended.
    pub fn end(&self) {
        let mut state = lock(&self.state);
        state.sessions = state.sessions.saturating_sub(1);
        if state.sessions == 0 {
            state.running = None;
        }
    }

    /// A file system has joined the export.
    pub fn joined(&self, export: &Shared, mount: &Mount) {
        let is_watched = lock(&self.state).running.as_ref().map(|running| self.add(running, mount)).is_some();
        // Not under the lock: the last hold of a session may end on the way, and it takes the lock.
        if is_watched && !self.is_complete() {
            tell_everything(export);
        }
    }

    /// A file of a subvolume of btrfs has been met: events name it by the numbers of the file system that was
    /// marked.
    pub fn met_volume(&self, export: &Shared, mount: &Mount) {
        let is_watched = lock(&self.state).running.is_some();
        if is_watched && mount.has_another_volume() {
            tracing::warn!("a subvolume in the export cannot be watched: clients ask");
            self.is_blind.store(true, Ordering::SeqCst);
            tell_everything(export);
        }
    }

    /// Whether all is seen that is done to the export.
    pub fn is_complete(&self) -> bool {
        !self.is_blind.load(Ordering::SeqCst)
    }

    fn add(&self, running: &Running, mount: &Mount) {
        let added = match mount.descriptor() {
            Some(root) if mount.handles_tell_numbers && !mount.has_volumes() => {
                running.events.add_file_system(root)
            }
            _ => Err(Errno::OPNOTSUPP),
        };
        if let Err(error) = added {
            tracing::warn!(%error, "a file system of the export cannot be watched: clients ask");
            self.is_blind.store(true, Ordering::SeqCst);
        }
    }
}

fn start(export: &Arc<Shared>) -> tombolo_sys::Result<Running> {
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
            tracing::error!(%error, "the watch of the host has ended: clients ask");
            export.host_watch.is_blind.store(true, Ordering::SeqCst);
            tell_everything(&export);
        }
    };
    thread::Builder::new().name("host-watch".into()).spawn(watch).map_err(|_| Errno::AGAIN)?;
    Ok(running)
}

const EVENTS: u64 = 0;
const STOP: u64 = 1;
const MOUNTS: u64 = 2;

fn watch(
    epoll: &Epoll,
    fanotify: &Fanotify,
    export: &Weak<Shared>,
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
            // One that shows other files in the place of those that were told of.
            if std::mem::replace(&mut submounts, now) != submounts
                && let Some(export) = export.upgrade()
            {
                tell_everything(&export);
            }
        }
        let Some(export) = export.upgrade() else { return Ok(()) };
        let has_neighbours = LazyCell::new(|| export.has_neighbours());
        fanotify.read(&mut buffer, |event| {
            if event.deeds.contains(Deeds::OVERFLOW) {
                tracing::warn!("the host changes more than can be told: clients look at everything again");
                tell_everything(&export);
            } else if event.process != own || *has_neighbours {
                tell(&export, event);
            }
        })?;
    }
}

fn submounts_of(export: &Weak<Shared>) -> Vec<Vec<u8>> {
    let lines = export.upgrade().map(|export| export.submount_lines());
    lines.and_then(|lines| lines.ok()).unwrap_or_default()
}

fn tell_everything(export: &Shared) {
    export.changed_everything();
    export.watchers.tell(|session| session.notices.push(Notice::Everything));
}

fn tell(export: &Shared, event: &Event<'_>) {
    let directory = event.name.as_ref().filter(|_| event.deeds.is_about_a_name());
    let name = directory.and_then(|(dir, name)| Some((dir, Name::new(name).ok()?.to_owned())));
    let dir = event.name.as_ref().map(|(dir, _)| dir);
    for handle in dir.into_iter().chain(&event.file) {
        match handle.inode() {
            Some(inode) => export.keys_of(inode).for_each(|key| export.changed_beside(&key)),
            None => export.changed_everything(),
        }
    }
    export.watchers.tell(|session| {
        if event.deeds.contains(Deeds::DELETE)
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
        if event.deeds.contains(Deeds::MODIFY) {
            each_node(session, file, |node| [Notice::Data { node, start: 0, last: u64::MAX }]);
        } else {
            // A name more or less is an attribute too.
            each_node(session, file, |node| [Notice::Attributes(node)]);
        }
    });
}

/// Tells a session about the nodes of that handle.
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
    /// What it knows the file of that handle by, through whatever mount of the export.
    fn nodes_of(&self, handle: &FileHandle) -> impl Iterator<Item = NodeId> {
        let keys = handle.inode().into_iter().flat_map(|inode| self.export.keys_of(inode));
        keys.filter_map(|key| self.node_of(&key))
    }
}

impl Shared {
    /// By what a file with that number may be known. Numbers of another file system of the export are among
    /// them: a word too much harms nothing.
    fn keys_of(&self, inode: u64) -> impl Iterator<Item = Key> {
        let mounts = self.mounts.all().into_iter().zip(0..);
        mounts.map(move |(mount, index)| Key { inode, device: mount.device, mount: index })
    }
}
