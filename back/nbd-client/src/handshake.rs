//! Connecting and negotiation, up to the first request.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use thiserror::Error as ThisError;
use tombolo_core::block::{Geometry, Profile, SECTOR_BYTES, SIZE_BYTES_MAX};
use tombolo_host_runtime::names;
use tombolo_host_tls::{ClientTls, Stream, TlsError};
use tombolo_mem::Buffer;
use tombolo_sys::Errno;
use tombolo_sys::epoll::{Epoll, Event, Interest};
use tombolo_sys::gather::Gather;
use tombolo_wire_nbd::{
    BlockSizes, ClientFlags, Greeting, HandshakeFlags, HeaderStyle, Info, Malformed, OptionCode, OptionReply,
    OptionReplyHead, PAYLOAD_BYTES_MAX, Refusal, ReplyStyle, TransmissionFlags, encode_option,
};

use crate::disk::Address;

/// Time limit for each step of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reasons why a connection was not established.
#[derive(Debug, ThisError)]
pub enum ConnectError {
    /// The server cannot be reached, is silent or has closed the connection, or this host lacks resources.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server violates the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The server refuses the export.
    #[error("the server refuses the export{}", if .1.is_empty() { String::new() } else { format!(": {}", .1) })]
    Refused(Refusal, String),
    /// The server requires TLS, but the address does not.
    #[error("the server requires TLS: use nbds://")]
    TlsRequired,
    /// The address requires TLS, but the server does not support it.
    #[error("the server does not support TLS")]
    TlsUnsupported,
    /// The TLS session failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The minimum block size is too large, or no power of two.
    #[error("blocks of {0} bytes are not supported")]
    Blocks(u32),
    /// The size is beyond the supported limit.
    #[error("disks of more than {max} bytes are not supported, and the server's has {0}", max = SIZE_BYTES_MAX)]
    Size(u64),
    /// The export has changed since the first connection.
    #[error("the export has changed: another size or block size, or other properties")]
    Changed,
}

/// Result of the negotiation: the formats of messages, and the properties of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    pub(crate) style: ReplyStyle,
    /// Id of `base:allocation` in replies; `None` if the server does not report allocation.
    pub(crate) context: Option<u32>,
    pub(crate) flags: TransmissionFlags,
    /// Size at the server, which may end within the last block of the disk.
    pub(crate) size_bytes: u64,
    pub(crate) sizes: BlockSizes,
}

impl Negotiated {
    pub(crate) fn header_style(&self) -> HeaderStyle {
        if self.style == ReplyStyle::Extended { HeaderStyle::Extended } else { HeaderStyle::Compact }
    }

    pub(crate) fn has(&self, flags: TransmissionFlags) -> bool {
        self.flags.contains(flags)
    }

    pub(crate) fn profile(&self) -> Profile {
        Profile {
            read_only: self.has(TransmissionFlags::READ_ONLY),
            has_cache: self.has(TransmissionFlags::SEND_FLUSH),
            discards: self.has(TransmissionFlags::SEND_TRIM),
            zeroes_fast: self.has(TransmissionFlags::SEND_WRITE_ZEROES),
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        let block_bytes = self.sizes.minimum.max(SECTOR_BYTES);
        let preferred = self.sizes.preferred;
        let unit =
            if preferred.is_power_of_two() { preferred.clamp(block_bytes, 64 << 10) } else { block_bytes };
        Geometry {
            size_bytes: self.size_bytes.next_multiple_of(u64::from(block_bytes)),
            block_bytes,
            physical_block_bytes: unit,
            optimal_bytes: if preferred > unit { preferred } else { 0 },
            discard_granularity_bytes: unit,
        }
    }

    /// Returns `true` if requests have the same meaning as under the earlier negotiation.
    pub(crate) fn is_same_disk(&self, before: &Self) -> bool {
        self.geometry() == before.geometry()
            && self.flags.contains(before.flags - TransmissionFlags::SEND_DF)
            && self.has(TransmissionFlags::READ_ONLY) == before.has(TransmissionFlags::READ_ONLY)
            && self.style == before.style
            && self.context.is_some() >= before.context.is_some()
    }
}

/// Connects and negotiates, blocking.
pub(crate) fn connect(
    address: &Address,
    tls: Option<&ClientTls>,
    export: &str,
) -> Result<(Stream, Negotiated), ConnectError> {
    let socket: OwnedFd = match address {
        Address::Unix(path) => UnixStream::connect(path)?.into(),
        Address::Tcp(host, port) => {
            let addresses = names::addresses_of(host).map_err(io::Error::from)?;
            let addresses: Vec<_> = addresses.into_iter().map(|ip| SocketAddr::new(ip, *port)).collect();
            let stream = TcpStream::connect(&*addresses)?;
            stream.set_nodelay(true)?;
            stream.into()
        }
    };
    let mut handshake = Handshake::new(socket)?;
    let negotiated =
        negotiate_session(&mut handshake, tls, export).map_err(|error| match handshake.stream.fault() {
            Some(fault) => ConnectError::Tls(fault),
            None => error,
        })?;
    Ok((handshake.stream, negotiated))
}

/// A blocking exchange with a server.
struct Handshake {
    stream: Stream,
    epoll: Epoll,
    events: Vec<Event>,
}

impl Handshake {
    fn new(socket: OwnedFd) -> io::Result<Self> {
        let (stream, epoll) = (Stream::new(socket), Epoll::new()?);
        epoll.add(stream.socket(), 0, Interest::Changes)?;
        Ok(Self { stream, epoll, events: Vec::new() })
    }

    /// Repeats a non-blocking step until it does not return `EAGAIN`, for at most [`HANDSHAKE_TIMEOUT`].
    fn block_on<T>(&mut self, mut step: impl FnMut(&Stream) -> Result<T, Errno>) -> io::Result<T> {
        let until = Instant::now() + HANDSHAKE_TIMEOUT;
        loop {
            match step(&self.stream) {
                Err(Errno::AGAIN) => {}
                outcome => return Ok(outcome?),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.epoll.wait(&mut self.events, Some(left))?;
        }
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.block_on(|stream| {
                let mut gather = Gather::new(sent);
                gather.bytes(bytes);
                stream.send(&mut gather)
            })?;
        }
        Ok(())
    }

    fn receive(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut received = Buffer::new(len);
        let mut missing = received.sink(0..len);
        while !missing.is_empty() {
            match self.block_on(|stream| stream.receive(&missing))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                some => missing.advance(some),
            }
        }
        drop(missing);
        Ok(received.as_slice().unwrap_or_default().to_vec())
    }

    fn receive_array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.receive(N)?.try_into().map_err(|_| io::ErrorKind::UnexpectedEof.into())
    }

    /// Negotiates an option, and calls `receive` with the replies that inform about it. Returns the refusal
    /// and its text if the server refuses the option, except if it requires TLS, which is an error.
    fn negotiate(
        &mut self,
        code: OptionCode,
        export: &str,
        mut receive: impl FnMut(OptionReply<'_>),
    ) -> Result<Option<(Refusal, String)>, ConnectError> {
        let mut question = Vec::new();
        encode_option(&mut question, code, export);
        self.send(&question)?;
        // No option has as many replies as this limit, by which a faulty server cannot keep the client in the
        // loop.
        for _ in 0..1024 {
            let head = OptionReplyHead::decode(&self.receive_array()?)?;
            let data = self.receive(head.data_bytes)?;
            match OptionReply::decode(&head, &data)? {
                OptionReply::Ack => return Ok(None),
                OptionReply::Refused(Refusal::TLS_REQUIRED, _) => return Err(ConnectError::TlsRequired),
                OptionReply::Refused(why, word) => return Ok(Some((why, word.to_owned()))),
                reply => receive(reply),
            }
        }
        Err(Malformed::Value.into())
    }

    /// Negotiates TLS and performs its handshake; [`ConnectError::TlsUnsupported`] if the server refuses.
    fn start_tls(&mut self, tls: &ClientTls) -> Result<(), ConnectError> {
        if self.negotiate(OptionCode::STARTTLS, "", |_| {})?.is_some() {
            return Err(ConnectError::TlsUnsupported);
        }
        let session = tls.session()?;
        let done = self.block_on(|stream| session.handshake(stream.socket()));
        done.map_err(|error| session.fault().map_or(error.into(), ConnectError::Tls))?;
        tracing::info!(server = session.peer().map(|peer| peer.to_string()), "NBD: TLS session established");
        self.stream.secure(session);
        Ok(())
    }
}

fn negotiate_session(
    handshake: &mut Handshake,
    tls: Option<&ClientTls>,
    export: &str,
) -> Result<Negotiated, ConnectError> {
    let Greeting(flags) = Greeting::decode(&handshake.receive_array()?)?;
    let mut ours = ClientFlags::FIXED_NEWSTYLE;
    ours.set(ClientFlags::NO_ZEROES, flags.contains(HandshakeFlags::NO_ZEROES));
    handshake.send(&ours.bits().to_be_bytes())?;
    if let Some(tls) = tls {
        handshake.start_tls(tls)?;
    }
    let mut style = ReplyStyle::Simple;
    for (code, better) in [
        (OptionCode::EXTENDED_HEADERS, ReplyStyle::Extended),
        (OptionCode::STRUCTURED_REPLY, ReplyStyle::Structured),
    ] {
        if style == ReplyStyle::Simple && handshake.negotiate(code, export, |_| {})?.is_none() {
            style = better;
        }
    }
    let mut context = None;
    if style != ReplyStyle::Simple {
        // If the server refuses, `context` stays `None`: the server then reports no allocation.
        handshake.negotiate(OptionCode::SET_META_CONTEXT, export, |reply| {
            if let OptionReply::MetaContext { id, .. } = reply {
                context = Some(id);
            }
        })?;
    }
    let mut export_info = None;
    let mut sizes = BlockSizes { minimum: SECTOR_BYTES, preferred: 4096, payload_max: PAYLOAD_BYTES_MAX };
    let refused = handshake.negotiate(OptionCode::GO, export, |reply| match reply {
        OptionReply::Info(Info::Export { size_bytes, flags }) => export_info = Some((size_bytes, flags)),
        OptionReply::Info(Info::BlockSize(theirs)) => sizes = theirs,
        _ => {}
    })?;
    if let Some((refusal, word)) = refused {
        return Err(ConnectError::Refused(refusal, word));
    }
    let (size_bytes, flags) = export_info.ok_or(Malformed::Value)?;
    if sizes.minimum > Geometry::BLOCK_BYTES_MAX || !sizes.minimum.is_power_of_two() {
        return Err(ConnectError::Blocks(sizes.minimum));
    }
    if size_bytes > SIZE_BYTES_MAX {
        return Err(ConnectError::Size(size_bytes));
    }
    sizes.payload_max = sizes.payload_max.min(PAYLOAD_BYTES_MAX);
    sizes.payload_max -= sizes.payload_max % sizes.minimum.max(SECTOR_BYTES);
    if sizes.payload_max == 0 {
        return Err(Malformed::Value.into());
    }
    Ok(Negotiated { style, context, flags, size_bytes, sizes })
}
