//! Delivery of change notifications to the kernel, on a thread that serves no requests: the kernel may wait
//! for a request before it accepts a notification.

use super::device::Device;
use crate::session::{DirName, Push, Session};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tombolo_core::fs::{FileSystem, NodeId, Notice, Notices};
use tombolo_core::{Ctx, Error, Interrupt, Result, unpark_waker};
use tombolo_sys::{Errno, fuse_dev};
use tombolo_wire_fuse::notification::{BYTES_MAX, Notification};

/// Maximum size of a batch of notices from the file system, in bytes.
const PAGE_BYTES: usize = 64 << 10;

/// The notification thread; dropping this stops and joins it.
#[derive(Debug)]
pub(super) struct Notifier {
    interrupt: Interrupt,
    thread: Option<JoinHandle<()>>,
}

impl Notifier {
    /// Starts the thread if the session has [`Coherence::Push`], otherwise returns `None`. The thread holds
    /// the device weakly, so that the connection ends with the serving threads.
    pub(super) fn start(session: &Arc<Session>, device: &Arc<Device>) -> io::Result<Option<Notifier>> {
        let Some(push) = session.push() else { return Ok(None) };
        let interrupt = Interrupt::new();
        let runner = NotifierThread {
            file_system: session.shared_file_system(),
            session: Arc::downgrade(session),
            push,
            cx: session.ctx_root(interrupt.clone()),
            device: Arc::downgrade(device),
        };
        let thread = thread::Builder::new().name("fuse-notices".into()).spawn(move || runner.run())?;
        Ok(Some(Notifier { interrupt, thread: Some(thread) }))
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.interrupt.raise();
        if let Some(thread) = self.thread.take() {
            // A panic was logged where it occurred.
            let _ = thread.join();
        }
    }
}

struct NotifierThread {
    file_system: Arc<dyn FileSystem>,
    session: Weak<Session>,
    push: Arc<Push>,
    cx: Ctx,
    device: Weak<Device>,
}

/// First interval before a notice that the kernel answered with ENOENT is sent again; doubled each time. The
/// requesting thread usually applies the reply soon, unless it is not scheduled.
const RETRY_MIN: Duration = Duration::from_millis(1);
/// Last retry interval: about a second in total.
const RETRY_MAX: Duration = Duration::from_millis(512);

/// A notice that the kernel answered with ENOENT although a reply that concerns it may be under way.
struct Retry {
    notice: Notice,
    due: Instant,
    pause: Duration,
}

impl NotifierThread {
    fn run(&self) {
        self.push.set_sender(thread::current());
        let (mut since, mut under_way, mut was_complete) = (0, Vec::new(), true);
        loop {
            match self.next(since, &mut under_way) {
                Ok(Notices { last, list }) => {
                    // The next call acknowledges these notices.
                    since = last;
                    let is_complete = self.file_system.changes().is_some_and(|changes| changes.is_complete());
                    if was_complete && !is_complete {
                        tracing::warn!(
                            "change notifications are incomplete; caching as with coherence=strict"
                        );
                    }
                    was_complete = is_complete;
                    for notice in list {
                        // The notice is logged before it is sent: if a request began before this point, its
                        // reply may be written after the notice, which must then be sent again.
                        self.push.log_notice(&notice);
                        self.notify(notice, &mut under_way);
                    }
                }
                Err(Error::Interrupted) => return,
                Err(error) => {
                    tracing::error!(%error, "change notifications lost");
                    return;
                }
            }
        }
    }

    /// Returns the next notices of the file system. While it waits, sends notices that the session queues to
    /// be sent again, and retries of `under_way`.
    fn next(&self, since: u64, under_way: &mut Vec<Retry>) -> Result<Notices> {
        let Some(changes) = self.file_system.changes() else { return Err(Error::NotSupported) };
        let mut next = pin!(changes.next(&self.cx, since, PAGE_BYTES).resolve());
        let waker = unpark_waker();
        let mut context = Context::from_waker(&waker);
        loop {
            for notice in self.push.take_resends() {
                self.notify(notice, under_way);
            }
            if let Poll::Ready(notices) = next.as_mut().poll(&mut context) {
                return notices;
            }
            match under_way.iter().map(|retry| retry.due).min() {
                None => thread::park(),
                Some(due) => {
                    thread::park_timeout(due.saturating_duration_since(Instant::now()));
                    self.retry(under_way);
                }
            }
        }
    }

    /// Sends a notice to the kernel; schedules a retry if the kernel does not know its node or name yet.
    fn notify(&self, notice: Notice, under_way: &mut Vec<Retry>) {
        if notice == Notice::Everything {
            self.invalidate_everything(under_way);
            return;
        }
        let is_known = self.send(&notice);
        if let Notice::Name { dir, name } = &notice {
            match self.push.moved(*dir, name) {
                Some(moved) => moved.iter().for_each(|name| self.expire(name)),
                None => return self.invalidate_everything(under_way),
            }
        }
        self.retry_unless(is_known, notice, under_way);
    }

    /// Schedules a retry of a notice whose node or name the kernel does not know, unless `is_known`, if a
    /// reply from which the kernel learns it may be under way.
    fn retry_unless(&self, is_known: bool, notice: Notice, under_way: &mut Vec<Retry>) {
        if !is_known && self.push.may_be_under_way(&notice) {
            under_way.push(Retry { notice, due: Instant::now() + RETRY_MIN, pause: RETRY_MIN });
        }
    }

    /// Makes the kernel revalidate a name at its next use. Linux before 6.2 drops the name.
    fn expire(&self, (dir, name): &DirName) {
        let parent = tombolo_wire_fuse::NodeId(dir.0);
        self.write(&Notification::InvalEntry { parent, name: name.as_name(), expire_only: true });
    }

    /// Invalidates all of the kernel's cached state. Names that must be invalidated one by one are last,
    /// because each waits until no request under way holds the lock of its directory.
    fn invalidate_everything(&self, under_way: &mut Vec<Retry>) {
        // The session is not held during the notifications: the kernel may block them, and a held session
        // could not end.
        let by_name = self.session.upgrade().is_some_and(|session| session.kernel_names().is_some());
        if !by_name {
            self.write(&Notification::IncEpoch);
        } else {
            for node in self.push.nodes() {
                self.send(&Notice::Attributes(node));
            }
        }
        for node in self.push.nodes() {
            self.notify(Notice::Data { node, start: 0, last: u64::MAX }, under_way);
        }
        let names = if by_name { self.push.kernel_names.all() } else { Vec::new() };
        for (dir, name) in names {
            let notice = Notice::Name { dir, name: name.clone() };
            let is_known = self.send(&notice);
            if !is_known {
                self.push.moved(dir, &name).iter().flatten().for_each(|name| self.expire(name));
            }
            self.retry_unless(is_known, notice, under_way);
        }
    }

    fn retry(&self, under_way: &mut Vec<Retry>) {
        let now = Instant::now();
        under_way.retain_mut(|retry| {
            if retry.due > now {
                return true;
            }
            if self.send(&retry.notice) || !self.push.may_be_under_way(&retry.notice) {
                return false;
            }
            retry.pause *= 2;
            retry.due = now + retry.pause;
            retry.pause <= RETRY_MAX
        });
    }

    /// Sends a notice. Returns `false` if the kernel does not know the notice's node or name.
    fn send(&self, notice: &Notice) -> bool {
        let wire = |node: NodeId| tombolo_wire_fuse::NodeId(node.0);
        let attributes =
            |node: NodeId| Notification::InvalInode { node: wire(node), offset: None, len_bytes: 0 };
        let pages = |node: NodeId, start: u64, len_bytes: u64| Notification::InvalInode {
            node: wire(node),
            offset: Some(start),
            len_bytes,
        };
        match notice {
            Notice::Attributes(node) => self.write(&attributes(*node)),
            Notice::Gone { node, name } => {
                // The kernel then reports the deletion to programs that watch the file, once it is no longer
                // open. It does so only if it still caches the name.
                let is_known = name.as_ref().is_some_and(|(dir, name)| {
                    let (parent, child, name) = (wire(*dir), wire(*node), name.as_name());
                    self.write(&Notification::Delete { parent, child, name })
                });
                self.write(&attributes(*node)) || is_known
            }
            // A length beyond `i64`, as of a whole file, is encoded as 0: up to the end.
            Notice::Data { node, start, last } => {
                self.write(&pages(*node, *start, last.saturating_sub(*start).saturating_add(1)))
            }
            Notice::Name { dir, name } => {
                let name = name.as_name();
                let is_known =
                    self.write(&Notification::InvalEntry { parent: wire(*dir), name, expire_only: false });
                // The kernel also drops its cached listing of the directory.
                self.write(&pages(*dir, 0, 0));
                is_known
            }
            // `Everything` is sent as individual notifications.
            Notice::Everything => true,
        }
    }

    /// Writes a notification. Returns `false` if the kernel knows no such node or name.
    fn write(&self, notification: &Notification<'_>) -> bool {
        let Some(device) = self.device.upgrade() else { return true };
        let mut buffer = [0; BYTES_MAX];
        match fuse_dev::send(device.fd(), notification.encode(&mut buffer)) {
            Err(Errno::NOENT) => return false,
            // The mount is being unmounted, or the node is not a directory.
            Ok(()) | Err(Errno::NODEV | Errno::NOTCONN | Errno::NOTDIR) => {}
            // A removed directory has names in use on this host, or a mount on it.
            Err(Errno::NOTEMPTY | Errno::BUSY) => {}
            Err(error) => tracing::error!(%error, ?notification, "the kernel rejected the invalidation"),
        }
        true
    }
}
