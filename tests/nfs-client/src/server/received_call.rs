//! Calls as received.

use tombolo_wire_nfs3::{self as nfs3, Call, Procedure, mount, side};
use tombolo_wire_rpc::{Accepted, CallHeader, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, Encode, Encoder};

use super::ScriptedReply;

/// A call as received.
#[derive(Debug)]
pub struct ReceivedCall<'a> {
    /// Transaction id.
    pub xid: Xid,
    /// Program number.
    pub program: u32,
    /// Procedure number.
    pub procedure: u32,
    /// Index of the connection, from 0.
    pub connection: usize,
    /// Number of calls of this procedure so far, including this one.
    pub nth: usize,
    message: &'a [u8],
    arguments_at: usize,
}

impl<'a> ReceivedCall<'a> {
    /// Decodes a message; returns `None` if it is no call. The caller sets `nth`.
    pub(super) fn read(message: &'a [u8], connection: usize) -> Option<Self> {
        let mut xdr = Decoder::new(message);
        let header = CallHeader::receive(&mut xdr).ok()?;
        let (program, procedure) = (header.program, header.procedure);
        Some(Self {
            xid: header.xid,
            program,
            procedure,
            connection,
            nth: 1,
            message,
            arguments_at: xdr.position(),
        })
    }

    /// Returns `true` for a call of this NFS procedure.
    pub fn is(&self, procedure: Procedure) -> bool {
        self.program == nfs3::PROGRAM && self.procedure == procedure.number()
    }

    /// Returns `true` for a call of this procedure of the side program.
    pub fn is_side(&self, procedure: side::Procedure) -> bool {
        self.program == side::PROGRAM && self.procedure == procedure.number()
    }

    /// Returns the reply of a server that lacks the side program: forwards all other calls.
    pub fn without_side_program(&self) -> ScriptedReply {
        match self.program {
            side::PROGRAM => self.header(|xid| ReplyHeader::accept(xid, Accepted::ProgUnavail)),
            _ => ScriptedReply::Forward,
        }
    }

    /// Returns `true` for MNT.
    pub fn is_mnt(&self) -> bool {
        self.program == mount::PROGRAM && self.procedure == mount::Procedure::Mnt.number()
    }

    /// Decodes the NFS call; returns `None` for other programs and malformed arguments.
    pub fn call(&self) -> Option<Call<'a>> {
        let procedure = Procedure::from_number(self.procedure).filter(|_| self.program == nfs3::PROGRAM)?;
        let arguments = self.arguments();
        Call::decode(procedure, &mut Decoder::new(arguments), arguments.len()).ok()
    }

    /// Returns the encoded arguments.
    pub fn arguments(&self) -> &'a [u8] {
        self.message.get(self.arguments_at..).unwrap_or_default()
    }

    /// Returns the whole message.
    pub(super) fn message(&self) -> &'a [u8] {
        self.message
    }

    /// Builds a success reply with arbitrary `results`.
    pub fn reply(&self, results: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        Encoder::new(&mut reply).value(&ReplyHeader::success(self.xid)).raw(results);
        reply
    }

    /// Builds a success reply with these results.
    pub fn results(&self, results: &impl Encode) -> ScriptedReply {
        let mut bytes = Vec::new();
        Encoder::new(&mut bytes).value(results);
        ScriptedReply::Results(bytes)
    }

    /// Builds a reply of a header alone: a refusal.
    pub fn header(&self, make: impl FnOnce(Xid) -> ReplyHeader<'static>) -> ScriptedReply {
        let mut reply = Vec::new();
        Encoder::new(&mut reply).value(&make(self.xid));
        ScriptedReply::Record(reply)
    }
}
