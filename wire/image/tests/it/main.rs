//! Round trips of sidecars, and refusal of invalid ones.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use tombolo_core::fs::Timestamp;
use tombolo_wire_image::*;

/// Returns runs built from gaps and lengths, and the block at which they end.
fn zeros(parts: &[(u64, u64)]) -> (ZeroMap, u64) {
    let (mut zeros, mut end) = (ZeroMap::default(), 0);
    for (gap, len) in parts {
        assert!(zeros.add(end + gap..end + gap + len));
        end += gap + len;
    }
    (zeros, end)
}

type FileParts = (Vec<(u64, u64)>, u64, (i64, u32), u32, bool, Option<Digest>);

fn file(name: Vec<u8>, (parts, rest, (secs, nanos), shift, is_whole, table): FileParts) -> ImageFile {
    let (zeros, end) = zeros(&parts);
    let block_bytes = 4096_u32 << shift;
    let advice = if is_whole { Advice::Whole } else { Advice::OnDemand };
    let size = end * u64::from(block_bytes) + rest;
    ImageFile { name, size, mtime: Timestamp { secs, nanos }, block_bytes, advice, zeros, table }
}

fn sidecars() -> impl Strategy<Value = Sidecar> {
    let parts = (
        vec((1..1_000_u64, 1..100_000_u64), 0..40),
        0..10_000_000_u64,
        (any::<i64>(), 0..1_000_000_000_u32),
        0..9_u32,
        any::<bool>(),
        any::<Option<Digest>>(),
    );
    let name = vec(any::<u8>().prop_filter("of a name", |byte| !matches!(byte, 0 | b'/')), 1..30);
    (btree_map(name, parts, 0..6), vec((any::<u32>(), any::<u64>(), any::<u64>()), 0..20)).prop_map(
        |(files, steps)| {
            let files: Vec<_> = files.into_iter().map(|(name, parts)| file(name, parts)).collect();
            let step = |(file, start, count): (u32, u64, u64)| {
                let index = file as usize % files.len().max(1);
                let blocks = files.get(index)?.blocks();
                let start = start.checked_rem(blocks)?;
                Some(Step { file: index as u32, start, count: count % (blocks - start) + 1 })
            };
            let trace = steps.into_iter().filter_map(step).collect();
            Sidecar { files, trace }
        },
    )
}

fn one_file() -> Sidecar {
    let parts = (vec![(3, 5), (1, 1)], 100, (1_700_000_000, 5), 0, true, Some([7; DIGEST_BYTES]));
    Sidecar {
        files: vec![file(b"memory".to_vec(), parts)],
        trace: vec![Step { file: 0, start: 8, count: 3 }],
    }
}

proptest! {
    #[test]
    fn sidecars_round_trip(sidecar in sidecars()) {
        let head = sidecar.encode().expect("it fits");
        let prefix = head.first_chunk().expect("a prefix");
        prop_assert_eq!(head_bytes(prefix), Ok(head.len()));
        prop_assert_eq!(Sidecar::decode(&head), Ok(sidecar));
    }

    #[test]
    fn sidecar_with_any_modified_byte_is_refused(at in any::<prop::sample::Index>(), by in 1..=255_u8) {
        let mut head = one_file().encode().expect("it fits");
        let at = at.index(head.len());
        head[at] ^= by;
        prop_assert!(Sidecar::decode(&head).is_err());
        prop_assert!(Sidecar::decode(&head[..at]).is_err());
    }

    #[test]
    fn arbitrary_bytes_with_valid_digest_never_panic(body in vec(any::<u8>(), 0..300)) {
        let head = sealed(&body).expect("it fits");
        if let Ok(sidecar) = Sidecar::decode(&head) {
            prop_assert_eq!(sidecar.encode(), Ok(head));
        }
    }

    #[test]
    fn runs_answer_for_each_block(parts in vec((1..4_u64, 1..4_u64), 0..12), first in 0..20_u64, len in 0..20_u64) {
        let (zeros, end) = zeros(&parts);
        let blocks: Vec<bool> = parts.iter().flat_map(|(gap, len)| {
            (0..*gap).map(|_| false).chain((0..*len).map(|_| true))
        }).collect();
        prop_assert_eq!(zeros.count(), blocks.iter().filter(|is_zero| **is_zero).count() as u64);
        let mut data = 0;
        for block in 0..end + 3 {
            let is_zero = blocks.get(block as usize).copied().unwrap_or(false);
            prop_assert_eq!(zeros.index_of(block), (!is_zero).then_some(data));
            data += u64::from(!is_zero);
        }
        let within: Vec<u64> = zeros.within(first..first + len).flatten().collect();
        let expected: Vec<u64> =
            (first..first + len).filter(|block| blocks.get(*block as usize) == Some(&true)).collect();
        prop_assert_eq!(within, expected);
    }
}

#[test]
fn impossible_values_are_neither_encoded_nor_decoded() {
    let with = |change: fn(&mut Sidecar)| {
        let mut sidecar = one_file();
        change(&mut sidecar);
        sidecar.encode()
    };
    assert!(with(|_| {}).is_ok());
    assert_eq!(with(|sidecar| sidecar.files[0].name.clear()), Err(Malformed::Value));
    assert_eq!(with(|sidecar| sidecar.files[0].name = b"a/b".to_vec()), Err(Malformed::Value));
    assert_eq!(with(|sidecar| sidecar.files[0].block_bytes = 5000), Err(Malformed::Value));
    assert_eq!(
        with(|sidecar| sidecar.files[0].size = 9 * 4096),
        Err(Malformed::Value),
        "zeroes behind the end"
    );
    assert_eq!(with(|sidecar| sidecar.trace[0].count = 4), Err(Malformed::Value), "a step behind the end");
    assert_eq!(with(|sidecar| sidecar.trace[0].file = 1), Err(Malformed::Value));
    assert_eq!(with(|sidecar| sidecar.files.push(sidecar.files[0].clone())), Err(Malformed::Value));
    let many = |count: u64| (0..count).map(|n| n * 2..n * 2 + 1);
    let mut sidecar = one_file();
    sidecar.files[0].size = 1 << 50;
    sidecar.files[0].zeros = ZeroMap::default();
    many(1_200_000).for_each(|run| assert!(sidecar.files[0].zeros.add(run)));
    assert_eq!(sidecar.encode(), Err(Malformed::TooLarge));
}

#[test]
fn foreign_sidecar_headers_are_distinguished() {
    let head = one_file().encode().expect("it fits");
    let mut prefix: [u8; PREFIX_BYTES] = *head.first_chunk().expect("a prefix");
    prefix[8] = 2;
    assert_eq!(head_bytes(&prefix), Err(Malformed::Version(2)));
    prefix[8] = 1;
    prefix[12..].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(head_bytes(&prefix), Err(Malformed::Length));
    assert_eq!(head_bytes(b"#!/bin/sh\nexit 1"), Err(Malformed::Magic));
}

#[test]
fn tables_follow_the_head_in_the_order_of_files() {
    let mut sidecar = one_file();
    let blocks = sidecar.files[0].data_blocks();
    assert_eq!((blocks, sidecar.files[0].zero_bytes()), (5, 6 * 4096));
    sidecar.files.push(ImageFile { name: b"n".to_vec(), table: None, ..sidecar.files[0].clone() });
    sidecar.files.push(ImageFile { name: b"o".to_vec(), ..sidecar.files[0].clone() });
    let len = blocks * DIGEST_BYTES as u64;
    assert_eq!(sidecar.tables(1000), [Some(1000..1000 + len), None, Some(1000 + len..1000 + 2 * len)]);
}
