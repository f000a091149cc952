//! Arbitrary bytes as arguments and results of the side program: decoded values encode to the length read,
//! and counts do not exceed what is present.

use tombolo_wire_nfs3::Reply;
use tombolo_wire_nfs3::side::{Call, DigestsReply, LeaseReply, ListReply, PackReply, Procedure};
use tombolo_wire_xdr::Decoder;

use crate::xdr::{decoded, encoded};

/// Runs the target.
pub fn run(message: &[u8]) {
    for &procedure in Procedure::ALL {
        let mut xdr = Decoder::new(message);
        let Ok(call) = Call::decode(procedure, &mut xdr) else { continue };
        assert_eq!((call.procedure(), encoded(&call).len()), (procedure, xdr.position()));
    }
    let _ = decoded::<DigestsReply<'_>>(message);
    let _ = decoded::<PackReply<'_>>(message);
    let _ = decoded::<LeaseReply>(message);
    let Some(reply) = decoded::<ListReply<'_>>(message) else { return };
    let pages = reply.into_iter().map(|listed| match listed.page {
        Reply::Ok(page) => page.entries.into_iter().count(),
        Reply::Failed(..) => 0,
    });
    assert!(pages.sum::<usize>() <= message.len() / 32);
}
