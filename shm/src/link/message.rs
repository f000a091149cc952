//! Messages that set up and end a link (docs/formats/link.md, "Messages"). No I/O: bytes in, messages out.
//!
//! Decoding is strict: the length must be exact, texts must be bounded UTF-8 without control characters, and
//! undefined numbers are refused, except for feature bits, doorbell bits, refusal codes and the protocol of a
//! hello, which later versions may extend.

use std::fmt;

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::link::ends::DoorbellKind;
use crate::link::raw::raw;
use crate::link::region_forwarding::{ForwardRegion, RegionForwarded, Withdraw};
use crate::link::terms::{Doorbells, Features, Incarnation, Protocol};

/// Maximum length of a message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 512;
/// Maximum length of an export's name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a client's label, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;
/// Maximum length of a reason, in bytes.
pub const REASON_BYTES_MAX: usize = 256;

const MAGIC: [u8; 8] = *b"TMBLLINK";

/// A message of either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The client's first message. At a socket, the descriptor of the client's memory accompanies it.
    Hello(Hello),
    /// The server's acceptance. At a socket, the descriptor of the server's memory accompanies it.
    Welcome(Welcome),
    /// The server's refusal of a link.
    Refused(Refused),
    /// The last message of the side that ends the link.
    Goodbye(Goodbye),
    /// A further domain of the client, with its memory.
    ForwardRegion(ForwardRegion),
    /// The server's reply to a forwarded region.
    RegionForwarded(RegionForwarded),
    /// The client's announcement that a forwarded region is no longer available.
    Withdraw(Withdraw),
}

/// A client's request for a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Oldest supported version.
    pub version_min: u32,
    /// Newest supported version.
    pub version_max: u32,
    /// Extensions that the client supports.
    pub offered: Features,
    /// Extensions that the client requires.
    pub required: Features,
    /// Maximum number of slots; see [`Layout`](crate::link::Layout), whose rules the three sizes in this
    /// message need not satisfy.
    pub slots: u32,
    /// Maximum number of slots of the back ring.
    pub back_slots: u32,
    /// Size of the client's memory; the server may use less.
    pub bytes: u64,
    /// Incarnation of the client.
    pub client: Incarnation,
    /// Requested protocol; `None` for a number unknown to this version.
    pub protocol: Option<Protocol>,
    /// Doorbells that the client supports; the server chooses one.
    pub doorbells: Doorbells,
    /// Name of the export, at most [`NAME_BYTES_MAX`] bytes; empty for the server's only one.
    pub export: String,
    /// Name of the client for the server's log, at most [`LABEL_BYTES_MAX`] bytes.
    pub label: String,
}

/// The server's decisions about a link, within the client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// Version in use, one of the client's range.
    pub version: u32,
    /// Extensions in use.
    pub features: Features,
    /// Slots of the rings, at most as many as requested.
    pub slots: u32,
    /// Slots of the back rings, at most as many as requested.
    pub back_slots: u32,
    /// Used size of each region, at most that of the client's memory.
    pub bytes: u64,
    /// Generation of the link; not zero.
    pub epoch: u32,
    /// Means by which the sides wake each other: one of the client's doorbells.
    pub doorbell: DoorbellKind,
    /// Protocol in use: the requested one.
    pub protocol: Protocol,
    /// Incarnation of the server.
    pub server: Incarnation,
}

/// The server's refusal of a link.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{code}{}{reason}", if .reason.is_empty() { "" } else { ": " })]
pub struct Refused {
    /// Reason as a code, for programs.
    pub code: RefusalCode,
    /// Text for people: no control characters, at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

/// The reason of a refusal, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefusalCode {
    /// The client and the server support no common version.
    Version,
    /// The client requires an extension that the server lacks.
    Features,
    /// The server does not support the protocol.
    Protocol,
    /// The requested numbers of slots or bytes violate the rules of a layout.
    Sizes,
    /// The client's memory is unsuitable.
    Memory,
    /// The client and the server support no common doorbell.
    Doorbell,
    /// The server's policy does not allow the link.
    NotAllowed,
    /// The server has no export of the requested name.
    NoExport,
    /// The server has the maximum number of links.
    TooMany,
    /// The client's message is malformed, or not the expected one.
    Malformed,
    /// A failure of the server, possibly temporary.
    Failed,
    /// A code unknown to this version, of a newer server.
    Other(u32),
}

/// The end of a link, by either side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goodbye {
    /// Cause as a code, for programs.
    pub cause: Cause,
    /// Text for people: no control characters, at most [`REASON_BYTES_MAX`] bytes.
    pub reason: String,
}

/// The reason for ending a link, for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Regular end: the sender does not need the link any more.
    Leaving,
    /// The receiver has violated the protocol, and the sender has cut the link.
    Cut,
    /// A failure of the sender, such as an I/O error.
    Failed,
}

/// The reason why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum MessageError {
    /// The message is shorter than the fixed part, longer than the maximum, or of another length than it
    /// states.
    #[error("invalid length of a message: {bytes} bytes")]
    Length {
        /// Length of the received bytes.
        bytes: usize,
    },
    /// Wrong magic bytes.
    #[error("not a link message")]
    Magic,
    /// A field with an undefined value.
    #[error("invalid {what}: {value}")]
    Value {
        /// Name of the field, for the log.
        what: &'static str,
        /// Value found in the message.
        value: u32,
    },
    /// A text that is too long, not UTF-8, or contains control characters.
    #[error("the {what} is not valid text")]
    Text {
        /// Name of the field, for the log.
        what: &'static str,
    },
}

impl Message {
    /// Decodes a message that consists of all of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Message, MessageError> {
        let length = || MessageError::Length { bytes: bytes.len() };
        let (head, rest) = Head::read_from_prefix(bytes).map_err(|_| length())?;
        if head.magic != MAGIC {
            return Err(MessageError::Magic);
        }
        if bytes.len() > MESSAGE_BYTES_MAX || usize::try_from(head.len.get()) != Ok(bytes.len()) {
            return Err(length());
        }
        match head.kind.get() {
            1 => decode_hello(rest, length).map(Message::Hello),
            2 => decode_welcome(rest, length).map(Message::Welcome),
            3 => {
                let (code, reason) = decode_reason(rest, length)?;
                Ok(Message::Refused(Refused { code: RefusalCode::from_number(code), reason }))
            }
            4 => {
                let (cause, reason) = decode_reason(rest, length)?;
                let invalid = MessageError::Value { what: "cause", value: cause };
                Ok(Message::Goodbye(Goodbye { cause: Cause::from_number(cause).ok_or(invalid)?, reason }))
            }
            5 => ForwardRegion::decode(rest).ok_or_else(length)?.map(Message::ForwardRegion),
            6 => RegionForwarded::decode(rest).ok_or_else(length)?.map(Message::RegionForwarded),
            7 => Withdraw::decode(rest).ok_or_else(length)?.map(Message::Withdraw),
            value => Err(MessageError::Value { what: "kind", value }),
        }
    }

    /// Encodes the message in at most [`MESSAGE_BYTES_MAX`] bytes. Texts are truncated to their limits, and
    /// their control characters replaced.
    pub fn encode(&self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(MESSAGE_BYTES_MAX);
        let kind = match self {
            Message::Hello(hello) => {
                encode_hello(hello, &mut rest);
                1
            }
            Message::Welcome(welcome) => {
                rest.extend_from_slice(RawWelcome::from(welcome).as_bytes());
                2
            }
            Message::Refused(refused) => {
                encode_reason(refused.code.number(), &refused.reason, &mut rest);
                3
            }
            Message::Goodbye(goodbye) => {
                encode_reason(goodbye.cause.number(), &goodbye.reason, &mut rest);
                4
            }
            Message::ForwardRegion(forward) => {
                forward.encode(&mut rest);
                5
            }
            Message::RegionForwarded(forwarded) => {
                forwarded.encode(&mut rest);
                6
            }
            Message::Withdraw(withdraw) => {
                withdraw.encode(&mut rest);
                7
            }
        };
        let len = U32::new(u32::try_from(size_of::<Head>() + rest.len()).unwrap_or(u32::MAX));
        let mut bytes = Head { magic: MAGIC, kind: U32::new(kind), len }.as_bytes().to_vec();
        bytes.append(&mut rest);
        bytes
    }
}

impl Refused {
    /// Returns a refusal; the reason is truncated to its limit.
    pub fn new(code: RefusalCode, reason: impl fmt::Display) -> Refused {
        Refused { code, reason: sanitized(&reason.to_string(), REASON_BYTES_MAX) }
    }
}

impl Goodbye {
    /// Returns a goodbye; the reason is truncated to its limit.
    pub fn new(cause: Cause, reason: impl fmt::Display) -> Goodbye {
        Goodbye { cause, reason: sanitized(&reason.to_string(), REASON_BYTES_MAX) }
    }
}

const REFUSAL_CODES: [(RefusalCode, u32, &str); 11] = [
    (RefusalCode::Version, 1, "no common version"),
    (RefusalCode::Features, 2, "an extension is missing"),
    (RefusalCode::Protocol, 3, "protocol not supported"),
    (RefusalCode::Sizes, 4, "sizes not supported"),
    (RefusalCode::Memory, 5, "unsuitable memory"),
    (RefusalCode::Doorbell, 6, "no common doorbell"),
    (RefusalCode::NotAllowed, 7, "not allowed"),
    (RefusalCode::NoExport, 8, "no such export"),
    (RefusalCode::TooMany, 9, "too many links"),
    (RefusalCode::Malformed, 10, "malformed message"),
    (RefusalCode::Failed, 11, "the server failed"),
];

impl RefusalCode {
    fn number(self) -> u32 {
        match self {
            RefusalCode::Other(number) => number,
            known => {
                REFUSAL_CODES.iter().find(|(code, ..)| *code == known).map_or(0, |(_, number, _)| *number)
            }
        }
    }

    fn from_number(number: u32) -> RefusalCode {
        let known = REFUSAL_CODES.iter().find(|(_, known, _)| *known == number);
        known.map_or(RefusalCode::Other(number), |(code, ..)| *code)
    }
}

impl fmt::Display for RefusalCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match REFUSAL_CODES.iter().find(|(code, ..)| code == self) {
            Some((.., words)) => f.write_str(words),
            None => write!(f, "refused with code {}", self.number()),
        }
    }
}

impl Cause {
    fn number(self) -> u32 {
        match self {
            Cause::Leaving => 1,
            Cause::Cut => 2,
            Cause::Failed => 3,
        }
    }

    fn from_number(number: u32) -> Option<Cause> {
        [Cause::Leaving, Cause::Cut, Cause::Failed].into_iter().find(|cause| cause.number() == number)
    }
}

// Offsets are from the start of the message, whose first 16 bytes are the head.
raw! {
    struct Head: 0..16 {
        0 magic: [u8; 8],
        8 kind: U32,
        12 len: U32,
    }

    struct RawHello: 16..88 {
        16 version_min: U32,
        20 version_max: U32,
        24 offered: U64,
        32 required: U64,
        40 slots: U32,
        44 back_slots: U32,
        48 bytes: U64,
        56 client: [u8; 16],
        72 protocol: U32,
        76 doorbells: U32,
        80 export_len: U32,
        84 label_len: U32,
    }

    struct RawWelcome: 16..72 {
        16 version: U32,
        20 doorbell: U32,
        24 features: U64,
        32 slots: U32,
        36 back_slots: U32,
        40 bytes: U64,
        48 epoch: U32,
        52 protocol: U32,
        56 server: [u8; 16],
    }

    struct RawReason: 16..24 {
        16 code: U32,
        20 len: U32,
    }
}

const _: () = {
    const HEAD: usize = size_of::<Head>();
    assert!(HEAD + size_of::<RawHello>() + NAME_BYTES_MAX + LABEL_BYTES_MAX <= MESSAGE_BYTES_MAX);
    assert!(HEAD + size_of::<RawReason>() + REASON_BYTES_MAX <= MESSAGE_BYTES_MAX);
};

fn decode_hello(bytes: &[u8], length: impl Fn() -> MessageError) -> Result<Hello, MessageError> {
    let (raw, texts) = RawHello::read_from_prefix(bytes).map_err(|_| length())?;
    let (export, texts) = split(texts, raw.export_len, &length)?;
    let (label, texts) = split(texts, raw.label_len, &length)?;
    if !texts.is_empty() {
        return Err(length());
    }
    Ok(Hello {
        version_min: raw.version_min.get(),
        version_max: raw.version_max.get(),
        offered: Features::from_bits_retain(raw.offered.get()),
        required: Features::from_bits_retain(raw.required.get()),
        slots: raw.slots.get(),
        back_slots: raw.back_slots.get(),
        bytes: raw.bytes.get(),
        client: Incarnation(raw.client),
        protocol: Protocol::from_number(raw.protocol.get()),
        doorbells: Doorbells::from_bits_retain(raw.doorbells.get()),
        export: text("name of the export", export, NAME_BYTES_MAX)?,
        label: text("label", label, LABEL_BYTES_MAX)?,
    })
}

fn encode_hello(hello: &Hello, bytes: &mut Vec<u8>) {
    let export = sanitized(&hello.export, NAME_BYTES_MAX);
    let label = sanitized(&hello.label, LABEL_BYTES_MAX);
    let raw = RawHello {
        version_min: U32::new(hello.version_min),
        version_max: U32::new(hello.version_max),
        offered: U64::new(hello.offered.bits()),
        required: U64::new(hello.required.bits()),
        slots: U32::new(hello.slots),
        back_slots: U32::new(hello.back_slots),
        bytes: U64::new(hello.bytes),
        client: hello.client.0,
        protocol: U32::new(hello.protocol.map_or(0, Protocol::number)),
        doorbells: U32::new(hello.doorbells.bits()),
        export_len: len_of(&export),
        label_len: len_of(&label),
    };
    bytes.extend_from_slice(raw.as_bytes());
    bytes.extend_from_slice(export.as_bytes());
    bytes.extend_from_slice(label.as_bytes());
}

fn decode_welcome(bytes: &[u8], length: impl Fn() -> MessageError) -> Result<Welcome, MessageError> {
    let raw = RawWelcome::read_from_bytes(bytes).map_err(|_| length())?;
    let value = |what, value: U32| MessageError::Value { what, value: value.get() };
    Ok(Welcome {
        version: raw.version.get(),
        features: Features::from_bits_retain(raw.features.get()),
        slots: raw.slots.get(),
        back_slots: raw.back_slots.get(),
        bytes: raw.bytes.get(),
        epoch: raw.epoch.get(),
        doorbell: DoorbellKind::from_number(raw.doorbell.get())
            .ok_or_else(|| value("doorbell", raw.doorbell))?,
        protocol: Protocol::from_number(raw.protocol.get()).ok_or_else(|| value("protocol", raw.protocol))?,
        server: Incarnation(raw.server),
    })
}

impl From<&Welcome> for RawWelcome {
    fn from(welcome: &Welcome) -> RawWelcome {
        RawWelcome {
            version: U32::new(welcome.version),
            doorbell: U32::new(welcome.doorbell.number()),
            features: U64::new(welcome.features.bits()),
            slots: U32::new(welcome.slots),
            back_slots: U32::new(welcome.back_slots),
            bytes: U64::new(welcome.bytes),
            epoch: U32::new(welcome.epoch),
            protocol: U32::new(welcome.protocol.number()),
            server: welcome.server.0,
        }
    }
}

fn decode_reason(bytes: &[u8], length: impl Fn() -> MessageError) -> Result<(u32, String), MessageError> {
    let (raw, texts) = RawReason::read_from_prefix(bytes).map_err(|_| length())?;
    let (reason, rest) = split(texts, raw.len, &length)?;
    if !rest.is_empty() {
        return Err(length());
    }
    Ok((raw.code.get(), text("reason", reason, REASON_BYTES_MAX)?))
}

fn encode_reason(code: u32, reason: &str, bytes: &mut Vec<u8>) {
    let reason = sanitized(reason, REASON_BYTES_MAX);
    bytes.extend_from_slice(RawReason { code: U32::new(code), len: len_of(&reason) }.as_bytes());
    bytes.extend_from_slice(reason.as_bytes());
}

fn split<'a>(
    bytes: &'a [u8],
    len: U32,
    length: &impl Fn() -> MessageError,
) -> Result<(&'a [u8], &'a [u8]), MessageError> {
    let len = usize::try_from(len.get()).map_err(|_| length())?;
    bytes.split_at_checked(len).ok_or_else(length)
}

fn text(what: &'static str, bytes: &[u8], max: usize) -> Result<String, MessageError> {
    let text = std::str::from_utf8(bytes).map_err(|_| MessageError::Text { what })?;
    if text.len() > max || text.chars().any(char::is_control) {
        return Err(MessageError::Text { what });
    }
    Ok(text.to_owned())
}

/// Truncates the text to `max` bytes, at a character's end, and replaces control characters by `?`.
fn sanitized(text: &str, max: usize) -> String {
    let mut sanitized = String::new();
    for letter in text.chars().map(|letter| if letter.is_control() { '?' } else { letter }) {
        if sanitized.len() + letter.len_utf8() > max {
            break;
        }
        sanitized.push(letter);
    }
    sanitized
}

fn len_of(text: &str) -> U32 {
    U32::new(u32::try_from(text.len()).unwrap_or(u32::MAX))
}
