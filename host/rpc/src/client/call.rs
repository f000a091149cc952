//! Calls and replies, as the caller sees them.

use std::ops::Range;

use tombolo_core::Interrupt;
use tombolo_mem::{Sink, Source};
use tombolo_wire_rpc::Credential;

/// One call, without its arguments.
pub struct Call<'a> {
    /// Program and version of the call on the same server, if other than the client's own.
    pub program: Option<(u32, u32)>,
    /// Procedure number.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential<'a>,
    /// File data that follow the arguments, without the padding, which the client adds. Over sockets without
    /// TLS they are sent without a copy. They are in use until the call ends, because it may have to be
    /// retransmitted.
    pub data: Option<Source>,
    /// Destination of the reply's file data.
    pub receive_buffer: Option<ReceiveBuffer>,
    /// Expected length of the results of a call without receive buffer, in bytes, if more than a few hundred:
    /// over a link it determines the reply buffer. If the reply does not fit, the call is made a second time.
    pub results_bytes: usize,
    /// `true` if the call counts against the in-flight limit. With several connections, a call that sends and
    /// requests less than 128 KiB does not, except over a link. Calls that do not count are sent before
    /// queued ones that do.
    pub bulk: bool,
    /// Interrupt that ends the call, as far as [`Options::interrupts`](super::Options::interrupts) permits.
    pub interrupt: Interrupt,
}

impl<'a> Call<'a> {
    /// Returns a call without data that cannot be interrupted.
    #[must_use]
    pub fn new(procedure: u32, credential: Credential<'a>) -> Self {
        Self {
            program: None,
            procedure,
            credential,
            data: None,
            receive_buffer: None,
            results_bytes: 0,
            bulk: false,
            interrupt: Interrupt::default(),
        }
    }
}

/// Destination of a reply's file data.
#[derive(Clone)]
pub struct ReceiveBuffer {
    /// Memory, in use until the call ends.
    pub sink: Sink,
    /// Function that locates the data in the results.
    pub find: FindData,
}

/// A function that locates file data, given the first bytes of a procedure's results and their total length.
///
/// After [`DataLocation::More`] the client calls the function again with more bytes, at the latest when all
/// bytes are received.
pub type FindData = fn(results: &[u8], results_bytes: usize) -> DataLocation;

/// Location of file data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// More bytes are needed.
    More,
    /// Range within the results. If it exceeds the sink or the results, the reply is malformed.
    Data(Range<usize>),
    /// The results have no file data.
    None,
}

/// Reply to an executed call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// Results: the part before the data if the data were written to the receive buffer, otherwise all.
    pub results: Vec<u8>,
    /// Number of bytes of data in the receive buffer, from its beginning.
    pub data_bytes: usize,
    /// Position of the data in the results; empty without data.
    pub data_announced: Range<usize>,
}
