//! Round trips, and arbitrary bytes.

use crate::common::samples::{self, DOTS};
use crate::common::{Message, arbitrary, encode_outcome, encode_request};
use proptest::prelude::*;
use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage, Entry, NodeId};
use tombolo_mem::Buffer;
use tombolo_wire_vrpc::listing::{Listing, ListingWriter, budget_within, entry_bytes};
use tombolo_wire_vrpc::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn requests(header in arbitrary::header(), request in arbitrary::request()) {
        let message = encode_request(&header, &request).unwrap();
        let (header_again, again) = message.request().unwrap();
        prop_assert_eq!(header_again, header);
        prop_assert_eq!(format!("{again:?}"), format!("{request:?}"));
        prop_assert_eq!(again.kind(), request.kind());
        prop_assert_eq!(encode_request(&header, &again).unwrap(), message);
    }

    #[test]
    fn answers((kind, outcome) in arbitrary::reply()) {
        let message = encode_outcome(kind, &outcome).unwrap();
        let again = message.outcome().unwrap();
        prop_assert_eq!(format!("{again:?}"), format!("{outcome:?}"));
        prop_assert_eq!(encode_outcome(kind, &again).unwrap(), message);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_mean_something(
        kind in proptest::sample::select(Kind::ALL),
        body in proptest::array::uniform32(0u8..2),
        rest in proptest::array::uniform16(0u8..2),
        frame in proptest::collection::vec(0u8..3, 0..200),
    ) {
        let mut whole = [0; BODY_BYTES];
        whole[..32].copy_from_slice(&body);
        whole[32..].copy_from_slice(&rest);
        for kind in [kind.number(), kind.reply_number()] {
            let message = Message { kind, body: whole, frame: frame.clone() };
            if let Ok(again) = message.again() {
                prop_assert_eq!(again, message);
            }
        }
    }

    #[test]
    fn listings(
        entries in proptest::collection::vec(
            (
                arbitrary::name(),
                any::<(u64, u64)>(),
                proptest::option::of((arbitrary::entry(), proptest::option::of(arbitrary::handle()))),
            ),
            0..20,
        ),
        room_bytes in 0usize..4096,
    ) {
        let mut memory = vec![0; room_bytes];
        let mut frame = FrameBuf::new(&mut memory);
        let mut writer = ListingWriter::new(&mut frame);
        let mut taken = 0;
        for (name, (fileid, cookie), node) in &entries {
            let entry = DirEntry {
                name: name.as_bytes(),
                fileid: *fileid,
                file_type: node.map(|(entry, _)| entry.attr.file_type),
                cookie: Cookie(*cookie),
                entry: node.as_ref().map(|(entry, _)| entry),
            };
            let pushed = writer.push_with(&entry, node.and_then(|(_, handle)| handle));
            if !pushed {
                break;
            }
            taken += 1;
        }
        prop_assert_eq!(writer.len_bytes(), frame.as_bytes().len());
        let listing = Listing::new(frame.as_bytes());
        let listed: Vec<_> = listing.entries().map(Result::unwrap).collect();
        prop_assert_eq!(listed.len(), taken);
        for (listed, (name, (fileid, cookie), node)) in listed.iter().zip(&entries) {
            prop_assert_eq!(listed.name, name.as_bytes());
            prop_assert_eq!((listed.fileid, listed.cookie), (*fileid, Cookie(*cookie)));
            prop_assert_eq!(listed.entry, node.map(|(entry, _)| entry));
            prop_assert_eq!(listed.handle, node.and_then(|(_, handle)| handle));
        }
        for len in 0..frame.as_bytes().len() {
            let cut = Listing::new(&frame.as_bytes()[..len]);
            prop_assert!(cut.entries().count() <= taken.max(1));
        }
    }
}

#[test]
fn listing_ends_at_an_invalid_entry() {
    let good = samples::listing(&[(DOTS, None), (DirEntry { name: b"a", ..DOTS }, None)]);
    assert_eq!(Listing::new(good).entries().filter_map(Result::ok).count(), 2);
    for (at, byte) in [(16, 0), (17, 8), (18, 2), (19, 1), (24, b'/'), (26, 1), (32 + 16, 9)] {
        let mut bad = good.to_vec();
        bad[at] = byte;
        let entries: Vec<_> = Listing::new(&bad).entries().collect();
        assert!(entries.last().unwrap().is_err(), "byte {at}: {entries:?}");
        assert!(entries.len() <= 2);
    }
}

/// Lists for a caller until either limit is reached: the page fits the destination, and the listing fits the
/// caller's page.
#[test]
fn a_page_within_both_budgets_fits_the_place() {
    for (asked_bytes, place_bytes) in [(4096, 1000), (1000, 4096), (1 << 20, 4096)] {
        for (own_entry_bytes, align) in [(24, 8), (152, 8), (10, 1), (300, 64)] {
            for plus in [false, true] {
                let asked = DirBudget { size_bytes: asked_bytes, entry_bytes: own_entry_bytes, align, plus };
                let both = budget_within(&asked, place_bytes);
                assert!(both.entry_bytes >= entry_bytes(plus) && both.align.is_multiple_of(8));
                let mut page = DirPage::new(both);
                let entry = Entry { node: NodeId(1), attr: samples::attr() };
                let entry = DirEntry {
                    name: b"name",
                    fileid: 1,
                    file_type: None,
                    cookie: Cookie(1),
                    entry: plus.then_some(&entry),
                };
                while page.push(entry) {}
                let mut memory = vec![0; place_bytes];
                let mut frame = FrameBuf::new(&mut memory);
                let mut writer = ListingWriter::new(&mut frame);
                assert!(page.iter().all(|entry| writer.push(&entry)));
                let mut own = DirPage::new(asked);
                assert!(page.iter().all(|entry| own.push(entry)));
            }
        }
    }
}

/// Writes the head and appends the data itself, as a sender that has the data elsewhere.
#[test]
fn data_that_follow_stand_where_data_given_would() {
    for (header, request) in samples::requests() {
        let mut follows = request;
        let (Request::Write { data, .. } | Request::XattrSet { value: data, .. }) = &mut follows else {
            continue;
        };
        let Data::Inline(bytes) = *data else { continue };
        *data = Data::Follows { len_bytes: bytes.len() as u32 };
        let mut message = encode_request(&header, &follows).unwrap();
        message.frame.extend_from_slice(bytes);
        assert_eq!(message, encode_request(&header, &request).unwrap());
    }
}

/// Checks that the server cannot retain data in memory that the client reuses.
#[test]
fn retainable_flag_is_not_encoded() {
    let (header, request) = samples::first(Kind::Write);
    let Request::Write { file, mut how, data } = request else { panic!("{request:?}") };
    let plain = encode_request(&header, &request).unwrap();
    how.retainable = true;
    assert_eq!(encode_request(&header, &Request::Write { file, how, data }).unwrap(), plain);
}

#[test]
fn frames_in_shared_and_private_memory_are_identical() {
    for (header, request) in samples::requests() {
        let expected = encode_request(&header, &request).unwrap();
        let buffer = Buffer::new(FRAME_BYTES);
        let sink = buffer.sink(0..FRAME_BYTES);
        let mut frame = SinkFrame::new(&sink);
        let mut body = [0; BODY_BYTES];
        request.encode(&header, &mut body, &mut frame).unwrap();
        assert_eq!(frame.len(), expected.frame.len());
        assert_eq!(buffer.source(0..FRAME_BYTES).to_vec(frame.len()), expected.frame);
    }
}
