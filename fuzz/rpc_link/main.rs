//! Bodies of requests and answers of ONC RPC on a link: what decodes is encoded again as the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tombolo_host::links::rpc::{Asked, Said};

fuzz_target!(|input: (u32, [u8; 48])| {
    let (number, body) = input;
    // The two kinds that there are, which are hard to hit upon, and any other.
    for kind in [1, 1 | 1 << 31, number] {
        if let Ok(asked) = Asked::decode(kind, &body) {
            assert_eq!(asked.encode(), (kind, body));
        }
        if let Ok(said) = Said::decode(kind, &body) {
            assert_eq!(said.encode(), (kind, body));
        }
    }
});
