//! Bodies of ONC RPC requests and answers on a link: decoded bodies encode to the same bytes.

use tombolo_host_rpc::link::{CallMessage, ReplyMessage};

/// Runs the target on a kind's number and a body.
pub fn run(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first_chunk::<4>() else { return };
    let Some((&body, _)) = body.split_first_chunk::<48>() else { return };
    let number = u32::from_le_bytes(*number);
    // The two valid kinds, which are hard to find by chance, and any other.
    for kind in [1, 1 | 1 << 31, number] {
        if let Ok(asked) = CallMessage::decode(kind, &body) {
            assert_eq!(asked.encode(), (kind, body));
        }
        if let Ok(said) = ReplyMessage::decode(kind, &body) {
            assert_eq!(said.encode(), (kind, body));
        }
    }
}
