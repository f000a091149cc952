//! Calls that are encoded once and sent repeatedly, and their replies.

use std::io::IoSlice;

use tombolo_wire_rpc::{
    Accepted, AuthSys, CallHeader, Credential, Gids, Mark, ReplyBody, ReplyHeader, SUCCESS_BYTES, Xid,
};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder, padding};

use crate::error::{Error, Result};

/// Offset of the xid, after the mark.
const XID_AT: usize = Mark::BYTES;
/// Successful reply after its xid: accepted, without verifier, executed, with status 0.
const GOOD: [u8; SUCCESS_BYTES] = {
    let mut good = [0; SUCCESS_BYTES];
    // REPLY (RFC 5531 §9); all that follows is 0.
    good[3] = 1;
    good
};

/// A procedure of a program.
#[derive(Clone, Debug)]
pub struct Procedure {
    pub name: String,
    pub program: u32,
    pub version: u32,
    pub number: u32,
}

#[derive(Clone, Debug)]
pub struct Call {
    name: String,
    /// Encoded mark, header and arguments.
    head: Vec<u8>,
    /// File data with padding.
    data: Vec<u8>,
    /// Offset of the arguments.
    args_at: usize,
    /// Expected length of a reply, if that shows that its data are complete.
    reply_bytes: Option<usize>,
}

impl Call {
    pub fn new(procedure: Procedure, args: &impl Encode) -> Self {
        let Procedure { name, program, version, number } = procedure;
        let gids = Gids::default();
        let root = Credential::Sys(AuthSys { stamp: 0, machine: b"bench", uid: 0, gid: 0, gids });
        let mut head = vec![0; Mark::BYTES];
        let mut xdr = Encoder::new(&mut head);
        xdr.value(&CallHeader::new(Xid(0), program, version, number, root));
        let args_at = Mark::BYTES + xdr.position();
        xdr.value(args);
        let mut call = Self { name, head, data: Vec::new(), args_at, reply_bytes: None };
        call.set_mark();
        call
    }

    /// Creates a call with file data after its arguments.
    pub fn with_data(procedure: Procedure, args: &impl Encode, data: &[u8]) -> Self {
        let mut call = Self::new(procedure, args);
        call.data = data.to_vec();
        call.data.resize(data.len() + padding(data.len()), 0);
        call.set_mark();
        call
    }

    /// Sets the expected length of replies, without their mark.
    pub fn expect_reply_bytes(mut self, bytes: usize) -> Self {
        self.reply_bytes = Some(bytes);
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn bytes(&self) -> usize {
        self.head.len() + self.data.len()
    }

    /// Overwrites eight bytes of the arguments with a number.
    pub fn patch_u64(&mut self, at: usize, value: u64) {
        let place = self.head.get_mut(self.args_at + at..).and_then(|bytes| bytes.first_chunk_mut());
        if let Some(place) = place {
            *place = value.to_be_bytes();
        }
    }

    pub(super) fn set_xid(&mut self, xid: u32) {
        if let Some(place) = self.head.get_mut(XID_AT..).and_then(|bytes| bytes.first_chunk_mut()) {
            *place = xid.to_be_bytes();
        }
    }

    pub(super) fn has_data(&self) -> bool {
        !self.data.is_empty()
    }

    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    pub(super) fn parts(&self) -> [IoSlice<'_>; 2] {
        [IoSlice::new(&self.head), IoSlice::new(&self.data)]
    }

    /// Checks a reply by its first bytes and its length.
    pub(super) fn check(&self, head: &[u8], len: usize) -> Result<()> {
        let good = head.get(XID_BYTES..XID_BYTES + GOOD.len()).is_some_and(|found| found == GOOD);
        if good && self.reply_bytes.is_none_or(|expected| expected == len) {
            return Ok(());
        }
        let answer = match Reply::open(&self.name, head) {
            Ok(mut results) if good => {
                let _status = results.u32();
                format!("a reply of {len} bytes instead of {}", self.reply_bytes.unwrap_or_default())
            }
            Ok(mut results) => format!("status {}", results.u32().unwrap_or(u32::MAX)),
            Err(error) => return Err(error),
        };
        Err(Error::Wrong { what: self.name.clone(), answer })
    }

    fn set_mark(&mut self) {
        let len = self.bytes() - Mark::BYTES;
        if let (Some(place), Some(mark)) = (self.head.first_chunk_mut(), Mark::whole(len)) {
            *place = mark.to_bytes();
        }
    }
}

const XID_BYTES: usize = 4;

/// Results of a call.
#[derive(Debug, Default)]
pub struct Reply {
    name: String,
    results: Vec<u8>,
    /// Length of the reply without its mark.
    pub bytes: usize,
}

impl Reply {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Decodes the results.
    pub(super) fn read<'a, T: Decode<'a>>(&'a self) -> Result<T> {
        let read = Decoder::new(&self.results).value();
        read.map_err(|error| Error::Wrong { what: self.name.clone(), answer: error.to_string() })
    }

    pub(super) fn take(&mut self, call: &Call, xid: u32, record: &[u8]) -> Result<()> {
        self.name.clone_from(&call.name);
        let found = record.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
        if found != Some(xid) {
            let answer = "a reply to another call".to_owned();
            return Err(Error::Wrong { what: call.name.clone(), answer });
        }
        let results = Self::open(&call.name, record)?;
        self.results.clear();
        self.results.extend_from_slice(results.rest());
        self.bytes = record.len();
        Ok(())
    }

    /// Opens the results of a successful reply.
    fn open<'a>(name: &str, record: &'a [u8]) -> Result<Decoder<'a>> {
        let wrong = |answer: String| Error::Wrong { what: name.to_owned(), answer };
        let mut xdr = Decoder::new(record);
        let header: ReplyHeader<'_> = xdr.value().map_err(|error| wrong(error.to_string()))?;
        match header.body {
            ReplyBody::Accepted { status: Accepted::Success, .. } => Ok(xdr),
            other => Err(wrong(format!("{other:?}"))),
        }
    }
}
