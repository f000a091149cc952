//! A call, as it came.

use tombolo_wire_nfs3::{self as nfs3, Call, Procedure, mount};
use tombolo_wire_rpc::{CallHeader, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decoder, Encode, Encoder};

use super::ScriptedReply;

/// A call, as it came.
#[derive(Debug)]
pub struct ReceivedCall<'a> {
    /// Names the call.
    pub xid: Xid,
    /// The program.
    pub program: u32,
    /// The procedure.
    pub procedure: u32,
    /// Over which connection, counted from 0.
    pub connection: usize,
    /// How many calls of this procedure there were with this one: 1 for the first.
    pub nth: usize,
    message: &'a [u8],
    arguments_at: usize,
}

impl<'a> ReceivedCall<'a> {
    /// Reads a message; `None` if it is no call. `nth` is counted by the caller.
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

    /// Whether it is this procedure of NFS.
    pub fn is(&self, procedure: Procedure) -> bool {
        self.program == nfs3::PROGRAM && self.procedure == procedure.number()
    }

    /// Whether it asks for an export's root.
    pub fn is_mnt(&self) -> bool {
        self.program == mount::PROGRAM && self.procedure == mount::Procedure::Mnt.number()
    }

    /// The call of NFS that it is.
    pub fn call(&self) -> Option<Call<'a>> {
        let procedure = Procedure::from_number(self.procedure).filter(|_| self.program == nfs3::PROGRAM)?;
        let arguments = self.arguments();
        Call::decode(procedure, &mut Decoder::new(arguments), arguments.len()).ok()
    }

    /// The arguments' bytes.
    pub fn arguments(&self) -> &'a [u8] {
        self.message.get(self.arguments_at..).unwrap_or_default()
    }

    /// The whole message.
    pub(super) fn message(&self) -> &'a [u8] {
        self.message
    }

    /// A reply to it that says success, and then `results`, whatever they are.
    pub fn reply(&self, results: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        Encoder::new(&mut reply).value(&ReplyHeader::success(self.xid)).raw(results);
        reply
    }

    /// Says these results.
    pub fn results(&self, results: &impl Encode) -> ScriptedReply {
        let mut bytes = Vec::new();
        Encoder::new(&mut bytes).value(results);
        ScriptedReply::Results(bytes)
    }

    /// Says this header of a reply and nothing behind it: a refusal.
    pub fn header(&self, make: impl FnOnce(Xid) -> ReplyHeader<'static>) -> ScriptedReply {
        let mut reply = Vec::new();
        Encoder::new(&mut reply).value(&make(self.xid));
        ScriptedReply::Record(reply)
    }
}
