//! Messages recorded when version 1 was finalised. Every later version decodes them, and encodes the same
//! messages to the same bytes.

use std::collections::BTreeSet;

use crate::common::{Message, encode_all, hex, samples, unhex};
use tombolo_wire_vrpc::{Kind, REPLY};

const V1: &str = include_str!("../corpus/v1.txt");
/// Version 1's messages with handles of nodes, added for sessions that outlive their links.
const HANDLES: &str = include_str!("../corpus/v1-handles.txt");
/// Version 1's messages about change notifications.
const CHANGES: &str = include_str!("../corpus/v1-changes.txt");

/// Version 1's messages about versions of nodes.
const VERSIONS: &str = include_str!("../corpus/v1-versions.txt");

/// Version 1's messages about volatile files.
const VOLATILE: &str = include_str!("../corpus/v1-volatile.txt");

/// Version 1's messages about a node's last name.
const LAST_NAMES: &str = include_str!("../corpus/v1-last-names.txt");

/// Version 1's quiet requests, and answers with prompt openings.
const QUIET: &str = include_str!("../corpus/v1-quiet.txt");

/// Returns kind, body and frame, each in hexadecimal, behind a label.
fn read(recording: &str) -> Vec<(String, Message)> {
    recording
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [name, kind, body, frame] = words[..] else { panic!("{line}") };
            let kind = u32::from_str_radix(kind, 16).expect("a kind");
            let body = unhex(body).try_into().expect("48 bytes");
            let frame = if frame == "-" { Vec::new() } else { unhex(frame) };
            (name.to_owned(), Message { kind, body, frame })
        })
        .collect()
}

fn recorded() -> Vec<(String, Message)> {
    [V1, HANDLES, CHANGES, VERSIONS, VOLATILE, LAST_NAMES, QUIET].into_iter().flat_map(read).collect()
}

fn line(message: &Message) -> String {
    let kind = Kind::from_number(message.kind & !REPLY).expect("a kind");
    let word = if message.kind & REPLY == 0 { "request" } else { "answer" };
    let frame = if message.frame.is_empty() { "-".to_owned() } else { hex(&message.frame) };
    format!("{word}:{kind:?} {:08x} {} {frame}\n", message.kind, hex(&message.body))
}

fn from_samples() -> [Vec<Message>; 7] {
    let plain = (samples::requests(), samples::replies());
    let (handles, changes) = (samples::with_handles(), samples::with_changes());
    let (versions, volatile) = (samples::with_versions(), samples::with_volatile());
    let (last_names, quiet) = (samples::with_last_names(), samples::with_quiet());
    [plain, handles, changes, versions, volatile, last_names, quiet].map(|both| encode_all(&both))
}

#[test]
fn recorded_messages_decode_and_encode_to_the_same_bytes() {
    for (name, message) in recorded() {
        assert_eq!(message.again().as_ref(), Ok(&message), "{name}");
    }
}

#[test]
fn recorded_messages_keep_their_meaning() {
    let recorded: Vec<Message> = recorded().into_iter().map(|(_, message)| message).collect();
    let now = from_samples().concat();
    for (recorded, now) in recorded.iter().zip(&now) {
        assert_eq!(recorded, now);
    }
    // Additions of a later version are recorded in a file of their own.
    assert_eq!(recorded.len(), now.len());
}

#[test]
fn every_kind_was_recorded_both_ways() {
    let kinds: BTreeSet<u32> = recorded().iter().map(|(_, message)| message.kind).collect();
    for &kind in Kind::ALL {
        assert!(kinds.contains(&kind.number()), "{kind:?}");
        assert!(kinds.contains(&kind.reply_number()), "answer to {kind:?}");
    }
}

/// Prints the contents of the recording: `cargo test -p tombolo-wire-vrpc --test it recorded -- --ignored
/// --nocapture`.
#[test]
#[ignore = "prints a new recording; the one of a version that was released is never replaced"]
#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn record() {
    for samples in from_samples() {
        println!("# a file:");
        print!("{}", samples.iter().map(line).collect::<String>());
    }
}
