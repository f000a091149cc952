//! Arbitrary bytes as the arguments of any NFS procedure: decoded arguments encode to the bytes read, except
//! for the content of padding, and a WRITE's data must lie in its message.

use tombolo_wire_nfs3::attr::set_attr;
use tombolo_wire_nfs3::{Call, Procedure};
use tombolo_wire_xdr::Decoder;

use crate::xdr::encoded;

/// Number of bytes of a long message that a server retains.
const HEAD_BYTES: usize = 64;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Some((&number, message)) = bytes.split_first() else { return };
    let Some(procedure) = Procedure::from_number(u32::from(number) % 22) else { return };
    for head in [message, message.get(..HEAD_BYTES).unwrap_or(message)] {
        let mut xdr = Decoder::new(head);
        let Ok(call) = Call::decode(procedure, &mut xdr, message.len()) else { continue };
        assert_eq!(call.procedure(), procedure);
        let again = encoded(&call);
        assert_eq!(again.len(), xdr.position());
        let read_again = Call::decode(procedure, &mut Decoder::new(&again), message.len());
        assert_eq!(read_again, Ok(call));
        match call {
            Call::Write(args) => {
                let range = args.data.range(message.len()).expect("was checked");
                assert!(range.start == xdr.position() && message.get(range).is_some());
            }
            Call::Setattr(args) => {
                let _ = set_attr(&args.attributes, args.guard);
            }
            _ => {}
        }
    }
}
