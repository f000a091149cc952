//! Arbitrary bytes as a FUSE request: the decoder may refuse them, but must neither panic nor read out of
//! bounds.

use tombolo_wire_fuse::init::{self, Capabilities, Preferences};
use tombolo_wire_fuse::layout::header::InHeader;
use tombolo_wire_fuse::{Extent, Request};
use zerocopy::FromBytes;

/// Runs the target.
pub fn run(bytes: &[u8]) {
    let Ok((header, _)) = InHeader::read_from_prefix(bytes) else { return };
    let Ok(extent) = Extent::of(&header) else { return };
    let private = bytes.get(..extent.private_bytes).unwrap_or(bytes);
    for agreed in [Capabilities::empty(), Capabilities::all()] {
        let Ok(decoded) = Request::decode(private, agreed) else { continue };
        let groups = decoded.extensions.groups().count();
        assert!(groups <= bytes.len() / 4);
        match decoded.request {
            Request::BatchForget(forgets) => assert!(forgets.iter().count() <= bytes.len() / 16),
            Request::Init(offer) => {
                let preferences = Preferences {
                    capabilities: Capabilities::all(),
                    max_write_bytes: 1 << 20,
                    max_readahead_bytes: 1 << 20,
                    max_background: 64,
                    time_granularity_ns: 1,
                    map_alignment_log2: 12,
                    max_stack_depth: 1,
                    request_timeout_s: 30,
                };
                let _ = init::negotiate(&offer, &preferences);
            }
            _ => {}
        }
    }
}
