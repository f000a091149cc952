use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Numbers of the messages that a front end sends (vhost-user specification, "Front-end message types").
pub mod request {
    #![allow(missing_docs, reason = "the specification's own names")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

pub(super) const PROTOCOL_MQ: u64 = 1 << 0;
pub(super) const PROTOCOL_LOG: u64 = 1 << 1;
pub(super) const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
pub(super) const PROTOCOL_BACKEND_REQ: u64 = 1 << 5;
pub(super) const PROTOCOL_CONFIG: u64 = 1 << 9;
pub(super) const PROTOCOL_IN_FLIGHT: u64 = 1 << 12;
pub(super) const PROTOCOL_MEMORY_SLOTS: u64 = 1 << 15;

const VERSION: u32 = 1;
const FLAG_REPLY: u32 = 1 << 2;
const FLAG_NEED_REPLY: u32 = 1 << 3;
const HEADER_LEN: usize = 12;

/// An entry of a memory table.
#[derive(Debug, Clone, Copy)]
pub struct MemoryEntry {
    /// Guest-physical address.
    pub guest_address: u64,
    /// Length in bytes.
    pub size: u64,
    /// Address at which the front end claims to map it.
    pub user_address: u64,
    /// Offset in the file.
    pub file_offset: u64,
}

impl MemoryEntry {
    /// Encodes it according to the specification.
    pub fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let words = [self.guest_address, self.size, self.user_address, self.file_offset];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// The messages of a front end. Methods that post wait for the acknowledgement, if negotiated.
#[derive(Debug)]
pub struct FrontEnd {
    stream: UnixStream,
    acknowledged: bool,
}

impl FrontEnd {
    /// Creates a front end on a connected socket.
    pub fn new(stream: UnixStream) -> FrontEnd {
        FrontEnd { stream, acknowledged: false }
    }

    /// Returns the socket.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Sends raw bytes with descriptors, for malformed messages.
    pub fn send_raw(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(32))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        self.stream.write_all(bytes.get(sent..).unwrap_or_default())
    }

    /// Sends a message without waiting.
    pub fn send(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_raw(&message(request, VERSION, payload), fds)
    }

    /// Sends a message that has no answer, and waits for its acknowledgement if negotiated.
    pub fn post(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.acknowledged {
            return self.send(request, payload, fds);
        }
        self.send_raw(&message(request, VERSION | FLAG_NEED_REPLY, payload), fds)?;
        let reply = self.receive(request)?;
        match reply.as_slice().try_into().map(u64::from_le_bytes) {
            Ok(0) => Ok(()),
            _ => Err(io::Error::other(format!("message {request} was refused"))),
        }
    }

    /// Sends a message and returns its answer's payload.
    pub fn ask(&mut self, request: u32, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request, payload, &[])?;
        self.receive(request)
    }

    /// Requests a number.
    pub fn ask_u64(&mut self, request: u32) -> io::Result<u64> {
        let reply = self.ask(request, &[])?;
        reply.as_slice().try_into().map(u64::from_le_bytes).map_err(io::Error::other)
    }

    /// Posts a number.
    pub fn post_u64(&mut self, request: u32, value: u64) -> io::Result<()> {
        self.post(request, &value.to_le_bytes(), &[])
    }

    /// Posts a queue's index with a number.
    pub fn post_state(&mut self, request: u32, index: u32, value: u32) -> io::Result<()> {
        self.post(request, &state(index, value), &[])
    }

    /// Accepts protocol features; from then on acknowledgements are requested, if among them.
    pub fn set_protocol_features(&mut self, features: u64) -> io::Result<()> {
        self.post_u64(request::SET_PROTOCOL_FEATURES, features)?;
        self.acknowledged = features & PROTOCOL_REPLY_ACK != 0;
        Ok(())
    }

    /// Shares memory: one file for each entry.
    pub fn set_memory(&mut self, table: &[MemoryEntry], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut payload = state(table.len() as u32, 0).to_vec();
        table.iter().for_each(|entry| payload.extend(entry.encode()));
        self.post(request::SET_MEM_TABLE, &payload, files)
    }

    /// Adds or removes one span of memory.
    pub fn change_memory(
        &mut self,
        request: u32,
        entry: MemoryEntry,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut payload = vec![0; 8];
        payload.extend(entry.encode());
        self.post(request, &payload, files)
    }

    /// Sets the addresses of a queue's descriptor table, used ring and available ring in the front end's
    /// address space, and that of the used ring's log in the guest's.
    pub fn set_vring_addresses(
        &mut self,
        index: u32,
        addresses: [u64; 3],
        log: Option<u64>,
    ) -> io::Result<()> {
        let mut payload = state(index, u32::from(log.is_some())).to_vec();
        addresses.iter().for_each(|address| payload.extend(address.to_le_bytes()));
        payload.extend(log.unwrap_or(0).to_le_bytes());
        self.post(request::SET_VRING_ADDR, &payload, &[])
    }

    /// Shares `len` bytes of a file as the dirty log, which is in use when this returns.
    pub fn set_log(&mut self, len: u64, file_offset: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        let payload = [len.to_le_bytes(), file_offset.to_le_bytes()].concat();
        self.send(request::SET_LOG_BASE, &payload, &[file])?;
        self.receive(request::SET_LOG_BASE).map(drop)
    }

    /// Sends one of a queue's eventfds, or that there is none.
    pub fn set_vring_fd(&mut self, request: u32, index: u16, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        const NO_DESCRIPTOR: u64 = 1 << 8;
        let value = u64::from(index) | if fd.is_none() { NO_DESCRIPTOR } else { 0 };
        let fds: Vec<_> = fd.into_iter().collect();
        self.post(request, &value.to_le_bytes(), &fds)
    }

    /// Reads the device's configuration space.
    pub fn config(&mut self, offset: u32, len: u32) -> io::Result<Vec<u8>> {
        let mut payload = Vec::new();
        [offset, len, 0].iter().for_each(|word| payload.extend(word.to_le_bytes()));
        payload.resize(payload.len() + len as usize, 0);
        let reply = self.ask(request::GET_CONFIG, &payload)?;
        if reply.len() != payload.len() {
            return Err(io::Error::other("the configuration space cannot be read at this offset"));
        }
        Ok(reply.get(12..).unwrap_or_default().to_vec())
    }

    /// Writes the device's configuration space.
    pub fn set_config(&mut self, offset: u32, bytes: &[u8]) -> io::Result<()> {
        let mut payload = Vec::new();
        [offset, bytes.len() as u32, 0].iter().for_each(|word| payload.extend(word.to_le_bytes()));
        payload.extend(bytes);
        self.post(request::SET_CONFIG, &payload, &[])
    }

    /// Opens a socket for the device's own messages, and returns its end.
    pub fn open_way_back(&mut self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        self.post(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
        Ok(ours)
    }

    fn receive(&mut self, request: u32) -> io::Result<Vec<u8>> {
        let mut header = [0; HEADER_LEN];
        self.stream.read_exact(&mut header)?;
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        if word(0) != request || word(4) & FLAG_REPLY == 0 || word(8) > 0x1000 {
            return Err(io::Error::other(format!("an answer that does not fit message {request}")));
        }
        let mut payload = vec![0; word(8) as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(payload)
    }
}

/// Returns a complete message: header and payload.
pub fn message(request: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    [request, flags, payload.len() as u32].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(payload);
    bytes
}

/// Returns the payload "vring state": an index and a number.
pub(super) fn state(index: u32, value: u32) -> [u8; 8] {
    (u64::from(index) | u64::from(value) << 32).to_le_bytes()
}
