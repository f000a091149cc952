//! Transport-independent FUSE session: requests in, replies out.
//!
//! The transports (`dev`, `virtio`) call [`Session::handle`] for each request. An answer that is ready at
//! once is sent at once, on the same thread; otherwise the request continues as a task, and the thread that
//! completes the operation sends the reply. `ops` has the operations; the other modules are state of a
//! session.

mod body;
mod callers;
mod coherence;
mod counters;
mod dir_attrs;
mod exchange;
mod init;
mod kernel_names;
mod open_retry;
mod ops;
mod passthrough;
mod pending;
mod persistent;
mod posix_locks;
mod push;
mod slot;

use crate::persistent::{Negotiated, PersistentFs};
pub use coherence::Coherence;
pub use counters::Counters;
pub use exchange::Exchange;
pub use passthrough::Backing;
pub(crate) use push::Push;
use push::Subject;
pub use slot::Slot;

pub(crate) use callers::file_of;

use body::Body;
use callers::Callers;
use coherence::PageCache;
use dir_attrs::{DirAttrs, DirChange};
pub(crate) use kernel_names::DirName;
use kernel_names::KernelNames;
use open_retry::OpenRetry;
use passthrough::Passthrough;
use pending::{OnSignal, Pending};
use posix_locks::PosixLocks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tombolo_core::fs::{Attr, FileSystem, FileType, Name, NodeId, Notice, PermissionCheck, Xattrs};
use tombolo_core::{
    Answer, Budget, Ctx, Error, Identity, Interrupt, Limits, Permit, RequestId, Resource, SessionId, Want,
};
use tombolo_host_runtime::task;
use tombolo_wire_fuse::flags::RENAME_EXCHANGE;
use tombolo_wire_fuse::init::{Agreed, Capabilities};
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::notification::{self, EPOCH_MINOR, Notification};
use tombolo_wire_fuse::reply::Lifetimes;
use tombolo_wire_fuse::{DecodeError, Decoded, Errno, Opcode, Request, Unique, reply, status};
use zerocopy::{FromBytes, IntoBytes};

/// Configuration of a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lifetimes of the kernel's cached names, attributes and data.
    pub coherence: Coherence,
    /// Maximum size of a READ and of a WRITE, in bytes.
    pub max_write_bytes: u32,
    /// Limits of the session, of which only that on pending requests is enforced.
    pub limits: Limits,
    /// Capabilities of this transport in addition to those of all transports.
    pub extra: Capabilities,
    /// `true` if the kernel checks permissions before it sends a request, at least if the file system does
    /// not check them. Not needed if the mount serves only the user under whose identity the server runs.
    pub kernel_checks: bool,
    /// `true` if the kernel's own check refuses nothing that the server would grant.
    pub kernel_may_check: bool,
    /// `true` if callers are threads of this host, so that `/proc` shows their groups and pending signals.
    pub local_callers: bool,
    /// `true` if the kernel manages locks itself, so that they are visible only to programs that use this
    /// mount.
    pub local_locks: bool,
    /// `true` if extended attributes are exposed. Otherwise their four operations answer ENOSYS, after which
    /// the kernel sends no more of them.
    pub xattrs: bool,
    /// `true` if the kernel labels files (SELinux). Otherwise a request for a missing label answers
    /// EOPNOTSUPP until a label has been found or set, so that programs stop requesting labels.
    pub labels: bool,
    /// `true` if names are invalidated all at once where the kernel supports it (Linux 6.16), and not each by
    /// itself.
    pub epochs: bool,
    /// Registration of backing files with the kernel, if the transport supports it.
    pub backing: Option<Arc<dyn Backing>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            coherence: Coherence::default(),
            max_write_bytes: 1 << 20,
            limits: Limits::default(),
            extra: Capabilities::empty(),
            kernel_checks: true,
            kernel_may_check: true,
            local_callers: false,
            local_locks: false,
            xattrs: true,
            labels: true,
            epochs: true,
            backing: None,
        }
    }
}

/// One kernel's use of one file system, shared by all its serving threads.
pub struct Session {
    id: SessionId,
    file_system: Arc<dyn FileSystem>,
    options: Options,
    /// Negotiated capabilities, set together with `ready` by INIT, or from the state of a resumed session.
    negotiated: AtomicU64,
    ready: AtomicBool,
    /// `true` once the reply to INIT has been sent.
    init_sent: AtomicBool,
    /// Number of calls to [`Session::interrupt_all`].
    interrupt_epoch: AtomicU64,
    /// `true` once a protocol violation has been logged.
    violation_logged: AtomicBool,
    /// `true` if labels may exist: the kernel labels files, or a label has been found or set.
    labels: Arc<AtomicBool>,
    pages: Arc<PageCache>,
    open_retry: Arc<OpenRetry>,
    posix_locks: PosixLocks,
    /// Set if the file system has backing files and the transport can register them.
    passthrough: Option<Arc<Passthrough>>,
    /// Record of the notices for the kernel; present with [`Coherence::Push`].
    push: Option<Arc<Push>>,
    /// Attributes of the directory changed last.
    dir_attrs: Arc<DirAttrs>,
    /// State that survives a server restart, if there is a keeper; also the session's `file_system`.
    persistent: Option<PersistentFs>,
    /// Negotiated minor version.
    minor: AtomicU32,
    callers: Arc<Callers>,
    pending: Pending,
    budget: Arc<Budget>,
    counters: Counters,
}

impl Session {
    /// Creates a session that waits for INIT.
    pub fn new(id: SessionId, file_system: Arc<dyn FileSystem>, options: Options) -> Arc<Session> {
        Arc::new(Session::with_state(id, file_system, None, options))
    }

    fn with_state(
        id: SessionId,
        file_system: Arc<dyn FileSystem>,
        persistent: Option<PersistentFs>,
        options: Options,
    ) -> Session {
        let checks = file_system.profile().permission_check == PermissionCheck::BackEnd;
        let callers = Callers::new(checks, options.local_callers);
        let backing = options.backing.clone();
        Session {
            id,
            passthrough: backing.and_then(|kernel| Passthrough::new(&file_system, kernel)),
            file_system,
            negotiated: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            init_sent: AtomicBool::new(false),
            interrupt_epoch: AtomicU64::new(0),
            violation_logged: AtomicBool::new(false),
            labels: Arc::new(AtomicBool::new(options.labels)),
            pages: Arc::new(PageCache::new(options.coherence)),
            open_retry: Arc::default(),
            posix_locks: PosixLocks::default(),
            push: (options.coherence == Coherence::Push).then(Arc::default),
            dir_attrs: Arc::default(),
            persistent,
            minor: AtomicU32::new(0),
            callers: Arc::new(callers),
            pending: Pending::default(),
            budget: Budget::new(options.limits),
            counters: Counters::default(),
            options,
        }
    }

    /// Handles one request, whose private bytes are in `slot`. Returns slot and exchange if the request is
    /// complete; otherwise [`Exchange::retire`] receives them later.
    pub fn handle<E: Exchange>(self: &Arc<Self>, slot: Box<Slot>, exchange: E) -> Option<(Box<Slot>, E)> {
        match &self.persistent {
            Some(persistent) => self.handle_persistent(persistent, slot, exchange),
            None => self.perform(slot, exchange),
        }
    }

    fn perform<E: Exchange>(
        self: &Arc<Self>,
        mut slot: Box<Slot>,
        mut exchange: E,
    ) -> Option<(Box<Slot>, E)> {
        let Ok((raw, _)) = InHeader::read_from_prefix(&slot.head) else {
            self.refuse(&DecodeError::NoHeader { found_bytes: slot.head.len() });
            exchange.send_nothing();
            return Some((slot, exchange));
        };
        let (unique, thread) = (Unique(raw.unique), raw.pid);
        let opcode = Opcode::from_wire(raw.opcode);
        tracing::trace!(session = self.id.0, request = unique.0, ?opcode, node = raw.nodeid, "request");
        let silent = opcode.is_some_and(Opcode::is_silent);
        let notices = self.push.as_ref().map_or(0, |push| push.count());
        match self.begin(&mut slot, &mut exchange) {
            Answer::Done(_) if silent => exchange.send_nothing(),
            Answer::Done(result) => self.finish(unique, notices, result, &mut slot, &mut exchange),
            Answer::Later(later) => {
                let permit = self.admit(unique, &slot.interrupt, self.on_signal(opcode, thread));
                let session = self.clone();
                task::spawn(async move {
                    let result = match later.await {
                        // `admit` interrupted the operation, because too many requests were pending.
                        Err(Error::Interrupted) if permit.is_none() => Err(Error::Busy),
                        result => result,
                    };
                    session.pending.remove(unique);
                    drop(permit);
                    session.finish(unique, notices, result, &mut slot, &mut exchange);
                    exchange.retire(slot);
                });
                return None;
            }
        }
        Some((slot, exchange))
    }

    /// Returns `true` once INIT has been accepted.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Returns `true` once INIT has been answered.
    pub fn is_initialized(&self) -> bool {
        self.init_sent.load(Ordering::Acquire)
    }

    /// Returns the negotiated capabilities; empty before INIT.
    pub fn negotiated(&self) -> Capabilities {
        Capabilities::from_bits_truncate(self.negotiated.load(Ordering::Acquire))
    }

    /// Returns the configured cache policy for names, attributes and data.
    pub fn coherence(&self) -> Coherence {
        self.options.coherence
    }

    /// Returns the request counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of pending requests.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Returns the number of openings served by passthrough since the session began, including closed ones.
    pub fn passthrough_openings(&self) -> u64 {
        self.passthrough.as_ref().map_or(0, |passthrough| passthrough.openings())
    }

    /// Drops the record of openings for passthrough, of which the kernel reports no RELEASE after the
    /// connection has ended. To be called once no further request can arrive.
    pub(crate) fn end_openings(&self) {
        if let Some(passthrough) = &self.passthrough {
            passthrough.ended();
        }
    }

    /// Returns the passthrough state if PASSTHROUGH was negotiated.
    fn passthrough(&self) -> Option<&Arc<Passthrough>> {
        self.passthrough.as_ref().filter(|_| self.negotiated().contains(Capabilities::PASSTHROUGH))
    }

    /// Interrupts every pending operation, because the session ends.
    pub fn interrupt_all(&self) {
        self.interrupt_epoch.fetch_add(1, Ordering::SeqCst);
        self.pending.interrupt_all();
    }

    /// Returns the current cache lifetimes for a node with these attributes.
    fn lifetimes_of(&self, attr: &Attr) -> Lifetimes {
        let mut keep = self.coherence_now().lifetimes();
        if self.kernel_names().is_some() && attr.file_type == FileType::Directory {
            keep.entry = keep.entry.min(Coherence::Auto.lifetimes().entry);
        }
        if attr.volatile {
            keep.attr = Coherence::Strict.lifetimes().attr;
        }
        keep
    }

    /// Returns the coherence in effect: [`Coherence::Push`] becomes strict while notices are incomplete.
    fn coherence_now(&self) -> Coherence {
        match self.coherence() {
            Coherence::Push if !self.file_system.changes().is_some_and(|changes| changes.is_complete()) => {
                Coherence::Strict
            }
            coherence => coherence,
        }
    }

    /// Returns how long a negative entry may be cached, if at all.
    fn absence(&self) -> Option<Duration> {
        let absence = self.coherence_now().absence()?;
        self.kernel_names().map_or(Some(absence), KernelNames::absence)
    }

    /// Returns the record of names in the kernel's cache of a session with [`Coherence::Push`]; `None` if the
    /// kernel can invalidate all names at once ([`Notification::IncEpoch`]).
    pub(crate) fn kernel_names(&self) -> Option<&KernelNames> {
        let has_epochs = self.options.epochs && self.minor.load(Ordering::Relaxed) >= EPOCH_MINOR;
        self.push.as_ref().filter(|_| !has_epochs).map(|push| &push.kernel_names)
    }

    pub(crate) fn push(&self) -> Option<Arc<Push>> {
        self.push.clone()
    }

    pub(crate) fn shared_file_system(&self) -> Arc<dyn FileSystem> {
        self.file_system.clone()
    }

    /// Begins a change: of names, or with `node` of that node's attributes. From then on
    /// [`Session::dir_attr`] returns no attributes that the change may affect. `None` without
    /// [`Coherence::Push`].
    fn dir_change(&self, node: Option<NodeId>) -> Option<DirChange> {
        self.push.as_ref().map(|push| self.dir_attrs.change(push, node))
    }

    /// Returns the attributes of a directory from the reply to its last change, if they are still valid.
    fn dir_attr(&self, dir: NodeId) -> Option<Attr> {
        let push = self.push.as_ref().filter(|_| self.coherence_now() == Coherence::Push)?;
        self.dir_attrs.get(push, dir)
    }

    /// Returns the nodes and names that the reply describes.
    fn subject(decoded: &Decoded<'_>, body: &Body) -> Subject {
        let mut subject = Subject::default();
        let node = NodeId(decoded.header.node.0);
        subject.nodes.push(node);
        subject.names.extend(match &decoded.request {
            Request::Lookup { name }
            | Request::Mknod { name, .. }
            | Request::Mkdir { name, .. }
            | Request::Symlink { name, .. }
            | Request::Create { name, .. }
            | Request::Link { new_name: name, .. } => Some((node, (*name).to_owned())),
            Request::Rename { new_parent, new_name, .. } => {
                Some((NodeId(new_parent.0), (*new_name).to_owned()))
            }
            _ => None,
        });
        match body {
            Body::Entry(entry) | Body::Created(entry, ..) => subject.nodes.push(entry.node),
            Body::Page { page, .. } => {
                for line in page.iter() {
                    subject.nodes.extend(line.entry.map(|entry| entry.node));
                    let name = line.entry.and_then(|_| Name::new(line.name).ok());
                    subject.names.extend(name.map(|name| (node, name.to_owned())));
                }
            }
            _ => {}
        }
        subject
    }

    /// Records the nodes and names in a reply that is about to be written, and returns them.
    fn record_reply(&self, push: &Push, head: &[u8], body: &Body) -> Subject {
        self.note_look_ups(body);
        let Ok(decoded) = Request::decode(head, self.negotiated()) else { return Subject::default() };
        let subject = Self::subject(&decoded, body);
        push.record_names(&subject);
        if let Some(names) = self.kernel_names() {
            let excess = names.record(&decoded, body);
            push.resend(excess.into_iter().map(|(dir, name)| Notice::Name { dir, name }));
        }
        if let (Request::Rename { name, new_parent, new_name, flags }, Body::Empty | Body::AttrChanged(_)) =
            (&decoded.request, body)
        {
            let old = (NodeId(decoded.header.node.0), (*name).to_owned());
            let new = (NodeId(new_parent.0), (*new_name).to_owned());
            // On a kernel without EXPIRE_ONLY, a notice about the new name would detach what is mounted in a
            // directory of that name. Only the recorded names, which are of files, are then followed.
            let expires_only = self.negotiated().contains(Capabilities::HAS_EXPIRE_ONLY);
            if expires_only || push.kernel_names.contains(&new) {
                push.record_move(old, new, flags & RENAME_EXCHANGE != 0);
            }
        }
        subject
    }

    fn note_look_ups(&self, body: &Body) {
        let Some(push) = &self.push else { return };
        match body {
            Body::Entry(entry) | Body::Created(entry, ..) => push.looked_up(entry.node),
            Body::Page { page, .. } => {
                page.iter().filter_map(|line| line.entry).for_each(|entry| push.looked_up(entry.node));
            }
            _ => {}
        }
    }

    fn file_system(&self) -> &dyn FileSystem {
        self.file_system.as_ref()
    }

    /// Returns the extended attributes, if the file system has them and this session exposes them.
    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.file_system.xattrs().filter(|_| self.options.xattrs)
    }

    /// Decodes the request and starts the operation.
    fn begin<E: Exchange>(&self, slot: &mut Slot, exchange: &mut E) -> Answer<Body> {
        let decoded = match Request::decode(&slot.head, self.negotiated()) {
            Ok(decoded) => decoded,
            Err(error) => return Answer::err(self.refuse(&error)),
        };
        self.counters.count(decoded.header.opcode);
        if !(self.is_ready() || decoded.header.opcode == Opcode::Init) {
            return Answer::err(Error::Io { source: None });
        }
        slot.interrupt.renew();
        let ctx = self.ctx(&decoded, &slot.interrupt);
        ops::dispatch(self, &ctx, &decoded, &mut slot.page, exchange)
    }

    /// Sends the reply. `notices` is the number of notices when the request began.
    fn finish<E: Exchange>(
        &self,
        unique: Unique,
        notices: u64,
        result: Result<Body, Error>,
        slot: &mut Slot,
        exchange: &mut E,
    ) {
        let body = match result {
            Ok(body) => body,
            Err(error) => {
                let errno = self.errno(unique, &error);
                exchange.send(reply::error(unique, errno).as_bytes());
                return;
            }
        };
        if let Body::Entry(entry) = &body {
            let thread = InHeader::read_from_prefix(&slot.head).map_or(0, |(raw, _)| raw.pid);
            self.open_retry.record(self.coherence(), thread, entry.node, &entry.attr);
        }
        if let Body::AttrChanged(node) = body {
            let changed =
                Notification::InvalInode { node: body::wire_node(node), offset: None, len_bytes: 0 };
            exchange.notify(changed.encode(&mut [0; notification::BYTES_MAX]));
        }
        let subject = self.push.as_ref().map(|push| self.record_reply(push, &slot.head, &body));
        let sent = match &body {
            Body::Silent => {
                exchange.send_nothing();
                true
            }
            Body::RetryOpen(_) => {
                exchange.send(reply::error(unique, Errno::ESTALE).as_bytes());
                false
            }
            Body::Data(bytes) => exchange.send_data(reply::header(unique, *bytes).as_bytes(), *bytes),
            _ => exchange.send(body.encode(slot, self, unique)),
        };
        if let (Some(push), Some(subject)) = (&self.push, &subject) {
            push.resend_missed(notices, subject, self.kernel_names());
        }
        if let Body::Init(_) = body {
            self.init_sent.store(sent, Ordering::Release);
        }
        if !sent {
            body.undo(self);
        }
        if let Body::Page { page, .. } = body {
            slot.page = Some(page);
        }
    }

    /// Counts a request as pending. A request beyond the session's limit gets no permit: it is interrupted at
    /// once, and still gets a reply.
    fn admit(&self, unique: Unique, interrupt: &Interrupt, on_signal: OnSignal) -> Option<Permit> {
        self.counters.later.fetch_add(1, Ordering::Relaxed);
        self.pending.add(unique, interrupt, on_signal);
        let permit = self.budget.take(Resource::Pending, 1);
        if permit.is_none() {
            interrupt.raise();
        }
        permit
    }

    /// Returns the effect of a signal to the requesting thread on a pending request.
    fn on_signal(&self, opcode: Option<Opcode>, thread: u32) -> OnSignal {
        match opcode {
            Some(Opcode::Setlkw) => OnSignal::Interrupt,
            // The number 0 stands for every thread outside of the mount's pid namespace.
            _ if self.options.local_callers && thread != 0 => OnSignal::InterruptIfKilled(thread),
            _ => OnSignal::Ignore,
        }
    }

    fn refuse(&self, error: &DecodeError) -> Error {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        if error.is_violation() && !self.violation_logged.swap(true, Ordering::Relaxed) {
            tracing::warn!(session = self.id.0, %error, "the kernel violates the protocol; further violations are not logged");
        }
        status::from_errno(error.errno())
    }

    /// Maps a failure to an errno, and logs the cause of an I/O error, which no errno contains.
    fn errno(&self, unique: Unique, error: &Error) -> Errno {
        if let Error::Io { source: Some(source) } = error {
            tracing::error!(session = self.id.0, request = unique.0, error = %source, "I/O error");
        }
        tracing::trace!(session = self.id.0, request = unique.0, %error, "failed");
        status::to_errno(error)
    }

    fn ctx(&self, decoded: &Decoded<'_>, interrupt: &Interrupt) -> Ctx {
        let header = &decoded.header;
        let mut groups = decoded.extensions.groups().peekable();
        let groups = groups.peek().is_some().then(|| groups.collect());
        let uid = header.uid.unwrap_or(NOBODY);
        let named = Identity { uid, gid: header.gid.unwrap_or(NOBODY), groups };
        let identity = self.callers.identity(&decoded.request, header.pid, named);
        let key = self.persistent.as_ref().map(|persistent| persistent.key(header.unique));
        Ctx { identity, request: RequestId(header.unique.0), key, ..self.ctx_root(interrupt.clone()) }
    }

    pub(crate) fn ctx_root(&self, interrupt: Interrupt) -> Ctx {
        let want = if self.pages.wants_attr() { Want::OPEN_ATTRS } else { Want::empty() };
        Ctx { interrupt, want, ..Ctx::root(self.id) }
    }

    /// Forgets a look-up that the kernel never received.
    fn return_look_up(&self, node: NodeId) {
        if let Some(push) = &self.push {
            push.forgotten(node, 1);
        }
        self.file_system.forget(&self.ctx_root(Interrupt::default()), &[(node, 1)]);
    }

    /// Drops the session's own state of a node that the kernel forgets.
    fn forget(&self, node: NodeId, look_ups: u64) {
        if let Some(push) = &self.push {
            push.forgotten(node, look_ups);
            self.dir_attrs.forget(node);
        }
        self.pages.forget(node);
        self.posix_locks.forget(node);
    }

    fn set_negotiated(&self, negotiated: &Agreed) {
        if let Some(persistent) = &self.persistent {
            persistent.set_negotiated(Negotiated {
                capabilities: negotiated.capabilities.bits(),
                minor: negotiated.minor,
            });
        }
        self.minor.store(negotiated.minor, Ordering::Relaxed);
        self.negotiated.store(negotiated.capabilities.bits(), Ordering::Release);
        self.ready.store(true, Ordering::Release);
    }
}

/// User and group id of a caller whose own ids an id-mapped mount hides (`overflowuid`).
const NOBODY: u32 = 65_534;

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
