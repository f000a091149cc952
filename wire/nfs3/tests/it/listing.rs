//! Listings never exceed their limits, and reach them but for one entry.

use proptest::collection::vec;
use proptest::prelude::*;
use tombolo_wire_nfs3::listing::*;
use tombolo_wire_nfs3::results::{ReaddirReply, ReaddirplusReply};
use tombolo_wire_nfs3::{Cookie3, CookieVerifier, Fattr3, FileHandle, PostOpAttr, Reply, Status};
use tombolo_wire_xdr::{Decode, Decoder, Encode, Encoder};

use crate::common::fattr;

const VERIFIER: CookieVerifier = CookieVerifier(*b"verifier");
/// Length of the status before `READDIR3resok`, which its size does not include.
const STATUS_BYTES: usize = 4;

fn entry(name: &[u8]) -> DirEntry3<'_> {
    DirEntry3 { fileid: 7, name, cookie: Cookie3(8) }
}

fn plus(name: &[u8]) -> DirEntryPlus3<'_> {
    DirEntryPlus3 { entry: entry(name), attributes: None, handle: FileHandle::new(&[7; 5]) }
}

/// Runs a READDIR of at most `count` bytes and returns its results and the number of names that fit.
fn readdir(names: &[&[u8]], count: usize) -> Option<(Vec<u8>, usize)> {
    let mut bytes = Vec::new();
    let mut xdr = Encoder::new(&mut bytes);
    let mut writer = ListingWriter::readdir(&mut xdr, None, VERIFIER, count)?;
    let fit = names.iter().take_while(|name| writer.push(&entry(name))).count();
    assert_eq!((writer.len(), writer.is_empty()), (fit, fit == 0));
    writer.finish(fit == names.len());
    Some((bytes, fit))
}

#[test]
fn listing_count_below_frame_size_is_too_small() {
    assert_eq!(frame_bytes(false), 20);
    assert_eq!(frame_bytes(true), 104);
    for count in 0..20 {
        assert!(readdir(&[], count).is_none(), "{count}");
    }
    let (bytes, _) = readdir(&[], 20).unwrap();
    assert_eq!(bytes.len(), STATUS_BYTES + 20);
}

#[test]
fn listing_entry_fits_exactly_its_size() {
    for name in [&b"a"[..], b"abcd", b"abcde", &[b'x'; 255]] {
        let exact = frame_bytes(false) + entry_bytes(name.len());
        let (bytes, fit) = readdir(&[name], exact).unwrap();
        assert_eq!((bytes.len(), fit), (STATUS_BYTES + exact, 1));
        assert_eq!(readdir(&[name], exact - 1).unwrap().1, 0);
    }
    assert_eq!(entry_bytes(1), ENTRY_BYTES + ENTRY_ALIGN);
}

#[test]
fn too_small_count_writes_nothing() {
    let mut bytes = vec![1, 2, 3];
    let mut xdr = Encoder::new(&mut bytes);
    assert!(ListingWriter::readdir(&mut xdr, None, VERIFIER, 10).is_none());
    assert!(ListingWriter::readdirplus(&mut xdr, None, VERIFIER, 8192, 10).is_none());
    // A begun listing can be removed as well.
    let at = xdr.position();
    let mut writer = ListingWriter::readdir(&mut xdr, None, VERIFIER, 20).unwrap();
    assert!(!writer.push(&entry(b"a")));
    xdr.truncate(at);
    ReaddirReply::Failed(Status::TooSmall, None).encode(&mut xdr);
    assert_eq!(bytes, [1, 2, 3, 0, 0, 0x27, 0x15, 0, 0, 0, 0]);
}

#[test]
fn dircount_excludes_attributes_and_handles() {
    let fit = |dircount| {
        let mut bytes = Vec::new();
        let mut xdr = Encoder::new(&mut bytes);
        let mut writer = ListingWriter::readdirplus(&mut xdr, None, VERIFIER, dircount, 1 << 20).unwrap();
        (0..100).take_while(|_| writer.push_plus(&plus(b"name"))).count()
    };
    assert_eq!(fit(entry_bytes(4) * 10), 10);
    assert_eq!(fit(entry_bytes(4) * 10 - 1), 9);
    assert_eq!(fit(0), 0);
    assert_eq!(fit(u32::MAX as usize), 100);
}

#[test]
fn attributes_and_handle_add_at_most_160_bytes() {
    assert_eq!(plus_bytes(true, Some(64)), 160);
    assert_eq!(plus_bytes(false, None), 8);
    assert_eq!(plus_bytes(false, Some(0)), 12);
    assert_eq!(plus_bytes(false, Some(5)), 20);
}

fn attributes() -> impl Strategy<Value = PostOpAttr> {
    let numbers = any::<(u32, u64, u64)>();
    proptest::option::of(numbers.prop_map(|(mode, size, fileid)| Fattr3 { mode, size, fileid, ..fattr() }))
}

fn entries() -> impl Strategy<Value = Vec<DirEntry3<'static>>> {
    let entry = (any::<u64>(), vec(any::<u8>(), 0..=40), any::<u64>());
    let entry = entry.prop_map(|(fileid, name, cookie)| DirEntry3 {
        fileid,
        name: name.leak(),
        cookie: Cookie3(cookie),
    });
    vec(entry, 0..6)
}

fn entries_plus() -> impl Strategy<Value = Vec<DirEntryPlus3<'static>>> {
    let handle = vec(any::<u8>(), 0..=64).prop_map(|bytes| FileHandle::new(bytes.leak()).unwrap());
    let rest = vec((attributes(), proptest::option::of(handle)), 6);
    (entries(), rest).prop_map(|(entries, rest)| {
        let both = entries.into_iter().zip(rest);
        both.map(|(entry, (attributes, handle))| DirEntryPlus3 { entry, attributes, handle }).collect()
    })
}

proptest! {
    #[test]
    fn readdir_fills_its_count_maximally(
        dir in attributes(),
        entries in entries(),
        count in 0usize..600,
    ) {
        let mut bytes = Vec::new();
        let mut xdr = Encoder::new(&mut bytes);
        let Some(mut writer) = ListingWriter::readdir(&mut xdr, dir.as_ref(), VERIFIER, count) else {
            prop_assert!(count < frame_bytes(dir.is_some()));
            prop_assert!(bytes.is_empty());
            return Ok(());
        };
        let fit = entries.iter().take_while(|entry| writer.push(entry)).count();
        writer.finish(fit == entries.len());
        prop_assert!(bytes.len() <= STATUS_BYTES + count);
        if let Some(next) = entries.get(fit) {
            prop_assert!(bytes.len() + entry_bytes(next.name.len()) > STATUS_BYTES + count);
        }
        let reply = ReaddirReply::decode(&mut Decoder::new(&bytes)).unwrap();
        let Reply::Ok(listing) = reply else { panic!() };
        prop_assert_eq!((listing.dir_attributes, listing.verifier), (dir, VERIFIER));
        prop_assert_eq!(listing.eof, fit == entries.len());
        prop_assert!(listing.entries.into_iter().eq(entries.into_iter().take(fit)));
    }

    #[test]
    fn readdirplus_fills_both_counts_maximally(
        dir in attributes(),
        entries in entries_plus(),
        dircount in 0usize..300,
        maxcount in 0usize..1000,
    ) {
        let mut bytes = Vec::new();
        let mut xdr = Encoder::new(&mut bytes);
        let Some(mut writer) =
            ListingWriter::readdirplus(&mut xdr, dir.as_ref(), VERIFIER, dircount, maxcount)
        else {
            prop_assert!(maxcount < frame_bytes(dir.is_some()));
            return Ok(());
        };
        let fit = entries.iter().take_while(|entry| writer.push_plus(entry)).count();
        writer.finish(fit == entries.len());
        let dir_bytes: usize = entries[..fit].iter().map(|plus| entry_bytes(plus.entry.name.len())).sum();
        prop_assert!(bytes.len() <= STATUS_BYTES + maxcount && dir_bytes <= dircount);
        if let Some(next) = entries.get(fit) {
            let name_bytes = entry_bytes(next.entry.name.len());
            let handle_len = next.handle.map(|handle| handle.as_bytes().len());
            let all_bytes = name_bytes + plus_bytes(next.attributes.is_some(), handle_len);
            prop_assert!(
                bytes.len() + all_bytes > STATUS_BYTES + maxcount || dir_bytes + name_bytes > dircount
            );
        }
        let reply = ReaddirplusReply::decode(&mut Decoder::new(&bytes)).unwrap();
        let Reply::Ok(listing) = reply else { panic!() };
        prop_assert!(listing.entries.into_iter().eq(entries.into_iter().take(fit)));
    }
}
