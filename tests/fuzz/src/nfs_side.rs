//! Arbitrary bytes as arguments and results of the side program: decoded values encode to the length read,
//! and counts do not exceed what is present.

use tombolo_wire_nfs3::Reply;
use tombolo_wire_nfs3::side::{Call, DigestsReply, LeaseReply, ListReply, PackReply, Procedure};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};

/// Runs the target.
pub fn run(message: &[u8]) {
    for &procedure in Procedure::ALL {
        let mut xdr = Decoder::new(message);
        let Ok(call) = Call::decode(procedure, &mut xdr) else { continue };
        assert_eq!((call.procedure(), encoded(&call)), (procedure, xdr.position()));
    }
    let mut xdr = Decoder::new(message);
    if let Ok(reply) = DigestsReply::decode(&mut xdr) {
        assert_eq!(encoded(&reply), xdr.position());
    }
    let mut xdr = Decoder::new(message);
    if let Ok(reply) = PackReply::decode(&mut xdr) {
        assert_eq!(encoded(&reply), xdr.position());
    }
    let mut xdr = Decoder::new(message);
    if let Ok(reply) = LeaseReply::decode(&mut xdr) {
        assert_eq!(encoded(&reply), xdr.position());
    }
    let mut xdr = Decoder::new(message);
    let Ok(reply) = ListReply::decode(&mut xdr) else { return };
    assert_eq!(encoded(&reply), xdr.position());
    let pages = reply.into_iter().map(|listed| match listed.page {
        Reply::Ok(page) => page.entries.into_iter().count(),
        Reply::Failed(..) => 0,
    });
    assert!(pages.sum::<usize>() <= message.len() / 32);
}

fn encoded(value: &impl Encode) -> usize {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes.len()
}
