//! State files that are damaged, of another version, or of another tree.

use proptest::prelude::*;
use tombolo_layer_replies as replies;
use tombolo_layer_replies::{OpenError, Options};
use tombolo_test_support::Session;

use crate::crash::{Mood, Next, Server};
use crate::fixture::{Bottom, request, start_mkdir};

/// Position of the header's checksum, and the range that it covers (docs/formats/replies.md).
const CHECKSUM: std::ops::Range<usize> = 12..16;
const CHECKED: std::ops::Range<usize> = 16..136;
const BOOT: usize = 32;
const VOLUME: usize = 48;
const INTENTS: usize = 4096;
const INTENT_BYTES: usize = 1024;
/// Number of outcome slots: 256 more than entries.
const OUTCOMES: u32 = 16_384 + 256;
const OUTCOME_BYTES: usize = 176;

fn mkdir(at: &Session, text: &str) -> bool {
    at.mkdir(text).is_ok()
}

/// Creates a server that has answered one request and was killed during another.
fn server() -> (Server, Session, Session) {
    let server = Server::new(Bottom::Memory);
    let (answered, unanswered) = (request(&server), request(&server));
    assert!(mkdir(&answered, "answered"));
    server.silence.set(Mood::Performs);
    drop(start_mkdir(&unanswered, "unanswered"));
    (server, answered, unanswered)
}

/// Opens a copy of the state file that was changed.
fn with_change(server: &Server, change: impl FnOnce(&mut Vec<u8>)) -> Result<Next, OpenError> {
    let path = server.copy("changed");
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    Next::over(server.bottom.clone(), &path, &Options::default())
}

fn seal(bytes: &mut [u8]) {
    let checksum = crc32c::crc32c(&bytes[CHECKED]);
    bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn the_file_is_laid_out_as_it_is_documented() {
    let (server, ..) = server();
    let bytes = std::fs::read(&server.state).unwrap();
    assert_eq!(&bytes[..8], b"TMBLRPLY");
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((number(8), number(16), number(20), number(24), number(28)), (2, 1024, 1024, OUTCOMES, 176));
    assert_eq!(number(CHECKSUM.start), crc32c::crc32c(&bytes[CHECKED]));
    assert_eq!(bytes.len(), INTENTS + 1024 * INTENT_BYTES + OUTCOMES as usize * OUTCOME_BYTES);
    let slots = bytes[INTENTS..].chunks(INTENT_BYTES).take(1024);
    let intent = slots.filter(|slot| slot[0] == 1).collect::<Vec<_>>();
    assert_eq!(intent.len(), 1, "one is under way");
    let name_len = usize::from(u16::from_le_bytes([intent[0][392], intent[0][393]]));
    assert_eq!(&intent[0][416..416 + name_len], b"unanswered");
    let checksum = u32::from_le_bytes(intent[0][4..8].try_into().unwrap());
    assert_eq!(checksum, crc32c::crc32c(&intent[0][8..416 + name_len]));
    let outcomes = bytes[INTENTS + 1024 * INTENT_BYTES..].chunks(OUTCOME_BYTES).filter(|slot| slot[0] == 2);
    assert_eq!(outcomes.count(), 1);
}

#[test]
fn newer_state_file_is_refused_unchanged() {
    let (server, ..) = server();
    let path = server.copy("newer");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[8] = 3;
    std::fs::write(&path, &bytes).unwrap();
    let refused = replies::open(server.bottom.clone(), &Options::default(), &path).map(drop);
    assert!(matches!(refused, Err(OpenError::Newer { found: 3, .. })), "{refused:?}");
    assert!(std::fs::read(&path).unwrap() == bytes);
}

#[test]
fn older_state_file_is_set_aside() {
    let (server, answered, _) = server();
    let next = with_change(&server, |bytes| bytes[8] = 1).expect("a new file");
    assert_eq!(next.reconciled(), (0, 0, 0));
    assert!(!mkdir(&next.again(&answered), "answered"), "nothing is known");
    let aside = std::fs::read(server.folder.path().join("changed.older")).expect("the old file was kept");
    assert_eq!(aside[8], 1);
    assert_eq!(std::fs::read(server.folder.path().join("changed")).expect("a new file")[8], 2);
}

#[test]
fn state_file_with_damaged_header_is_set_aside() {
    let (server, answered, _) = server();
    let changes: [fn(&mut Vec<u8>); 5] = [
        |bytes| bytes[0] ^= 1,
        |bytes| bytes[CHECKSUM.start] ^= 1,
        |bytes| bytes[BOOT] ^= 1,
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.truncate(10),
    ];
    for change in changes {
        let next = with_change(&server, change).expect("a new file");
        assert_eq!(next.reconciled(), (0, 0, 0));
        assert!(!mkdir(&next.again(&answered), "answered"), "nothing is known");
        let aside = server.folder.path().join("changed.damaged");
        std::fs::remove_file(aside).expect("the damaged file was kept");
    }
}

/// Checks this with a directory in place of the backup name; the cause could also be a full file system.
#[test]
fn server_starts_although_damaged_file_stays() {
    let (server, answered, _) = server();
    let aside = server.folder.path().join("changed.damaged");
    std::fs::create_dir(&aside).unwrap();
    let next = with_change(&server, |bytes| bytes[0] ^= 1).expect("a new file");
    assert!(!mkdir(&next.again(&answered), "answered"), "nothing is known");
    assert!(aside.is_dir());
}

/// Checks records with times set back: the first outcome seems to be a day later than the second.
#[test]
fn a_clock_that_was_set_back_makes_nothing_old() {
    let server = Server::new(Bottom::Memory);
    let (first, second) = (request(&server), request(&server));
    assert!(mkdir(&first, "first") && mkdir(&second, "second"));
    let next = with_change(&server, |bytes| {
        let slots = bytes[INTENTS + 1024 * INTENT_BYTES..].chunks_mut(OUTCOME_BYTES);
        let slot =
            slots.filter(|slot| slot[0] == 2).min_by_key(|slot| slot[8..16].to_vec()).expect("an outcome");
        let secs = i64::from_le_bytes(slot[64..72].try_into().unwrap());
        slot[64..72].copy_from_slice(&(secs + 86_400).to_le_bytes());
        let checksum = crc32c::crc32c(&slot[8..]);
        slot[4..8].copy_from_slice(&checksum.to_le_bytes());
    });
    let next = next.expect("the file is good");
    for (at, text) in [(first, "first"), (second, "second")] {
        assert!(mkdir(&next.again(&at), text), "{text}");
    }
}

#[test]
fn state_file_of_other_boot_or_tree_is_ignored() {
    let (server, answered, _) = server();
    for at in [BOOT, VOLUME] {
        let next = with_change(&server, |bytes| {
            bytes[at] ^= 1;
            seal(bytes);
        });
        let next = next.expect("a new file");
        assert_eq!(next.reconciled(), (0, 0, 0));
        assert!(!mkdir(&next.again(&answered), "answered"), "nothing is known");
    }
    let (elsewhere, _tree) = Bottom::Memory.export();
    let next = Next::over(elsewhere, &server.copy("elsewhere"), &Options::default()).expect("a new file");
    assert_eq!(next.reconciled(), (0, 0, 0));
}

#[test]
fn a_record_that_is_not_whole_is_not_used() {
    let (server, answered, unanswered) = server();
    let next = with_change(&server, |bytes| {
        let slots = bytes[INTENTS..].chunks_mut(INTENT_BYTES).take(1024);
        slots.filter(|slot| slot[0] == 1).for_each(|slot| slot[420] ^= 0x40);
    });
    let next = next.expect("the rest is good");
    assert_eq!(next.reconciled(), (0, 0, 0));
    assert!(mkdir(&next.again(&answered), "answered"), "this one is whole");
    assert!(!mkdir(&next.again(&unanswered), "unanswered"), "this one is not known");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks arbitrary damage: no panic and no wrong reply; at worst nothing is known.
    #[test]
    fn no_damage_makes_a_wrong_answer(
        blows in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..20)
    ) {
        let (server, answered, unanswered) = server();
        let next = with_change(&server, |bytes| {
            let used: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            for (at, value, where_it_hurts) in &blows {
                let at = if *where_it_hurts { *at.get(&used) } else { at.index(bytes.len()) };
                bytes[at] = *value;
            }
        });
        match next {
            Ok(next) => {
                let (done, not_done, ambiguous) = next.reconciled();
                prop_assert!(done + not_done <= 1 && ambiguous == 0);
                // Both exist: an unknown key gets the plain reply, that it exists.
                mkdir(&next.again(&answered), "answered");
                mkdir(&next.again(&unanswered), "unanswered");
                prop_assert!(mkdir(&next, "new"));
            }
            Err(error) => prop_assert!(matches!(error, OpenError::Newer { .. }), "{}", error),
        }
    }
}
