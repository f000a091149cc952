//! FUSE client of a guest in this process: requests directly on a virtqueue, and timed operations.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

use tombolo_vhost_driver::{Driver, DriverQueue, DriverSettings, GuestBuffer, Part, Wait};
use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::flags::{O_RDONLY, O_RDWR};
use tombolo_wire_fuse::init::{Capabilities, MAJOR};
use tombolo_wire_fuse::layout::attr::{AttrOut, EntryOut, GetattrIn};
use tombolo_wire_fuse::layout::dir::{BatchForgetIn, ForgetOne};
use tombolo_wire_fuse::layout::header::{InHeader, OutHeader};
use tombolo_wire_fuse::layout::init::{InitIn, InitOut};
use tombolo_wire_fuse::layout::open::{CreateIn, OpenIn, OpenOut, ReleaseIn};
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn, WriteOut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{OVERHEAD_BYTES, PATIENCE, Pipeline, Slots, no_room};
use crate::error::{Doing, Error, Result};
use crate::files::Tree;
use crate::measure::Work;

/// Minor version of Linux 6.1.
const MINOR: u32 = 36;
/// Maximum size of a header and arguments.
const REQUEST_BYTES: u32 = 512;
/// Maximum size of a reply without file data.
const REPLY_BYTES: u32 = 512;
const HEADER_BYTES: usize = size_of::<InHeader>();
/// `O_LARGEFILE`, which 64-bit kernels always set.
const O_LARGEFILE: u32 = 0o100_000;

pub const ROOT: u64 = 1;

/// A FUSE request, and the sizes of its reply and data.
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
    queue: Slots,
    slots: Vec<Slot>,
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
        let queue = Slots::new(queue);
        let mut guest = Self { _driver: driver, priority, forget, queue, slots, unique: 0 };
        guest.init()?;
        Ok(guest)
    }

    /// Sends a request and waits. Returns the reply's structure and the number of file data bytes.
    pub fn call<T: FromBytes + KnownLayout + Immutable>(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(T, usize)> {
        self.submit(0, request)?;
        self.queue.queue.kick();
        let (slot, bytes) = self.queue.finish()?;
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
        self.queue.queue.write(at, &text[..bytes]);
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
        self.queue.add(slot, &parts)
    }

    pub fn reply<T: FromBytes + KnownLayout + Immutable>(&self, slot: usize) -> (OutHeader, T) {
        let mut bytes = [0; REPLY_BYTES as usize];
        if let Some(slot) = self.slots.get(slot) {
            let wanted = size_of::<OutHeader>() + size_of::<T>();
            self.queue.queue.read(slot.reply, bytes.get_mut(..wanted).unwrap_or_default());
        }
        // Any bytes are a valid header and reply, and the buffer holds every reply of the protocol.
        let (header, rest) = bytes.split_at(size_of::<OutHeader>());
        let read = |bytes| T::read_from_prefix(bytes).map(|(reply, _)| reply);
        let header = OutHeader::read_from_prefix(header).map(|(header, _)| header).unwrap_or_default();
        (header, read(rest).unwrap_or_else(|_| T::new_zeroed()))
    }

    /// Looks up the names of a path, one after the other; returns the node of the last.
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

impl Pipeline for Guest {
    fn slots(&mut self) -> &mut Slots {
        &mut self.queue
    }

    fn finish_one(&mut self) -> Result<usize> {
        let (slot, _) = self.queue.finish()?;
        let (header, ()) = self.reply::<()>(slot);
        if header.error != 0 {
            return Err(wrong(Opcode::Read, format!("error {}", header.error)));
        }
        Ok(slot)
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

fn with_nul(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    name.push(0);
    name
}

pub(crate) fn wrong(opcode: Opcode, answer: String) -> Error {
    Error::Wrong { what: opcode.name().to_owned(), answer }
}

/// Number of nodes used repeatedly.
const HOT: usize = 64;
const SMALL_BYTES: u32 = 4096;

/// A guest shared by several operations.
pub type SharedGuest = Rc<RefCell<Guest>>;

pub fn getattr(guest: &SharedGuest) -> Result<Work<'static>> {
    let (guest, mut nodes) = (Rc::clone(guest), hot_nodes(guest)?);
    Ok(Work::repeat(1, move || {
        let args = GetattrIn::default();
        let request = Request::answered_by::<AttrOut>(Opcode::Getattr, nodes(), args.as_bytes());
        let (reply, _) = guest.borrow_mut().call::<AttrOut>(&request)?;
        whole(Opcode::Getattr, reply.attr.size, SMALL_BYTES)
    }))
}

pub fn open_release(guest: &SharedGuest) -> Result<Work<'static>> {
    let (guest, mut nodes) = (Rc::clone(guest), hot_nodes(guest)?);
    Ok(Work::repeat(1, move || {
        let (mut guest, node) = (guest.borrow_mut(), nodes());
        let handle = guest.open(node, O_RDONLY)?;
        guest.release(node, handle)
    }))
}

/// Reads sequentially and repeatedly from the large file, `bytes` at a time.
pub fn read(guest: &SharedGuest, bytes: u32) -> Result<Work<'static>> {
    let (guest, mut file) = (Rc::clone(guest), OpenFile::new(guest, Tree::large(), O_RDONLY)?);
    let once = move || {
        let args = file.read_args(bytes);
        let (_, got) = guest.borrow_mut().call::<()>(&file.read_request(&args, bytes))?;
        whole(Opcode::Read, got as u64, bytes)
    };
    Ok(Work::repeat(1, once).bytes(rate(bytes)))
}

/// Writes sequentially and repeatedly to the large file, `bytes` at a time.
pub fn write(guest: &SharedGuest, bytes: u32) -> Result<Work<'static>> {
    let (guest, mut file) = (Rc::clone(guest), OpenFile::new(guest, Tree::large(), O_RDWR)?);
    let once = move || {
        let (fh, offset) = (file.handle, file.advance(bytes));
        let args = WriteIn { fh, offset, size: bytes, flags: O_RDWR, ..WriteIn::default() };
        let request = Request {
            sends: bytes,
            ..Request::answered_by::<WriteOut>(Opcode::Write, file.node, args.as_bytes())
        };
        let (reply, _) = guest.borrow_mut().call::<WriteOut>(&request)?;
        whole(Opcode::Write, reply.size.into(), bytes)
    };
    Ok(Work::repeat(1, once).bytes(rate(bytes)))
}

/// Looks up known names in the first folder of the tree.
pub fn lookup(guest: &SharedGuest) -> Result<Work<'static>> {
    let first = Tree::small(0);
    let folder = guest.borrow_mut().walk(first.parent().unwrap_or(&first))?;
    let names: Vec<_> = (0..HOT).map(|number| with_nul(format!("f{number}").as_bytes())).collect();
    let mut next = 0;
    let once = move |guest: &mut Guest| {
        next = (next + 1) % HOT;
        Ok(guest.lookup(folder, &names[next])?.nodeid)
    };
    Ok(finding(guest, once))
}

/// Creates, releases and unlinks a file; `name` distinguishes contestants.
pub fn create_unlink(guest: &SharedGuest, name: &str) -> Result<Work<'static>> {
    /// Reply of CREATE: `struct fuse_entry_out` and `struct fuse_open_out`.
    #[derive(FromBytes, Immutable, KnownLayout)]
    #[repr(C)]
    struct CreateOut {
        entry: EntryOut,
        open: OpenOut,
    }
    let folder = guest.borrow_mut().walk(Tree::new_folder())?;
    let name = with_nul(name.as_bytes());
    // O_CREAT | O_EXCL.
    let args = CreateIn { flags: O_RDWR | 0o100 | 0o200, mode: 0o100_644, umask: 0o022, open_flags: 0 };
    let args = [args.as_bytes(), &name].concat();
    let once = move |guest: &mut Guest| {
        let request = Request::answered_by::<CreateOut>(Opcode::Create, folder, &args);
        let (reply, _) = guest.call::<CreateOut>(&request)?;
        guest.release(reply.entry.nodeid, reply.open.fh)?;
        guest.call::<()>(&Request::answered_by::<()>(Opcode::Unlink, folder, &name))?;
        Ok(reply.entry.nodeid)
    };
    Ok(finding(guest, once))
}

/// Returns an operation that finds a node. The look-ups are forgotten after each turn, untimed, as a guest's
/// kernel does much later.
fn finding(guest: &SharedGuest, mut once: impl FnMut(&mut Guest) -> Result<u64> + 'static) -> Work<'static> {
    let guest = Rc::clone(guest);
    Work::new(move |count, clock| {
        let mut guest = guest.borrow_mut();
        let mut found = HashMap::<u64, u64>::new();
        for _ in 0..count {
            let node = clock.time(|| once(&mut guest))?;
            *found.entry(node).or_default() += 1;
        }
        let found: Vec<(u64, u64)> = found.into_iter().collect();
        guest.forget(&found)
    })
}

/// Reads 4 KiB at a time with a request in flight in each slot of the guest. The time of a request is that of
/// the whole stream divided by the number of requests.
pub fn outstanding(guest: &SharedGuest) -> Result<Work<'static>> {
    let (guest, mut file) = (Rc::clone(guest), OpenFile::new(guest, Tree::large(), O_RDONLY)?);
    let mut send = move |guest: &mut Guest, slot| {
        let args = file.read_args(SMALL_BYTES);
        guest.submit(slot, &file.read_request(&args, SMALL_BYTES))
    };
    Ok(Work::new(move |count, clock| {
        let mut guest = guest.borrow_mut();
        clock.start();
        let window = guest.slots.len();
        guest.stream(count, window, &mut send)?;
        clock.lap_of(count);
        Ok(())
    }))
}

/// An open file with a position.
struct OpenFile {
    node: u64,
    handle: u64,
    next: u64,
}

impl OpenFile {
    fn new(guest: &SharedGuest, path: &Path, flags: u32) -> Result<Self> {
        let mut guest = guest.borrow_mut();
        let node = guest.walk(path)?;
        let handle = guest.open(node, flags)?;
        Ok(Self { node, handle, next: 0 })
    }

    /// Advances the position by `bytes`; returns the previous one.
    fn advance(&mut self, bytes: u32) -> u64 {
        let offset = self.next;
        self.next += u64::from(bytes);
        if self.next + u64::from(bytes) > Tree::LARGE_BYTES as u64 {
            self.next = 0;
        }
        offset
    }

    fn read_args(&mut self, bytes: u32) -> ReadIn {
        ReadIn { fh: self.handle, offset: self.advance(bytes), size: bytes, ..ReadIn::default() }
    }

    fn read_request<'a>(&self, args: &'a ReadIn, bytes: u32) -> Request<'a> {
        Request { receives: bytes, ..Request::answered_by::<()>(Opcode::Read, self.node, args.as_bytes()) }
    }
}

fn hot_nodes(guest: &SharedGuest) -> Result<impl FnMut() -> u64 + use<>> {
    let mut guest = guest.borrow_mut();
    let nodes: Vec<u64> = (0..HOT).map(|number| guest.walk(&Tree::small(number))).collect::<Result<_>>()?;
    let mut next = 0;
    Ok(move || {
        next = (next + 1) % HOT;
        nodes[next]
    })
}

fn whole(opcode: Opcode, got: u64, wanted: u32) -> Result<()> {
    if got == u64::from(wanted) { Ok(()) } else { Err(wrong(opcode, format!("{got} bytes"))) }
}

/// Returns the bytes for a rate if the transfer is large; small ones are reported as times.
fn rate(bytes: u32) -> Option<u64> {
    (bytes > SMALL_BYTES).then_some(u64::from(bytes))
}
