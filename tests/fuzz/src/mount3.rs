//! Arbitrary bytes as arguments and results of MOUNT: limits hold, and decoded values encode to the length
//! read.

use tombolo_wire_nfs3::Reply;
use tombolo_wire_nfs3::mount::{
    Call, DumpReply, ExportReply, FLAVORS_MAX, MntReply, NAME_BYTES_MAX, PATH_BYTES_MAX, Procedure,
};
use tombolo_wire_xdr::Decoder;

use crate::xdr::{decoded, encoded};

/// Runs the target.
pub fn run(message: &[u8]) {
    for &procedure in Procedure::ALL {
        let mut xdr = Decoder::new(message);
        let Ok(call) = Call::decode(procedure, &mut xdr) else { continue };
        if let Call::Mnt(path) | Call::Umnt(path) = call {
            assert!(path.as_bytes().len() <= PATH_BYTES_MAX);
        }
        assert_eq!((call.procedure(), encoded(&call).len()), (procedure, xdr.position()));
    }
    if let Some(Reply::Ok(root)) = decoded::<MntReply<'_>>(message) {
        assert!(root.flavors.len() <= FLAVORS_MAX);
    }
    if let Some(mounts) = decoded::<DumpReply<'_>>(message) {
        for mount in mounts {
            assert!(mount.client.as_bytes().len() <= NAME_BYTES_MAX);
        }
    }
    if let Some(exports) = decoded::<ExportReply<'_>>(message) {
        let groups: usize = exports.into_iter().map(|export| export.groups.into_iter().count()).sum();
        assert!(groups <= message.len() / 8);
    }
}
