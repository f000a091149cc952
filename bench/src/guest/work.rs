//! Timed operations of the guest.

use std::cell::RefCell;
use std::collections::HashMap;
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
use crate::measure::Work;

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

/// Reads 4 KiB at a time with all slots of the guest in flight: the time is that of one request in the
/// stream.
pub fn outstanding(guest: &SharedGuest) -> Result<Work<'static>> {
    let (guest, mut file) = (Rc::clone(guest), OpenFile::new(guest, Tree::large(), O_RDONLY)?);
    let mut send = move |guest: &mut Guest, slot| {
        let args = file.read_args(SMALL_BYTES);
        guest.submit(slot, &file.read_request(&args, SMALL_BYTES))
    };
    Ok(Work::new(move |count, clock| {
        let mut guest = guest.borrow_mut();
        let window = guest.slots().min(usize::try_from(count).unwrap_or(usize::MAX));
        clock.start();
        for slot in 0..window {
            send(&mut guest, slot)?;
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
                send(&mut guest, slot)?;
                guest.ring();
            }
        }
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
