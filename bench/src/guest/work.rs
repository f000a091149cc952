//! What the guest does, each an operation to be timed.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::flags::{O_RDONLY, O_RDWR};
use tombolo_wire_fuse::layout::attr::{AttrOut, EntryOut, GetattrIn};
use tombolo_wire_fuse::layout::open::{CreateIn, OpenOut};
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn, WriteOut};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::client::{Guest, Request, with_nul, wrong};
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Work};

/// Nodes that are used over and over.
const HOT: usize = 64;
const SMALL_BYTES: u32 = 4096;

/// A guest that several operations use in turn.
pub type SharedGuest = Rc<RefCell<Guest>>;

/// GETATTR of known nodes.
pub struct Getattr {
    guest: SharedGuest,
    nodes: Vec<u64>,
}

impl Getattr {
    /// Looks the nodes up.
    pub fn new(guest: &SharedGuest) -> Result<Self> {
        Ok(Self { guest: Rc::clone(guest), nodes: hot_nodes(guest)? })
    }
}

impl Work for Getattr {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut guest = self.guest.borrow_mut();
        let args = GetattrIn::default();
        clock.start();
        for node in cycle(&self.nodes, count) {
            let request = Request::answered_by::<AttrOut>(Opcode::Getattr, node, args.as_bytes());
            let (reply, _) = guest.call::<AttrOut>(&request)?;
            clock.lap();
            if reply.attr.size != u64::from(SMALL_BYTES) {
                return Err(wrong(Opcode::Getattr, format!("size {}", reply.attr.size)));
            }
        }
        Ok(())
    }
}

/// LOOKUP of known names. The look-ups are given back after each turn, untimed, as a guest's kernel does much later.
pub struct Lookup {
    guest: SharedGuest,
    folder: u64,
    names: Vec<Vec<u8>>,
}

impl Lookup {
    /// In the first folder of the tree.
    pub fn new(guest: &SharedGuest) -> Result<Self> {
        let first = Tree::small(0);
        let folder = guest.borrow_mut().walk(first.parent().unwrap_or(&first))?;
        let names = (0..HOT).map(|number| with_nul(format!("f{number}").as_bytes())).collect();
        Ok(Self { guest: Rc::clone(guest), folder, names })
    }
}

impl Work for Lookup {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut guest = self.guest.borrow_mut();
        let mut seen = std::collections::HashMap::<u64, u64>::new();
        for (_, name) in (0..count).zip(self.names.iter().cycle()) {
            clock.start();
            let entry = guest.lookup(self.folder, name)?;
            clock.lap();
            *seen.entry(entry.nodeid).or_default() += 1;
        }
        let seen: Vec<(u64, u64)> = seen.into_iter().collect();
        guest.forget(&seen)
    }
}

/// OPEN and RELEASE.
pub struct OpenRelease {
    guest: SharedGuest,
    nodes: Vec<u64>,
}

impl OpenRelease {
    /// Looks the nodes up.
    pub fn new(guest: &SharedGuest) -> Result<Self> {
        Ok(Self { guest: Rc::clone(guest), nodes: hot_nodes(guest)? })
    }
}

impl Work for OpenRelease {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut guest = self.guest.borrow_mut();
        clock.start();
        for node in cycle(&self.nodes, count) {
            let handle = guest.open(node, O_RDONLY)?;
            guest.release(node, handle)?;
            clock.lap();
        }
        Ok(())
    }
}

/// CREATE, RELEASE and UNLINK. The look-ups are given back after each turn, untimed.
pub struct CreateUnlink {
    guest: SharedGuest,
    folder: u64,
    name: Vec<u8>,
}

impl CreateUnlink {
    /// `name` tells contestants apart.
    pub fn new(guest: &SharedGuest, name: &str) -> Result<Self> {
        let folder = guest.borrow_mut().walk(Tree::new_folder())?;
        Ok(Self { guest: Rc::clone(guest), folder, name: with_nul(name.as_bytes()) })
    }
}

impl Work for CreateUnlink {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut guest = self.guest.borrow_mut();
        let args = create_args(&self.name);
        let mut made = Vec::new();
        for _ in 0..count {
            clock.start();
            let request = Request::answered_by::<CreateOut>(Opcode::Create, self.folder, &args);
            let (reply, _) = guest.call::<CreateOut>(&request)?;
            guest.release(reply.entry.nodeid, reply.open.fh)?;
            guest.call::<()>(&Request::answered_by::<()>(Opcode::Unlink, self.folder, &self.name))?;
            clock.lap();
            made.push((reply.entry.nodeid, 1));
        }
        guest.forget(&made)
    }
}

/// `struct fuse_entry_out` and `struct fuse_open_out`, which answer CREATE.
#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateOut {
    /// The node.
    pub entry: EntryOut,
    /// Its opening.
    pub open: OpenOut,
}

/// The arguments of CREATE for a name that is not there yet and ends with a NUL byte.
pub fn create_args(name: &[u8]) -> Vec<u8> {
    // O_CREAT | O_EXCL.
    let args = CreateIn { flags: O_RDWR | 0o100 | 0o200, mode: 0o100_644, umask: 0o022, open_flags: 0 };
    [args.as_bytes(), name].concat()
}

/// READ of so many bytes, round and round in a file.
pub struct Read {
    guest: SharedGuest,
    file: OpenFile,
    bytes: u32,
}

impl Read {
    /// From the large file.
    pub fn new(guest: &SharedGuest, bytes: u32) -> Result<Self> {
        let file = OpenFile::new(guest, Tree::large(), O_RDONLY)?;
        Ok(Self { guest: Rc::clone(guest), file, bytes })
    }
}

impl Work for Read {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut guest = self.guest.borrow_mut();
        clock.start();
        for _ in 0..count {
            let args = self.file.read_args(self.bytes);
            let (_, got) = guest.call::<()>(&self.file.read_request(&args, self.bytes))?;
            clock.lap();
            if got != self.bytes as usize {
                return Err(wrong(Opcode::Read, format!("{got} bytes")));
            }
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        rate(self.bytes)
    }
}

/// WRITE of so many bytes, round and round over a file.
pub struct Write {
    guest: SharedGuest,
    file: OpenFile,
    bytes: u32,
}

impl Write {
    /// Over the large file.
    pub fn new(guest: &SharedGuest, bytes: u32) -> Result<Self> {
        let file = OpenFile::new(guest, Tree::large(), O_RDWR)?;
        Ok(Self { guest: Rc::clone(guest), file, bytes })
    }
}

impl Work for Write {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let mut guest = self.guest.borrow_mut();
        clock.start();
        for _ in 0..count {
            let args = WriteIn {
                fh: self.file.handle,
                offset: self.file.advance(self.bytes),
                size: self.bytes,
                flags: O_RDWR,
                ..WriteIn::default()
            };
            let request = Request {
                sends: self.bytes,
                ..Request::answered_by::<WriteOut>(Opcode::Write, self.file.node, args.as_bytes())
            };
            let (reply, _) = guest.call::<WriteOut>(&request)?;
            clock.lap();
            if reply.size != self.bytes {
                return Err(wrong(Opcode::Write, format!("{} bytes", reply.size)));
            }
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        rate(self.bytes)
    }
}

/// READ of 4 KiB with as many requests under way as the guest has slots: the time is that of one in the stream.
pub struct Outstanding {
    guest: SharedGuest,
    file: OpenFile,
}

impl Outstanding {
    /// From the large file.
    pub fn new(guest: &SharedGuest) -> Result<Self> {
        let file = OpenFile::new(guest, Tree::large(), O_RDONLY)?;
        Ok(Self { guest: Rc::clone(guest), file })
    }

    fn send(&mut self, guest: &mut Guest, slot: usize) -> Result<()> {
        let args = self.file.read_args(SMALL_BYTES);
        guest.submit(slot, &self.file.read_request(&args, SMALL_BYTES))
    }
}

impl Work for Outstanding {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let guest = Rc::clone(&self.guest);
        let mut guest = guest.borrow_mut();
        let window = guest.slots().min(usize::try_from(count).unwrap_or(usize::MAX));
        clock.start();
        for slot in 0..window {
            self.send(&mut guest, slot)?;
        }
        guest.ring();
        let mut unsent = count - window as u64;
        for _ in 0..count {
            let (slot, _) = guest.finish()?;
            let (header, ()) = guest.reply::<()>(slot);
            if header.error != 0 {
                return Err(wrong(Opcode::Read, format!("error {}", header.error)));
            }
            if unsent > 0 {
                unsent -= 1;
                self.send(&mut guest, slot)?;
                guest.ring();
            }
        }
        clock.lap_of(count);
        Ok(())
    }
}

/// An open file and a place in it.
struct OpenFile {
    node: u64,
    handle: u64,
    size: u64,
    next: u64,
}

impl OpenFile {
    fn new(guest: &SharedGuest, path: &Path, flags: u32) -> Result<Self> {
        let mut guest = guest.borrow_mut();
        let node = guest.walk(path)?;
        let handle = guest.open(node, flags)?;
        Ok(Self { node, handle, size: Tree::LARGE_BYTES as u64, next: 0 })
    }

    /// The next place for so many bytes.
    fn advance(&mut self, bytes: u32) -> u64 {
        let offset = self.next;
        self.next += u64::from(bytes);
        if self.next + u64::from(bytes) > self.size {
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

fn hot_nodes(guest: &SharedGuest) -> Result<Vec<u64>> {
    let mut guest = guest.borrow_mut();
    (0..HOT).map(|number| guest.walk(&Tree::small(number))).collect()
}

fn cycle(nodes: &[u64], count: u64) -> impl Iterator<Item = u64> + '_ {
    (0..count).zip(nodes.iter().copied().cycle()).map(|(_, node)| node)
}

/// Large transfers are told as rates, small ones as times.
fn rate(bytes: u32) -> Option<u64> {
    (bytes > SMALL_BYTES).then_some(u64::from(bytes))
}
