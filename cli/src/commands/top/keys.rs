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

/// Decodes a terminal's input. Bytes that begin no known sequence are skipped.
pub fn keys(mut sent: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    while let Some((_, rest)) = sent.split_first() {
        let known = SEQUENCES.iter().find_map(|(bytes, key)| Some((*key, sent.strip_prefix(*bytes)?)));
        keys.extend(known.map(|(key, _)| key));
        sent = known.map_or(rest, |(_, rest)| rest);
    }
    keys
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
}
