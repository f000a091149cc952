//! Key bindings, as in less(1).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Quit,
    LineUp,
    LineDown,
    PageUp,
    PageDown,
    Top,
    Bottom,
}

/// Byte sequences of terminals (ECMA-48, with xterm's extensions).
const SEQUENCES: &[(&[u8], Key)] = &[
    (b"q", Key::Quit),
    (b"Q", Key::Quit),
    (b"k", Key::LineUp),
    (b"\x1b[A", Key::LineUp),
    (b"\x1bOA", Key::LineUp),
    (b"j", Key::LineDown),
    (b"\x1b[B", Key::LineDown),
    (b"\x1bOB", Key::LineDown),
    (b"b", Key::PageUp),
    (b"\x1b[5~", Key::PageUp),
    (b" ", Key::PageDown),
    (b"\x1b[6~", Key::PageDown),
    (b"g", Key::Top),
    (b"\x1b[H", Key::Top),
    (b"\x1b[1~", Key::Top),
    (b"G", Key::Bottom),
    (b"\x1b[F", Key::Bottom),
    (b"\x1b[4~", Key::Bottom),
];

/// Decodes a terminal's input. Other keys are skipped.
pub fn keys(mut sent: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while !sent.is_empty() {
        let known = SEQUENCES.iter().find_map(|(bytes, key)| Some((*key, sent.strip_prefix(*bytes)?)));
        keys.extend(known.map(|(key, _)| key));
        sent = known.map_or_else(|| after_unknown(sent), |(_, rest)| rest);
    }
    keys
}

/// Skips the byte or escape sequence at the start: SS3 is followed by one byte, CSI by all up to the first
/// between `@` and `~` (ECMA-48 §5.4).
fn after_unknown(sent: &[u8]) -> &[u8] {
    match sent {
        [0x1b, b'O', _, rest @ ..] => rest,
        [0x1b, b'[', rest @ ..] => {
            rest.splitn(2, |byte| matches!(byte, b'@'..=b'~')).nth(1).unwrap_or_default()
        }
        [_, rest @ ..] => rest,
        [] => sent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_alone_and_together() {
        assert_eq!(keys(b"q"), [Key::Quit]);
        assert_eq!(
            keys(b"jj\x1b[A\x1bOBx\x1b[6~"),
            [Key::LineDown, Key::LineDown, Key::LineUp, Key::LineDown, Key::PageDown]
        );
        assert_eq!(keys(b"\x1b"), []);
    }

    #[test]
    fn unknown_escape_sequences_are_skipped_whole() {
        // Keypad 1, Insert, Shift-Tab, Ctrl-Up, and one that is cut off.
        for unknown in [&b"\x1bOq"[..], b"\x1b[2~", b"\x1b[Z", b"\x1b[1;5A", b"\x1b[1"] {
            assert_eq!(keys(unknown), [], "{unknown:?}");
        }
        assert_eq!(keys(b"\x1bOq\x1b[1;5Aj\x1b[A"), [Key::LineDown, Key::LineUp]);
    }
}
