//! A program whose replies prove the data it received.

use std::future::Future;
use std::sync::Arc;

use tombolo_host_rpc::server::{Exchange, Outcome, Peer, ReplyData, Service};
use tombolo_nfs_client_tests::wire::noise;
use tombolo_wire_rpc::{CallHeader, ReplyHeader};
use tombolo_wire_xdr::{Decoder, Encoder};

/// Program number, from the user-defined range (RFC 5531 §8.2).
pub const PROGRAM: u32 = 0x2000_0051;
/// Program version.
pub const VERSION: u32 = 1;
/// Takes a call's number, the length of the reply's data, and opaque data. Returns the number, a digest of
/// the data, and pseudo-random data derived from the number.
pub const ECHO: u32 = 1;

/// The program.
#[derive(Default)]
pub struct Echo;

/// Encodes the arguments before the data.
pub fn encode_arguments(xdr: &mut Encoder<'_>, number: u64, back_bytes: u32, data_bytes: u32) {
    xdr.u64(number).u32(back_bytes).u32(data_bytes);
}

/// Computes a digest (FNV-1a).
pub fn digest(bytes: &[u8]) -> u64 {
    let mix = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Returns the data that a call sends.
pub fn sent_data(number: u64, len: usize) -> Vec<u8> {
    noise(number ^ 0xdead_0000, len)
}

impl Echo {
    fn answer(exchange: &mut Exchange) -> Outcome {
        let call = exchange.record.to_vec(usize::MAX);
        let mut arguments = Decoder::new(&call);
        let header = CallHeader::receive(&mut arguments).expect("a call");
        assert_eq!((header.program, header.version, header.procedure), (PROGRAM, VERSION, ECHO));
        let number = arguments.u64().expect("a number");
        let back_bytes = arguments.u32().expect("a length") as usize;
        let len = arguments.u32().expect("a length") as usize;
        let data = arguments.fixed(len).expect("the data, padded").to_vec();
        arguments.finish().expect("nothing else");
        // Data received for a call are those it sent, even if the caller has reused its memory.
        assert!(
            data == sent_data(number, len),
            "call {number} arrived with other data than it was made with"
        );
        let mut results = Encoder::new(&mut exchange.reply);
        results.value(&ReplyHeader::success(header.xid));
        results.u64(number).u64(digest(&data)).u32(back_bytes as u32);
        if back_bytes > 0 {
            let lease = exchange.buffers.take(back_bytes).expect("a buffer");
            lease.sink(0..back_bytes).write_at(0, &noise(number, back_bytes));
            exchange.data = Some(ReplyData::new(lease, back_bytes));
        }
        Outcome::Reply
    }
}

impl Service for Echo {
    fn serve(
        self: Arc<Self>,
        _: Arc<Peer>,
        mut exchange: Box<Exchange>,
    ) -> impl Future<Output = (Box<Exchange>, Outcome)> + Send + 'static {
        let outcome = Self::answer(&mut exchange);
        std::future::ready((exchange, outcome))
    }
}
