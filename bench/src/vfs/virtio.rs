//! Through virtio-fs, straight on the queues: one request each.

use tombolo_wire_fuse::Opcode;
use tombolo_wire_fuse::flags::O_RDWR;
use tombolo_wire_fuse::layout::attr::{AttrOut, EntryOut, GetattrIn, SetattrIn, SetattrValid};
use tombolo_wire_fuse::layout::dir::{MkdirIn, RenameIn};
use tombolo_wire_fuse::layout::misc::AccessIn;
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn, WriteOut};
use zerocopy::IntoBytes;

use super::{Operation, Vfs};
use crate::error::Result;
use crate::files::Tree;
use crate::guest::{CreateOut, Request, SharedGuest, create_args, with_nul, wrong};
use crate::measure::Clock;

/// A guest.
pub struct Virtio {
    guest: SharedGuest,
    folder: u64,
    name: Vec<u8>,
    names: Vec<u8>,
    other: Vec<u8>,
    create: Vec<u8>,
    node: u64,
    handle: u64,
    there: Vec<u8>,
    forgets: Vec<(u64, u64)>,
}

impl Virtio {
    /// `name` tells contestants apart.
    pub fn new(guest: &SharedGuest, name: &str) -> Result<Self> {
        let (name, other) = (with_nul(name.as_bytes()), with_nul(format!("{name}-renamed").as_bytes()));
        let folder = guest.borrow_mut().walk(Tree::new_folder())?;
        let mut there = name.clone();
        there.splice(there.len() - 1.., *b"-there\0");
        let mut virtio = Self {
            guest: SharedGuest::clone(guest),
            folder,
            names: [name.as_slice(), &other].concat(),
            create: create_args(&name),
            name,
            other,
            node: 0,
            handle: 0,
            there: Vec::new(),
            forgets: Vec::new(),
        };
        let made = virtio.create_at(&create_args(&there))?;
        (virtio.node, virtio.handle, virtio.there) = (made.entry.nodeid, made.open.fh, there);
        virtio.write()?;
        Ok(virtio)
    }

    fn create_at(&self, args: &[u8]) -> Result<CreateOut> {
        let request = Request::answered_by::<CreateOut>(Opcode::Create, self.folder, args);
        Ok(self.guest.borrow_mut().call::<CreateOut>(&request)?.0)
    }

    fn create(&self) -> Result<CreateOut> {
        self.create_at(&self.create)
    }

    fn close(&mut self, made: &CreateOut) -> Result<()> {
        self.forgets.push((made.entry.nodeid, 1));
        self.guest.borrow_mut().release(made.entry.nodeid, made.open.fh)
    }

    /// A request that is answered with nothing but success.
    fn plain(&self, opcode: Opcode, node: u64, args: &[u8]) -> Result<()> {
        self.guest.borrow_mut().call::<()>(&Request::answered_by::<()>(opcode, node, args)).map(drop)
    }

    fn mkdir(&self) -> Result<u64> {
        let args = [MkdirIn { mode: 0o755, umask: 0 }.as_bytes(), &self.name].concat();
        let request = Request::answered_by::<EntryOut>(Opcode::Mkdir, self.folder, &args);
        Ok(self.guest.borrow_mut().call::<EntryOut>(&request)?.0.nodeid)
    }

    fn attr(&self, opcode: Opcode, args: &[u8]) -> Result<()> {
        let request = Request::answered_by::<AttrOut>(opcode, self.node, args);
        self.guest.borrow_mut().call::<AttrOut>(&request).map(drop)
    }

    fn read(&self) -> Result<()> {
        let args = ReadIn { fh: self.handle, size: 4096, ..ReadIn::default() };
        let request = Request {
            receives: 4096,
            ..Request::answered_by::<()>(Opcode::Read, self.node, args.as_bytes())
        };
        match self.guest.borrow_mut().call::<()>(&request)?.1 {
            4096 => Ok(()),
            bytes => Err(wrong(Opcode::Read, format!("{bytes} bytes"))),
        }
    }

    fn write(&self) -> Result<()> {
        let args = WriteIn { fh: self.handle, size: 4096, flags: O_RDWR, ..WriteIn::default() };
        let request = Request {
            sends: 4096,
            ..Request::answered_by::<WriteOut>(Opcode::Write, self.node, args.as_bytes())
        };
        match self.guest.borrow_mut().call::<WriteOut>(&request)?.0.size {
            4096 => Ok(()),
            bytes => Err(wrong(Opcode::Write, format!("{bytes} bytes"))),
        }
    }
}

impl Vfs for Virtio {
    fn cycle(&mut self, operation: Operation, clock: &mut Clock) -> Result<()> {
        match operation {
            Operation::Create => {
                let made = clock.time(|| self.create())?;
                self.close(&made)?;
                self.plain(Opcode::Unlink, self.folder, &self.name)
            }
            Operation::Unlink => {
                let made = self.create()?;
                self.close(&made)?;
                clock.time(|| self.plain(Opcode::Unlink, self.folder, &self.name))
            }
            Operation::Rename => {
                let made = self.create()?;
                self.close(&made)?;
                let args = [RenameIn { newdir: self.folder }.as_bytes(), &self.names].concat();
                clock.time(|| self.plain(Opcode::Rename, self.folder, &args))?;
                self.plain(Opcode::Unlink, self.folder, &self.other)
            }
            Operation::Mkdir => {
                let node = clock.time(|| self.mkdir())?;
                self.forgets.push((node, 1));
                self.plain(Opcode::Rmdir, self.folder, &self.name)
            }
            Operation::Rmdir => {
                let node = self.mkdir()?;
                self.forgets.push((node, 1));
                clock.time(|| self.plain(Opcode::Rmdir, self.folder, &self.name))
            }
            Operation::Open => {
                let handle = clock.time(|| self.guest.borrow_mut().open(self.node, O_RDWR))?;
                self.guest.borrow_mut().release(self.node, handle)
            }
            Operation::Release => {
                let handle = self.guest.borrow_mut().open(self.node, O_RDWR)?;
                clock.time(|| self.guest.borrow_mut().release(self.node, handle))
            }
            Operation::Getattr => clock.time(|| self.attr(Opcode::Getattr, GetattrIn::default().as_bytes())),
            Operation::Lookup => {
                let entry = clock.time(|| self.guest.borrow_mut().lookup(self.folder, &self.there))?;
                self.forgets.push((entry.nodeid, 1));
                Ok(())
            }
            Operation::Permission => {
                let args = AccessIn { mask: 4, padding: 0 };
                clock.time(|| self.plain(Opcode::Access, self.node, args.as_bytes()))
            }
            Operation::Setattr => {
                let args =
                    SetattrIn { valid: SetattrValid::MODE.bits(), mode: 0o100_644, ..SetattrIn::default() };
                clock.time(|| self.attr(Opcode::Setattr, args.as_bytes()))
            }
            Operation::Read => clock.time(|| self.read()),
            Operation::Write => clock.time(|| self.write()),
        }
    }

    fn settle(&mut self) -> Result<()> {
        let forgets = std::mem::take(&mut self.forgets);
        self.guest.borrow_mut().forget(&forgets)
    }
}
