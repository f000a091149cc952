//! Calls and replies as bytes. Calls are encoded word by word, so that a test can corrupt each word.

use tombolo_wire_nfs3::{Call, Procedure, Status, mount};
use tombolo_wire_rpc::{Accepted, Rejected, ReplyBody, ReplyHeader, Xid};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};

use super::Caller;

/// A credential or verifier: any bytes of any flavor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// Authentication flavor.
    pub flavor: u32,
    /// The bytes.
    pub body: Vec<u8>,
}

impl Auth {
    /// AUTH_NONE.
    pub const NONE: Self = Self { flavor: 0, body: Vec::new() };
}

/// A call (RFC 5531 §9). Change what you like before it is sent.
#[derive(Clone, Debug)]
pub struct Message {
    /// Names the call.
    pub xid: u32,
    /// 0 for a call.
    pub message_type: u32,
    /// 2.
    pub rpc_version: u32,
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The procedure.
    pub procedure: u32,
    /// The caller.
    pub credential: Auth,
    /// Verifier; empty for all flavors in use.
    pub verifier: Auth,
    /// The procedure's arguments, encoded.
    pub arguments: Vec<u8>,
}

impl Message {
    /// Builds a call of any program, without arguments.
    pub fn new(xid: u32, program: u32, version: u32, procedure: u32, caller: &Caller) -> Self {
        Self {
            xid,
            message_type: 0,
            rpc_version: 2,
            program,
            version,
            procedure,
            credential: caller.credential(),
            verifier: Auth::NONE,
            arguments: Vec::new(),
        }
    }

    /// Builds an NFS call; a WRITE's data is appended.
    pub fn nfs(xid: u32, caller: &Caller, call: &Call<'_>, data: &[u8]) -> Self {
        let mut message = Self::new(
            xid,
            tombolo_wire_nfs3::PROGRAM,
            tombolo_wire_nfs3::VERSION,
            call.procedure().number(),
            caller,
        );
        let mut xdr = Encoder::new(&mut message.arguments);
        xdr.value(call);
        if call.procedure() == Procedure::Write {
            xdr.fixed(data);
        }
        message
    }

    /// Builds a MOUNT call.
    pub fn mount(xid: u32, caller: &Caller, call: &mount::Call<'_>) -> Self {
        let procedure = call.procedure().number();
        let mut message = Self::new(xid, mount::PROGRAM, mount::VERSION, procedure, caller);
        Encoder::new(&mut message.arguments).value(call);
        message
    }

    /// Replaces the arguments.
    pub fn with_arguments(mut self, arguments: &[u8]) -> Self {
        self.arguments = arguments.to_vec();
        self
    }

    /// Encodes the record.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut xdr = Encoder::new(&mut bytes);
        xdr.u32(self.xid).u32(self.message_type).u32(self.rpc_version);
        xdr.u32(self.program).u32(self.version).u32(self.procedure);
        for auth in [&self.credential, &self.verifier] {
            xdr.u32(auth.flavor).opaque(&auth.body);
        }
        xdr.raw(&self.arguments);
        bytes
    }
}

/// RPC-level outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was looked at.
    Accepted(Accepted),
    /// It was not.
    Denied(Rejected),
}

/// A reply.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The call that it answers.
    pub xid: u32,
    /// RPC-level outcome.
    pub verdict: Verdict,
    bytes: Vec<u8>,
    results_at: usize,
}

impl Answer {
    /// Reads a received record.
    ///
    /// # Panics
    /// When it is no reply.
    pub fn new(bytes: Vec<u8>) -> Self {
        let mut xdr = Decoder::new(&bytes);
        let header = ReplyHeader::decode(&mut xdr).expect("a reply's header");
        let Xid(xid) = header.xid;
        let verdict = match header.body {
            ReplyBody::Accepted { status, .. } => Verdict::Accepted(status),
            ReplyBody::Denied(why) => Verdict::Denied(why),
        };
        let results_at = xdr.position();
        assert_eq!(bytes.len() % 4, 0, "a reply that is not a multiple of four bytes");
        Self { xid, verdict, bytes, results_at }
    }

    /// Returns the whole record.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the encoded results.
    pub fn result_bytes(&self) -> &[u8] {
        assert_eq!(self.verdict, Verdict::Accepted(Accepted::Success), "the call was not carried out");
        &self.bytes[self.results_at..]
    }

    /// Returns the status with which the results of every procedure except NULL begin; 0 is success.
    pub fn status(&self) -> Result<(), Status> {
        let bytes = self.result_bytes().first_chunk().expect("a status");
        match u32::from_be_bytes(*bytes) {
            0 => Ok(()),
            number => Err(Status::from_number(number).expect("a status that RFC 1813 has")),
        }
    }

    /// Decodes the results, which must take all of the bytes.
    ///
    /// # Panics
    /// If the call was not executed or the bytes do not decode.
    pub fn results<'a, T: Decode<'a>>(&'a self) -> T {
        let mut xdr = Decoder::new(self.result_bytes());
        let results = xdr.value().expect("the procedure's results");
        xdr.finish().expect("nothing behind the results");
        results
    }
}

/// Encodes a value by itself.
pub fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    Encoder::new(&mut bytes).value(value);
    bytes
}
