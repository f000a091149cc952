//! Encoding and decoding for tests, and messages of every kind.
#![allow(dead_code, reason = "each test takes what it needs")]

pub mod arbitrary;
pub mod samples;

use tombolo_wire_vrpc::{
    BODY_BYTES, Body, DecodeError, EncodeError, FRAME_BYTES, FrameBuf, Header, Kind, Outcome, REPLY, Reply,
    Request,
};

/// An encoded message.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    pub kind: u32,
    pub body: Body,
    pub frame: Vec<u8>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#010x} {} {}", self.kind, hex(&self.body), hex(&self.frame))
    }
}

pub fn encode_request(header: &Header, request: &Request<'_>) -> Result<Message, EncodeError> {
    let (mut body, mut memory) = ([0xee; BODY_BYTES], [0xee; FRAME_BYTES]);
    let mut frame = FrameBuf::new(&mut memory);
    let kind = request.encode(header, &mut body, &mut frame)?;
    Ok(Message { kind: kind.number(), body, frame: frame.as_bytes().to_vec() })
}

pub fn encode_outcome(kind: Kind, outcome: &Outcome<'_>) -> Result<Message, EncodeError> {
    let (mut body, mut memory) = ([0xee; BODY_BYTES], [0xee; FRAME_BYTES]);
    let mut frame = FrameBuf::new(&mut memory);
    let kind = match outcome {
        Ok(reply) => reply.encode(kind, &mut body, &mut frame)?,
        Err(status) => tombolo_wire_vrpc::encode_failure(kind, &(*status).into(), &mut body),
    };
    Ok(Message { kind, body, frame: frame.as_bytes().to_vec() })
}

pub fn encode_all((requests, replies): &samples::Both) -> Vec<Message> {
    let requests = requests.iter().map(|(header, request)| encode_request(header, request).unwrap());
    let replies = replies.iter().map(|(kind, outcome)| encode_outcome(*kind, outcome).unwrap());
    requests.chain(replies).collect()
}

impl Message {
    pub fn request(&self) -> Result<(Header, Request<'_>), DecodeError> {
        Request::decode(self.kind, &self.body, &self.frame)
    }

    pub fn outcome(&self) -> Result<Outcome<'_>, DecodeError> {
        let expected = Kind::from_number(self.kind & !REPLY).ok_or(DecodeError::UnknownKind(self.kind))?;
        Reply::decode(expected, self.kind, &self.body, &self.frame)
    }

    /// Decodes and re-encodes the message, in whichever direction it is sent.
    pub fn again(&self) -> Result<Message, DecodeError> {
        if self.kind & REPLY == 0 {
            let (header, request) = self.request()?;
            return Ok(encode_request(&header, &request).expect("what decodes can be encoded"));
        }
        let kind = Kind::from_number(self.kind & !REPLY).ok_or(DecodeError::UnknownKind(self.kind))?;
        Ok(encode_outcome(kind, &self.outcome()?).expect("what decodes can be encoded"))
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    assert_eq!(text.len() % 2, 0, "{text}");
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}
