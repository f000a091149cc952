//! Connecting: to the first request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use thiserror::Error as ThisError;
use tombolo_core::block::{Geometry, Profile, SECTOR_BYTES};
use tombolo_wire_nbd::{
    BlockSizes, ClientFlags, Greeting, HandshakeFlags, HeaderStyle, Info, Malformed, OptionCode, OptionReply,
    OptionReplyHead, PAYLOAD_BYTES_MAX, Refusal, ReplyStyle, TransmissionFlags, encode_option,
};

use crate::disk::Address;

/// A server that says nothing for so long in the handshake is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no connection.
#[derive(Debug, ThisError)]
pub enum ConnectError {
    /// The server is not there, or has gone.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It speaks something else.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It does not let us have the export.
    #[error("the server refuses the export{}", if .1.is_empty() { String::new() } else { format!(": {}", .1) })]
    Refused(Refusal, String),
    /// It demands TLS.
    #[error("the server demands TLS, which this client does not speak")]
    Tls,
    /// Its blocks are longer than any here.
    #[error("blocks of {0} bytes are not supported")]
    Blocks(u32),
    /// It is not the disk that it was.
    #[error("the export is not what it was: another size, or read-only")]
    Changed,
}

/// What was agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreed {
    pub(crate) style: ReplyStyle,
    /// The number of `base:allocation` in replies.
    pub(crate) context: Option<u32>,
    pub(crate) flags: TransmissionFlags,
    pub(crate) size_bytes: u64,
    pub(crate) sizes: BlockSizes,
}

impl Agreed {
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
            size_bytes: self.size_bytes - self.size_bytes % u64::from(block_bytes),
            block_bytes,
            physical_block_bytes: unit,
            optimal_bytes: if preferred > unit { preferred } else { 0 },
            discard_granularity_bytes: unit,
        }
    }

    /// Whether the same requests mean the same as with what was agreed before.
    pub(crate) fn is_same_disk(&self, before: &Self) -> bool {
        self.geometry() == before.geometry()
            && self.flags.contains(before.flags - TransmissionFlags::SEND_DF)
            && self.has(TransmissionFlags::READ_ONLY) == before.has(TransmissionFlags::READ_ONLY)
            && self.style == before.style
            && self.context.is_some() >= before.context.is_some()
    }
}

trait Stream: Read + Write + Into<OwnedFd> {
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()>;
}

impl Stream for UnixStream {
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Self::set_nonblocking(self, nonblocking)
    }
}

impl Stream for TcpStream {
    fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        Self::set_nonblocking(self, nonblocking)
    }
}

/// Waits until transmission has begun.
pub(crate) fn connect(address: &Address, export: &str) -> Result<(OwnedFd, Agreed), ConnectError> {
    match address {
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            shake_hands(stream, export)
        }
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            shake_hands(stream, export)
        }
    }
}

fn shake_hands(mut stream: impl Stream, export: &str) -> Result<(OwnedFd, Agreed), ConnectError> {
    let Greeting(flags) = Greeting::decode(&array(&mut stream)?)?;
    let mut ours = ClientFlags::FIXED_NEWSTYLE;
    ours.set(ClientFlags::NO_ZEROES, flags.contains(HandshakeFlags::NO_ZEROES));
    stream.write_all(&ours.bits().to_be_bytes())?;
    let mut style = ReplyStyle::Simple;
    for (code, better) in [
        (OptionCode::EXTENDED_HEADERS, ReplyStyle::Extended),
        (OptionCode::STRUCTURED_REPLY, ReplyStyle::Structured),
    ] {
        if style == ReplyStyle::Simple && ask(&mut stream, code, export, |_| {})?.is_none() {
            style = better;
        }
    }
    let mut context = None;
    if style != ReplyStyle::Simple {
        // Refused: there is none.
        ask(&mut stream, OptionCode::SET_META_CONTEXT, export, |reply| {
            if let OptionReply::MetaContext { id, .. } = reply {
                context = Some(id);
            }
        })?;
    }
    let mut told = None;
    let mut sizes = BlockSizes { minimum: SECTOR_BYTES, preferred: 4096, payload_max: PAYLOAD_BYTES_MAX };
    let refused = ask(&mut stream, OptionCode::GO, export, |reply| match reply {
        OptionReply::Info(Info::Export { size_bytes, flags }) => told = Some((size_bytes, flags)),
        OptionReply::Info(Info::BlockSize(theirs)) => sizes = theirs,
        _ => {}
    })?;
    if let Some((refusal, word)) = refused {
        return Err(ConnectError::Refused(refusal, word));
    }
    let (size_bytes, flags) = told.ok_or(Malformed::Value)?;
    if sizes.minimum > Geometry::BLOCK_BYTES_MAX || !sizes.minimum.is_power_of_two() {
        return Err(ConnectError::Blocks(sizes.minimum));
    }
    sizes.payload_max = sizes.payload_max.min(PAYLOAD_BYTES_MAX);
    sizes.payload_max -= sizes.payload_max % sizes.minimum.max(SECTOR_BYTES);
    if sizes.payload_max == 0 {
        return Err(Malformed::Value.into());
    }
    stream.set_nonblocking(true)?;
    Ok((stream.into(), Agreed { style, context, flags, size_bytes, sizes }))
}

/// Asks for one option; why it is refused, if it is.
fn ask(
    stream: &mut impl Stream,
    code: OptionCode,
    export: &str,
    mut hear: impl FnMut(OptionReply<'_>),
) -> Result<Option<(Refusal, String)>, ConnectError> {
    let mut question = Vec::new();
    encode_option(&mut question, code, export);
    stream.write_all(&question)?;
    // More answers than anything has: a server must not keep us here.
    for _ in 0..1024 {
        let head = OptionReplyHead::decode(&array(stream)?)?;
        let mut data = vec![0; head.data_bytes];
        stream.read_exact(&mut data)?;
        match OptionReply::decode(&head, &data)? {
            OptionReply::Ack => return Ok(None),
            OptionReply::Refused(Refusal::TLS_REQUIRED, _) => return Err(ConnectError::Tls),
            OptionReply::Refused(why, word) => return Ok(Some((why, word.to_owned()))),
            reply => hear(reply),
        }
    }
    Err(Malformed::Value.into())
}

fn array<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
