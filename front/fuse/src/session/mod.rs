//! A FUSE session that knows no transport: requests in, answers out.
//!
//! [`Session::handle`] takes one request. What the file system answers at once is sent at once, on the same
//! thread and without an allocation; the rest goes on as a task, and whichever thread finishes the operation
//! sends the reply.

mod body;
mod callers;
mod coherence;
mod counters;
mod exchange;
mod init;
mod open_retry;
mod ops;
mod outliving;
mod passthrough;
mod pending;
mod posix_locks;
mod push;
mod slot;

use crate::kept::{Agreement, Kept};
pub use coherence::Coherence;
pub use counters::Counters;
pub use exchange::Exchange;
pub use passthrough::Backing;
use push::About;
pub(crate) use push::Push;
pub use slot::Slot;

pub(crate) use callers::file_of;

use body::Body;
use callers::Callers;
use coherence::PageCache;
use open_retry::OpenRetry;
use passthrough::Passthrough;
use pending::{OnSignal, Pending};
use posix_locks::PosixLocks;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tombolo_core::fs::{Attr, FileSystem, Name, NodeId, PermissionCheck, Xattrs};
use tombolo_core::{
    Answer, Budget, Ctx, Error, Identity, Interrupt, Limits, Permit, RequestId, Resource, SessionId, Want,
};
use tombolo_host_runtime::task;
use tombolo_wire_fuse::init::{Agreed, Capabilities};
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::notification::{self, Notification};
use tombolo_wire_fuse::reply::Lifetimes;
use tombolo_wire_fuse::{DecodeError, Decoded, Errno, Opcode, Request, Unique, reply, status};
use zerocopy::{FromBytes, IntoBytes};

/// How a session is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long the kernel may keep what it was told.
    pub coherence: Coherence,
    /// The largest WRITE and READ.
    pub max_write_bytes: u32,
    /// How much may pend.
    pub limits: Limits,
    /// Capabilities that this transport can serve beside those that all can.
    pub extra: Capabilities,
    /// Does the kernel check permissions before it asks? Not where only one user can be asking, with nothing
    /// that the server does not have too.
    pub kernel_checks: bool,
    /// The kernel's own check refuses nothing that the server would grant.
    pub kernel_may_check: bool,
    /// Are the callers threads of this machine, of which more can be seen than a request says?
    pub local_callers: bool,
    /// Does the kernel keep locks itself, so that others than its own programs do not see them?
    pub local_locks: bool,
    /// Are extended attributes shown? If not, each of their four operations is not implemented, which a
    /// kernel is told once.
    pub xattrs: bool,
    /// The kernel in front labels files. Otherwise a program that asks for a label is told that there are
    /// none, which ends its asking.
    pub labels: bool,
    /// The way to tell the kernel of backing files, where there is one.
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
            backing: None,
        }
    }
}

/// One kernel's use of one file system. All its threads share it.
pub struct Session {
    id: SessionId,
    file_system: Arc<dyn FileSystem>,
    options: Options,
    /// The capabilities agreed on, once INIT has been; they and this mark are set together.
    agreed: AtomicU64,
    ready: AtomicBool,
    /// Whether the kernel has been told.
    told: AtomicBool,
    /// How often all that pended was asked to end.
    ends: AtomicU64,
    /// Whether it was said that the requester breaks the protocol.
    warned: AtomicBool,
    /// There are labels: the kernel in front makes them, or one was seen.
    labels: Arc<AtomicBool>,
    pages: Arc<PageCache>,
    open_retry: Arc<OpenRetry>,
    posix_locks: PosixLocks,
    /// Where the file system has backing files and the transport a way to tell of them.
    passthrough: Option<Arc<Passthrough>>,
    /// With [`Coherence::Push`].
    push: Option<Arc<Push>>,
    /// What outlives the process, where there is a keeper: the file system itself.
    kept: Option<Kept>,
    /// The minor version that both sides speak.
    minor: AtomicU32,
    callers: Arc<Callers>,
    pending: Pending,
    budget: Arc<Budget>,
    counters: Counters,
}

impl Session {
    /// A session that waits for its INIT.
    pub fn new(id: SessionId, file_system: Arc<dyn FileSystem>, options: Options) -> Arc<Session> {
        Arc::new(Session::over(id, file_system, None, options))
    }

    fn over(
        id: SessionId,
        file_system: Arc<dyn FileSystem>,
        kept: Option<Kept>,
        options: Options,
    ) -> Session {
        let checks = file_system.profile().permission_check == PermissionCheck::BackEnd;
        let callers = Callers::new(checks, options.local_callers);
        let backing = options.backing.clone();
        Session {
            id,
            passthrough: backing.and_then(|kernel| Passthrough::new(&file_system, kernel)),
            file_system,
            agreed: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            told: AtomicBool::new(false),
            ends: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            labels: Arc::new(AtomicBool::new(options.labels)),
            pages: Arc::new(PageCache::new(options.coherence)),
            open_retry: Arc::default(),
            posix_locks: PosixLocks::default(),
            push: (options.coherence == Coherence::Push).then(Arc::default),
            kept,
            minor: AtomicU32::new(0),
            callers: Arc::new(callers),
            pending: Pending::default(),
            budget: Budget::new(options.limits),
            counters: Counters::default(),
            options,
        }
    }

    /// Takes one request, whose private bytes are in `slot`. Gives slot and exchange back if the request is
    /// finished; otherwise it goes on, and [`Exchange::retire`] gets them in the end.
    pub fn handle<E: Exchange>(self: &Arc<Self>, slot: Box<Slot>, exchange: E) -> Option<(Box<Slot>, E)> {
        match &self.kept {
            Some(kept) => self.handle_kept(kept, slot, exchange),
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
                        // There was no signal: it was asked to end because too many pend.
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

    /// Has INIT been?
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Has INIT been answered?
    pub fn is_agreed(&self) -> bool {
        self.told.load(Ordering::Acquire)
    }

    /// What both sides can do; nothing before INIT.
    pub fn agreed(&self) -> Capabilities {
        Capabilities::from_bits_truncate(self.agreed.load(Ordering::Acquire))
    }

    /// How long the kernel may keep what it was told.
    pub fn coherence(&self) -> Coherence {
        self.options.coherence
    }

    /// How many requests of each kind it has taken.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many requests pend.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// How many openings the kernel has read by itself, of those that ended too.
    pub fn passthrough_openings(&self) -> u64 {
        self.passthrough.as_ref().map_or(0, |passthrough| passthrough.openings())
    }

    /// No request comes any more.
    pub(crate) fn end_openings(&self) {
        if let Some(passthrough) = &self.passthrough {
            passthrough.ended();
        }
    }

    /// What keeps account of openings, once passthrough is agreed on.
    fn passthrough(&self) -> Option<&Arc<Passthrough>> {
        self.passthrough.as_ref().filter(|_| self.agreed().contains(Capabilities::PASSTHROUGH))
    }

    /// Asks every pending operation to end, because no caller waits for it any more.
    pub fn interrupt_all(&self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
        self.pending.interrupt_all();
    }

    /// How long the kernel may keep what it is told now.
    fn lifetimes(&self) -> Lifetimes {
        let keep = self.coherence_now().lifetimes();
        // Without epochs there is no way to have the kernel look at all names again.
        let names_end = self.coherence() == Coherence::Push && !self.has_epochs();
        if names_end {
            Lifetimes { entry: keep.entry.min(Coherence::Auto.lifetimes().entry), ..keep }
        } else {
            keep
        }
    }

    /// How long it may keep what it is told now of a node.
    fn lifetimes_of(&self, attr: &Attr) -> Lifetimes {
        let keep = self.lifetimes();
        if attr.volatile { Lifetimes { attr: Coherence::Strict.lifetimes().attr, ..keep } } else { keep }
    }

    /// What it may keep at present: with [`Coherence::Push`] nothing while not all changes are seen.
    fn coherence_now(&self) -> Coherence {
        match self.coherence() {
            Coherence::Push if !self.file_system.changes().is_some_and(|changes| changes.is_complete()) => {
                Coherence::Strict
            }
            coherence => coherence,
        }
    }

    /// How long the absence of a name may be cached.
    fn absence(&self) -> Option<Duration> {
        self.coherence_now().absence().filter(|_| self.push.is_none() || self.has_epochs())
    }

    /// Whether the kernel knows [`Notification::IncEpoch`].
    pub(crate) fn has_epochs(&self) -> bool {
        self.minor.load(Ordering::Relaxed) >= notification::EPOCH_MINOR
    }

    pub(crate) fn push(&self) -> Option<Arc<Push>> {
        self.push.clone()
    }

    pub(crate) fn shared_file_system(&self) -> Arc<dyn FileSystem> {
        self.file_system.clone()
    }

    /// What an answer to the request in `head` is about.
    fn about(&self, head: &[u8], body: &Body) -> About {
        let mut about = About::default();
        let Ok(decoded) = Request::decode(head, self.agreed()) else { return about };
        let node = NodeId(decoded.header.node.0);
        about.nodes.push(node);
        about.names.extend(match decoded.request {
            Request::Lookup { name }
            | Request::Mknod { name, .. }
            | Request::Mkdir { name, .. }
            | Request::Symlink { name, .. }
            | Request::Create { name, .. }
            | Request::Link { new_name: name, .. } => Some((node, name.to_owned())),
            Request::Rename { new_parent, new_name, .. } => Some((NodeId(new_parent.0), new_name.to_owned())),
            _ => None,
        });
        match body {
            Body::Entry(entry) | Body::Created(entry, ..) => about.nodes.push(entry.node),
            Body::Page { page, .. } => {
                for line in page.iter() {
                    about.nodes.extend(line.entry.map(|entry| entry.node));
                    let name = line.entry.and_then(|_| Name::new(line.name).ok());
                    about.names.extend(name.map(|name| (node, name.to_owned())));
                }
            }
            _ => {}
        }
        about
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

    /// The extended attributes, if the file system has them and this session shows them.
    fn xattrs(&self) -> Option<&dyn Xattrs> {
        self.file_system.xattrs().filter(|_| self.options.xattrs)
    }

    /// Decodes and starts the request.
    fn begin<E: Exchange>(&self, slot: &mut Slot, exchange: &mut E) -> Answer<Body> {
        let decoded = match Request::decode(&slot.head, self.agreed()) {
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

    /// Answers; there were so many notices when the request began.
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
            self.open_retry.tell(self.coherence(), thread, entry.node, &entry.attr);
        }
        if let Body::AttrChanged(node) = body {
            let changed =
                Notification::InvalInode { node: body::wire_node(node), offset: None, len_bytes: 0 };
            exchange.notify(changed.encode(&mut [0; notification::BYTES_MAX]));
        }
        let about = self.push.as_ref().map(|push| {
            let about = self.about(&slot.head, &body);
            self.note_look_ups(&body);
            push.answers(&about);
            about
        });
        let sent = match &body {
            Body::Silent => {
                exchange.send_nothing();
                true
            }
            Body::LookAgain(_) => {
                exchange.send(reply::error(unique, Errno::ESTALE).as_bytes());
                false
            }
            Body::Data(bytes) => exchange.send_data(reply::header(unique, *bytes).as_bytes(), *bytes),
            _ => exchange.send(body.encode(slot, self, unique)),
        };
        if let (Some(push), Some(about)) = (&self.push, &about) {
            push.answered(notices, about);
        }
        if let Body::Init(_) = body {
            self.told.store(sent, Ordering::Release);
        }
        if !sent {
            body.undo(self);
        }
        if let Body::Page { page, .. } = body {
            slot.page = Some(page);
        }
    }

    /// Counts a request as pending. Beyond the session's limit it is asked to end at once; its answer still
    /// comes.
    fn admit(&self, unique: Unique, interrupt: &Interrupt, on_signal: OnSignal) -> Option<Permit> {
        self.counters.later.fetch_add(1, Ordering::Relaxed);
        self.pending.add(unique, interrupt, on_signal);
        let permit = self.budget.take(Resource::Pending, 1);
        if permit.is_none() {
            interrupt.raise();
        }
        permit
    }

    /// What a signal to the thread that asked does to a request that pends.
    fn on_signal(&self, opcode: Option<Opcode>, thread: u32) -> OnSignal {
        match opcode {
            Some(Opcode::Setlkw) => OnSignal::End,
            // 0 is a thread outside of the mount's process namespace.
            _ if self.options.local_callers && thread != 0 => OnSignal::EndIfKilled(thread),
            _ => OnSignal::GoOn,
        }
    }

    fn refuse(&self, error: &DecodeError) -> Error {
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        if error.is_violation() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(session = self.id.0, %error, "a request that no kernel sends; further ones are not told of");
        }
        status::from_errno(error.errno())
    }

    /// The errno of a failure; what no caller can act upon is logged.
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
        let key = self.kept.as_ref().map(|kept| kept.key(header.unique));
        Ctx { identity, request: RequestId(header.unique.0), key, ..self.ctx_root(interrupt.clone()) }
    }

    pub(crate) fn ctx_root(&self, interrupt: Interrupt) -> Ctx {
        Ctx {
            session: self.id,
            request: RequestId::default(),
            key: None,
            identity: Identity::ROOT,
            deadline: None,
            interrupt,
            want: if self.pages.wants_attr() { Want::OPEN_ATTRS } else { Want::empty() },
            known_since: None,
            found: None,
            opens_unasked: false,
            lists_below: false,
        }
    }

    /// Takes back a look-up that the kernel was not told of.
    fn take_back(&self, node: NodeId) {
        if let Some(push) = &self.push {
            push.forgotten(node, 1);
        }
        self.file_system.forget(&self.ctx_root(Interrupt::default()), &[(node, 1)]);
    }

    /// The kernel forgot the node: so do the session's own tables.
    fn forget(&self, node: NodeId, look_ups: u64) {
        if let Some(push) = &self.push {
            push.forgotten(node, look_ups);
        }
        self.pages.forget(node);
        self.posix_locks.forget(node);
    }

    fn agree(&self, agreed: &Agreed) {
        if let Some(kept) = &self.kept {
            kept.agreed(Agreement { capabilities: agreed.capabilities.bits(), minor: agreed.minor });
        }
        self.minor.store(agreed.minor, Ordering::Relaxed);
        self.agreed.store(agreed.capabilities.bits(), Ordering::Release);
        self.ready.store(true, Ordering::Release);
    }
}

/// The user of a caller that an id-mapped mount hides (`overflowuid`).
const NOBODY: u32 = 65_534;

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
