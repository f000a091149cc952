//! Null NFS server with constant replies: shows the cost of callers and network. Written data are dropped on
//! receipt; read data are zeros.

mod answer;
mod node;

use std::io::{self, IoSlice};

use tombolo_wire_xdr::padded;

use super::super::Stream;
use super::super::client::Records;
use answer::answer;

pub use node::READ_PREFIX;

const READ_BYTES: usize = 256 << 10;
/// Bytes of a call that are examined: header and arguments without file data.
const HEAD_BYTES: usize = 512;
/// Maximum READ and WRITE.
const TRANSFER_BYTES: u32 = 1 << 20;
static ZEROS: [u8; TRANSFER_BYTES as usize] = [0; TRANSFER_BYTES as usize];

/// Answers calls until the client disconnects.
pub fn converse(mut stream: Stream) -> io::Result<()> {
    let mut records = Records::new(HEAD_BYTES);
    let mut buffer = vec![0; READ_BYTES];
    let mut replies = Vec::new();
    loop {
        let got = match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => count,
        };
        records.feed(&buffer[..got], |call| {
            let data_bytes = answer(call.head, call.len, &mut replies)?;
            if data_bytes == 0 {
                return Ok(());
            }
            let data = ZEROS.get(..padded(data_bytes)).unwrap_or(&ZEROS);
            let sent = stream.write_parts(&mut [IoSlice::new(&replies), IoSlice::new(data)]);
            replies.clear();
            sent
        })?;
        stream.write_all(&replies)?;
        replies.clear();
    }
}
