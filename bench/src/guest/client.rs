//! FUSE requests and replies on a virtqueue.

use std::path::Path;
use std::time::Duration;

use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, Part, Wait};
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::init::{Capabilities, MAJOR};
use tombolo_wire_fuse::layout::attr::EntryOut;
use tombolo_wire_fuse::layout::dir::{BatchForgetIn, ForgetOne};
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::{InitIn, InitOut};
use tombolo_wire_fuse::layout::open::{OpenIn, OpenOut, ReleaseIn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::error::{Doing, Error, Result};

/// Minor version of Linux 6.1.
const MINOR: u32 = 36;
/// Maximum size of a header and arguments.
const REQUEST_BYTES: u32 = 512;
/// Maximum size of a reply without file data.
const REPLY_BYTES: u32 = 512;
const HEADER_BYTES: usize = size_of::<InHeader>();
/// Time limit of a reply, after which the server counts as dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Memory of a queue besides request data: rings, indirect tables, headers.
const OVERHEAD_BYTES: usize = 1 << 20;
/// `O_LARGEFILE`, which 64-bit kernels always set.
const O_LARGEFILE: u32 = 0o100_000;

pub const ROOT: u64 = 1;

#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub opcode: Opcode,
    pub node: u64,
    pub args: &'a [u8],
    /// Number of file data bytes to send from the slot.
    pub sends: u32,
    /// Size of the reply's structure.
    pub reply_bytes: usize,
    /// Maximum number of file data bytes to receive into the slot.
    pub receives: u32,
}

impl<'a> Request<'a> {
    /// Returns a request with a reply of type `T` and no file data.
    pub fn answered_by<T>(opcode: Opcode, node: u64, args: &'a [u8]) -> Self {
        Self { opcode, node, args, sends: 0, reply_bytes: size_of::<T>(), receives: 0 }
    }
}

/// A connected guest with one request queue.
pub struct Guest {
    // Dropping it closes the connection.
    _driver: Driver,
    priority: DriverQueue,
    forget: GuestBuffer,
    queue: DriverQueue,
    slots: Vec<Slot>,
    /// Slot of each chain.
    slot_of: Vec<usize>,
    unique: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    request: GuestBuffer,
    reply: GuestBuffer,
    data: GuestBuffer,
}

impl Guest {
    /// Connects to a server, with `slots` concurrent requests of `data_bytes` each, and starts a session.
    pub fn connect(socket: &Path, wait: Wait, slots: usize, data_bytes: u32) -> Result<Self> {
        let data = slots * (data_bytes as usize).next_multiple_of(4096);
        let settings = DriverSettings {
            queues: 2,
            queue_size: 128,
            queue_memory_bytes: OVERHEAD_BYTES + data,
            wait,
            ..DriverSettings::default()
        };
        let (driver, queues) = Driver::connect(socket, settings).doing_to("connect to", socket)?;
        let mut queues = queues.into_iter();
        let (Some(mut priority), Some(mut queue)) = (queues.next(), queues.next()) else {
            return Err(no_room("two queues"));
        };
        let forget = priority.alloc(REQUEST_BYTES).ok_or_else(|| no_room("a request"))?;
        let slots = (0..slots).map(|_| Slot::new(&mut queue, data_bytes)).collect::<Result<_>>()?;
        let slot_of = vec![0; usize::from(queue.size())];
        let mut guest = Self { _driver: driver, priority, forget, queue, slots, slot_of, unique: 0 };
        guest.init()?;
        Ok(guest)
    }

    /// Returns the maximum number of requests in flight.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Sends a request and waits. Returns the reply's structure and the number of file data bytes.
    pub fn call<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(T, usize)> {
        self.submit(0, request)?;
        self.queue.kick();
        let (slot, bytes) = self.finish()?;
        let (header, reply) = self.reply::<T>(slot);
        if header.error != 0 {
            return Err(wrong(request.opcode, format!("error {}", header.error)));
        }
        Ok((reply, bytes.saturating_sub(size_of::<OutHeader>() + size_of::<T>())))
    }

    /// Submits a request without notifying the server.
    pub fn submit(&mut self, slot: usize, request: &Request<'_>) -> Result<()> {
        let Slot { request: at, reply, data } =
            *self.slots.get(slot).ok_or_else(|| no_room("the request"))?;
        self.unique += 2;
        let bytes = HEADER_BYTES + request.args.len();
        let header = InHeader {
            len: u32::try_from(bytes).unwrap_or(u32::MAX) + request.sends,
            opcode: request.opcode as u32,
            unique: self.unique,
            nodeid: request.node,
            ..InHeader::default()
        };
        let mut text = [0; REQUEST_BYTES as usize];
        let (head, tail) = text.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(header.as_bytes());
        tail.get_mut(..request.args.len())
            .ok_or_else(|| no_room("the arguments"))?
            .copy_from_slice(request.args);
        self.queue.write(at, &text[..bytes]);
        // Linux's layout of a request: header, arguments, data; reply header, its structure, data.
        let (head, reply_head) = (HEADER_BYTES as u32, size_of::<OutHeader>() as u32);
        let part = |address, len, writable| Part { address, len, writable };
        let mut parts = vec![
            at.first(head).readable(),
            part(at.address + u64::from(head), request.args.len() as u32, false),
            data.first(request.sends).readable(),
            reply.first(reply_head).writable(),
            part(reply.address + u64::from(reply_head), request.reply_bytes as u32, true),
            data.first(request.receives).writable(),
        ];
        parts.retain(|part| part.len > 0);
        let chain = self.queue.add(&parts).ok_or_else(|| no_room("the chain"))?;
        if let Some(place) = self.slot_of.get_mut(usize::from(chain)) {
            *place = slot;
        }
        Ok(())
    }

    /// Signals submitted requests to the server, if it wants to be notified.
    pub fn ring(&mut self) {
        self.queue.kick();
    }

    /// Waits for a reply; returns its slot and length.
    pub fn finish(&mut self) -> Result<(usize, usize)> {
        let used = self.queue.wait_used(PATIENCE).doing(|| "wait for an answer".to_owned())?;
        let slot = self.slot_of.get(usize::from(used.head)).copied().unwrap_or_default();
        Ok((slot, used.written as usize))
    }

    pub fn reply<T: FromBytes + KnownLayout + Immutable>(&self, slot: usize) -> (OutHeader, T) {
        let mut bytes = [0; REPLY_BYTES as usize];
        if let Some(slot) = self.slots.get(slot) {
            let wanted = size_of::<OutHeader>() + size_of::<T>();
            self.queue.read(slot.reply, bytes.get_mut(..wanted).unwrap_or_default());
        }
        // Any bytes are a valid header and reply, and the buffer holds every reply of the protocol.
        let (header, rest) = bytes.split_at(size_of::<OutHeader>());
        let read = |bytes| T::read_from_prefix(bytes).map(|(reply, _)| reply);
        let header = OutHeader::read_from_prefix(header).map(|(header, _)| header).unwrap_or_default();
        (header, read(rest).unwrap_or_else(|_| T::new_zeroed()))
    }

    /// Looks up a path name by name; returns the node.
    pub fn walk(&mut self, path: &Path) -> Result<u64> {
        let mut node = ROOT;
        for name in path {
            node = self.lookup(node, &with_nul(name.as_encoded_bytes()))?.nodeid;
        }
        Ok(node)
    }

    /// Looks up a name, which ends with a NUL byte.
    pub fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<EntryOut> {
        Ok(self.call::<EntryOut>(&Request::answered_by::<EntryOut>(Opcode::Lookup, parent, name))?.0)
    }

    /// Opens a file; returns its handle.
    pub fn open(&mut self, node: u64, flags: u32) -> Result<u64> {
        let args = OpenIn { flags: flags | O_LARGEFILE, open_flags: 0 };
        let request = Request::answered_by::<OpenOut>(Opcode::Open, node, args.as_bytes());
        Ok(self.call::<OpenOut>(&request)?.0.fh)
    }

    pub fn release(&mut self, node: u64, handle: u64) -> Result<()> {
        let args = ReleaseIn { fh: handle, ..ReleaseIn::default() };
        self.call::<()>(&Request::answered_by::<()>(Opcode::Release, node, args.as_bytes()))?;
        Ok(())
    }

    /// Forgets nodes, through the priority queue.
    pub fn forget(&mut self, nodes: &[(u64, u64)]) -> Result<()> {
        const AT_ONCE: usize = 16;
        for some in nodes.chunks(AT_ONCE) {
            let mut args = BatchForgetIn { count: some.len() as u32, dummy: 0 }.as_bytes().to_vec();
            for &(nodeid, nlookup) in some {
                args.extend_from_slice(ForgetOne { nodeid, nlookup }.as_bytes());
            }
            let header = InHeader {
                len: (HEADER_BYTES + args.len()) as u32,
                opcode: Opcode::BatchForget as u32,
                unique: u64::MAX - 1,
                ..InHeader::default()
            };
            let mut text = header.as_bytes().to_vec();
            text.extend(args);
            self.priority.write(self.forget, &text);
            let part = self.forget.first(text.len() as u32).readable();
            self.priority.submit(&[part]).ok_or_else(|| no_room("the chain"))?;
            self.priority.wait_used(PATIENCE).doing(|| "wait for a forget".to_owned())?;
        }
        Ok(())
    }

    fn init(&mut self) -> Result<()> {
        let offered = Capabilities::ASYNC_READ
            | Capabilities::POSIX_LOCKS
            | Capabilities::ATOMIC_O_TRUNC
            | Capabilities::EXPORT_SUPPORT
            | Capabilities::BIG_WRITES
            | Capabilities::DONT_MASK
            | Capabilities::FLOCK_LOCKS
            | Capabilities::AUTO_INVAL_DATA
            | Capabilities::DO_READDIRPLUS
            | Capabilities::READDIRPLUS_AUTO
            | Capabilities::ASYNC_DIO
            | Capabilities::WRITEBACK_CACHE
            | Capabilities::PARALLEL_DIROPS
            | Capabilities::HANDLE_KILLPRIV
            | Capabilities::ABORT_ERROR
            | Capabilities::MAX_PAGES
            | Capabilities::CACHE_SYMLINKS
            | Capabilities::SUBMOUNTS
            | Capabilities::HANDLE_KILLPRIV_V2
            | Capabilities::SETXATTR_EXT
            | Capabilities::INIT_EXT;
        let args = InitIn {
            major: MAJOR,
            minor: MINOR,
            max_readahead: 128 << 10,
            flags: (offered.bits() & u64::from(u32::MAX)) as u32,
            ..InitIn::default()
        };
        let request = Request::answered_by::<InitOut>(Opcode::Init, 0, args.as_bytes());
        let (reply, _) = self.call::<InitOut>(&request)?;
        if reply.major != MAJOR {
            return Err(wrong(Opcode::Init, format!("version {}.{}", reply.major, reply.minor)));
        }
        Ok(())
    }
}

impl Slot {
    fn new(queue: &mut DriverQueue, data_bytes: u32) -> Result<Self> {
        let mut alloc = |bytes| queue.alloc(bytes).ok_or_else(|| no_room("buffers"));
        Ok(Self {
            request: alloc(REQUEST_BYTES)?,
            reply: alloc(REPLY_BYTES)?,
            data: alloc(data_bytes.max(8))?,
        })
    }
}

pub fn with_nul(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    name.push(0);
    name
}

pub(crate) fn wrong(opcode: Opcode, answer: String) -> Error {
    Error::Wrong { what: opcode.name().to_owned(), answer }
}

fn no_room(what: &str) -> Error {
    Error::Server { program: "driver".to_owned(), what: format!("no space for {what}") }
}
