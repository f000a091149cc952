//! What is called, and what comes back.

use std::fmt;
use std::ops::Range;

use tombolo_core::Interrupt;
use tombolo_mem::{Sink, Source};
use tombolo_wire_rpc::Credential;

/// One call, but for its arguments.
pub struct Call<'a> {
    /// Another program of the same server, and its version; `None` is the client's own.
    pub program: Option<(u32, u32)>,
    /// What to do.
    pub procedure: u32,
    /// The caller's credential.
    pub credential: Credential<'a>,
    /// File data behind the arguments, sent from where they lie; the padding is added. They are in use until
    /// the call is answered, because it may have to be sent again.
    pub data: Option<Source>,
    /// Where file data of the reply go.
    pub receive_buffer: Option<ReceiveBuffer>,
    /// How long the results may get beside file data, in bytes, where that is more than some hundreds: over a
    /// link, memory is found for them. Too little costs a second call.
    pub results_bytes: usize,
    /// Whether it counts against the in-flight limit. Calls that do not never wait behind those that do.
    pub bulk: bool,
    /// The caller's wish that it end.
    pub interrupt: Interrupt,
}

impl<'a> Call<'a> {
    /// A call without data that cannot be interrupted.
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

/// Where file data of a reply go.
#[derive(Clone)]
pub struct ReceiveBuffer {
    /// The memory, in use until the call is answered.
    pub sink: Sink,
    /// Says where in the results the data lie.
    pub find: FindData,
}

impl fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiveBuffer").field("sink", &self.sink).finish_non_exhaustive()
    }
}

/// Looks at the first bytes of a procedure's results, of which there are so many in all, and says where file
/// data lie.
///
/// It is asked again with more bytes when it says [`DataLocation::More`], but with no more than 4 KiB before
/// all have come.
pub type FindData = fn(results: &[u8], results_bytes: usize) -> DataLocation;

/// Where file data lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataLocation {
    /// That cannot be seen yet.
    More,
    /// There, within the results. Longer than the sink or beyond the results, the reply is garbage.
    Data(Range<usize>),
    /// There are none.
    None,
}

/// The answer to a call that was carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The results: those before the data if there were data for the receive_buffer, and else all.
    pub results: Vec<u8>,
    /// Bytes of data that lie in the receive_buffer's sink, from its beginning.
    pub data_bytes: usize,
    /// Where in the results the data were; empty without data.
    pub data_announced: Range<usize>,
}
