//! Arbitrary bytes as each NBD message, of both sides: a decoded request encodes to the same bytes, and
//! announced lengths are bounded.

use tombolo_wire_nbd::{
    ChunkKind, ClientOption, Greeting, HeaderStyle, NAME_BYTES_MAX, OPTION_BYTES_MAX, OptionHead,
    OptionReply, OptionReplyHead, PAYLOAD_BYTES_MAX, ReplyHead, ReplyStyle, Request, decode_block_status,
    decode_error, decode_hole,
};

/// Runs the target.
pub fn run(bytes: &[u8]) {
    options(bytes);
    for style in [HeaderStyle::Compact, HeaderStyle::Extended] {
        if let Ok(request) = Request::decode(style, bytes) {
            assert!(request.payload_bytes(style) <= u64::from(PAYLOAD_BYTES_MAX));
            let mut again = Vec::new();
            request.encode(style, &mut again);
            assert_eq!(again, bytes[..style.request_bytes()]);
        }
    }
    for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
        let Ok(Some((head, used))) = ReplyHead::decode(style, bytes) else { continue };
        assert!(used <= bytes.len());
        if let ReplyHead::Chunk { payload_bytes, .. } = head {
            assert!(payload_bytes <= PAYLOAD_BYTES_MAX + 4096);
        }
    }
    let _ = (decode_error(bytes), decode_hole(bytes));
    for kind in [ChunkKind::BLOCK_STATUS, ChunkKind::BLOCK_STATUS_EXT] {
        if let Ok((_, extents)) = decode_block_status(kind, bytes) {
            assert!(extents.len() <= bytes.len() / 8 && extents.iter().all(|extent| extent.len_bytes > 0));
        }
    }
}

fn options(bytes: &[u8]) {
    if let Some(greeting) = bytes.first_chunk() {
        let _ = Greeting::decode(greeting);
    }
    if let Some((head, data)) = bytes.split_first_chunk()
        && let Ok(head) = OptionHead::decode(head)
    {
        assert!(head.data_bytes <= OPTION_BYTES_MAX);
        match ClientOption::decode(head.code, data) {
            Ok(ClientOption::ExportName(name) | ClientOption::Info { export: name, .. }) => {
                assert!(name.len() <= NAME_BYTES_MAX);
            }
            Ok(ClientOption::MetaContext { queries, .. }) => assert!(queries.count() <= bytes.len() / 4),
            _ => {}
        }
    }
    if let Some((head, data)) = bytes.split_first_chunk()
        && let Ok(head) = OptionReplyHead::decode(head)
    {
        assert!(head.data_bytes <= OPTION_BYTES_MAX);
        let mut again = Vec::new();
        if let Ok(reply @ (OptionReply::Ack | OptionReply::Server(_))) = OptionReply::decode(&head, data) {
            reply.encode(&mut again, head.code);
        }
    }
}
