//! Descriptor of a FUSE connection, and a request read from it.

use super::buffer_pool::BufferPool;
use crate::session::{Backing, Exchange, Slot};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use tombolo_mem::{Buffer, Sink, Source};
use tombolo_sys::{Errno, fuse_dev};
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::layout::rw::{ReadIn, WriteIn};
use tombolo_wire_fuse::{BackingId, DecodeError, Errno as WireErrno, Extent, Opcode, Unique, reply};
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the data of a WRITE and of a READ: page-aligned, so that the file system copies whole pages.
pub(super) const DATA_OFFSET: usize = 4096;
/// Offset at which a request is received, so that the data of a WRITE begins at `DATA_OFFSET`.
const HEAD_OFFSET: usize = DATA_OFFSET - size_of::<InHeader>() - size_of::<WriteIn>();

/// One descriptor of the connection. A reply must be sent through the descriptor that its request was read
/// from, since the kernel looks for the request among that descriptor's only.
#[derive(Debug)]
pub(super) struct Device(OwnedFd);

impl Device {
    pub(super) fn new(descriptor: OwnedFd) -> Arc<Device> {
        Arc::new(Device(descriptor))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Backing files of a connection. The reference is weak: the connection ends with the serving threads.
impl Backing for Weak<Device> {
    fn open(&self, file: BorrowedFd<'_>) -> Result<BackingId, Errno> {
        let device = self.upgrade().ok_or(Errno::NODEV)?;
        fuse_dev::open_backing(device.fd(), file).map(BackingId)
    }

    fn close(&self, backing: BackingId) {
        let Some(device) = self.upgrade() else { return };
        if let Err(error) = fuse_dev::close_backing(device.fd(), backing.0) {
            tracing::debug!(%error, "cannot close a backing file");
        }
    }
}

/// One request and its reply path.
#[derive(Debug)]
pub(super) struct DevExchange {
    device: Arc<Device>,
    buffers: Arc<BufferPool>,
    buffer: Buffer,
    /// The unanswered request, if any.
    waiting: Option<Unique>,
    /// Thread id of the requester; 0 if unknown.
    caller: u32,
    /// Length of the request, or of the data requested by a READ, in bytes.
    transfer_bytes: usize,
    /// `true` if the buffer is lent to the file system, which may retain it beyond the reply.
    lent: bool,
}

impl DevExchange {
    pub(super) fn new(device: Arc<Device>, buffers: Arc<BufferPool>, buffer: Buffer) -> DevExchange {
        DevExchange { device, buffers, buffer, waiting: None, caller: 0, transfer_bytes: 0, lent: false }
    }

    /// Receives a request and copies its private bytes (see [`Extent`]; not the data of a WRITE) to `slot`.
    ///
    /// # Errors
    /// The device's error; see [`fuse_dev::receive`].
    pub(super) fn receive(&mut self, slot: &mut Slot) -> Result<(), Errno> {
        if std::mem::take(&mut self.lent) {
            let lent = std::mem::replace(&mut self.buffer, Buffer::new(0));
            self.buffer = self.buffers.exchange(lent);
        }
        let into = self.buffer.sink(HEAD_OFFSET..self.buffer.len());
        let received = fuse_dev::receive(self.device.fd(), &into)?;
        drop(into);
        let request = self.buffer.source(HEAD_OFFSET..HEAD_OFFSET + received);
        let mut head = [0; size_of::<InHeader>()];
        request.read_at(0, &mut head);
        let header = InHeader::read_from_bytes(&head).unwrap_or_default();
        self.waiting = Some(Unique(header.unique));
        let private_bytes = match Extent::of(&header) {
            Ok(extent) => extent.private_bytes.min(received),
            // The decoder reports the error.
            Err(DecodeError::NoHeader { .. }) => received.min(head.len()),
            Err(_) => received,
        };
        slot.fill(private_bytes, |bytes| {
            request.read_at(0, bytes);
        });
        self.caller = header.pid;
        self.transfer_bytes = transfer_bytes(&header, slot.head());
        Ok(())
    }

    pub(super) fn caller(&self) -> u32 {
        self.caller
    }

    /// Returns `true` if the request transfers so much data that copying keeps the thread busy.
    pub(super) fn is_large(&self) -> bool {
        self.transfer_bytes >= LARGE_BYTES
    }

    /// Ends the request with the outcome of its send; returns `true` if the kernel took the reply. ENOENT:
    /// the kernel has ended the request.
    fn sent(&mut self, outcome: Result<(), Errno>) -> bool {
        self.waiting = None;
        match outcome {
            Ok(()) => true,
            Err(Errno::NOENT | Errno::NODEV) => false,
            Err(error) => {
                tracing::error!(%error, "the FUSE device refused a reply");
                false
            }
        }
    }
}

impl Exchange for DevExchange {
    fn payload(&mut self, len_bytes: usize) -> Source {
        self.buffer.source(DATA_OFFSET..DATA_OFFSET.saturating_add(len_bytes))
    }

    /// Lends the buffer only if the data fill much of it, because a file system that retains a part retains
    /// the whole buffer.
    fn may_retain_payload(&mut self, len_bytes: usize) -> bool {
        let data_max = self.buffer.len() - DATA_OFFSET;
        self.lent = len_bytes >= data_max / RETAINED_PART && self.buffers.lend();
        self.lent
    }

    fn reply_space(&mut self, len_bytes: usize) -> Sink {
        self.buffer.sink(DATA_OFFSET..DATA_OFFSET.saturating_add(len_bytes))
    }

    fn send(&mut self, reply: &[u8]) -> bool {
        let outcome = fuse_dev::send(self.device.fd(), reply);
        self.sent(outcome)
    }

    fn send_data(&mut self, header: &[u8], data_bytes: usize) -> bool {
        // The header is written directly in front of the data, so that the reply is contiguous.
        let start = DATA_OFFSET.saturating_sub(header.len());
        self.buffer.sink(start..DATA_OFFSET).write_at(0, header);
        let reply = self.buffer.source(start..DATA_OFFSET.saturating_add(data_bytes));
        let outcome = fuse_dev::send_from(self.device.fd(), &reply);
        self.sent(outcome)
    }

    fn send_nothing(&mut self) {
        self.waiting = None;
    }

    fn notify(&mut self, notification: &[u8]) {
        match fuse_dev::send(self.device.fd(), notification) {
            // ENOENT: the kernel has forgotten the node.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => tracing::error!(%error, "the FUSE device refused a notification"),
        }
    }

    fn retire(mut self, slot: Box<Slot>) {
        let buffer = std::mem::replace(&mut self.buffer, Buffer::new(0));
        self.buffers.put(slot, buffer, std::mem::take(&mut self.lent));
    }
}

/// Divisor of the maximum size of a WRITE that gives the minimum size of one that the file system may retain:
/// 64 KiB if WRITEs have at most 1 MiB.
const RETAINED_PART: usize = 16;

/// Transfer size whose copy takes as long as waking up another thread.
const LARGE_BYTES: usize = 64 << 10;

fn transfer_bytes(header: &InHeader, head: &[u8]) -> usize {
    let args = head.get(size_of::<InHeader>()..).unwrap_or_default();
    match (header.opcode == Opcode::Read as u32, ReadIn::read_from_prefix(args)) {
        (true, Ok((read, _))) => read.size as usize,
        _ => header.len as usize,
    }
}

/// Replies to a request whose handler has panicked, so that its caller does not wait forever.
impl Drop for DevExchange {
    fn drop(&mut self) {
        if let Some(unique) = self.waiting.take() {
            self.send(reply::error(unique, WireErrno::EIO).as_bytes());
        }
        if self.lent {
            self.buffers.give_up(std::mem::replace(&mut self.buffer, Buffer::new(0)));
        }
    }
}
