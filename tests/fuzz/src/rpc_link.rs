//! Bodies of requests and answers of ONC RPC on a link: what decodes is encoded again as the same bytes.

use tombolo_host_rpc::link::{CallMessage, ReplyMessage};

/// Runs the target: a kind's number, then a body.
pub fn run(bytes: &[u8]) {
    let Some((number, body)) = bytes.split_first_chunk::<4>() else { return };
    let Some((&body, _)) = body.split_first_chunk::<48>() else { return };
    let number = u32::from_le_bytes(*number);
    // The two kinds that there are, which are hard to hit upon, and any other.
    for kind in [1, 1 | 1 << 31, number] {
        if let Ok(asked) = CallMessage::decode(kind, &body) {
            assert_eq!(asked.encode(), (kind, body));
        }
        if let Ok(said) = ReplyMessage::decode(kind, &body) {
            assert_eq!(said.encode(), (kind, body));
        }
    }
}
