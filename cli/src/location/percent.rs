//! Percent-encoding in URLs (RFC 3986 §2.1).

use std::fmt::Write;

/// Decodes a part of a URL; refuses zero bytes.
pub fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, after),
                _ => return Err(NOT_HEX.into()),
            },
            (b'%', _) => return Err(NOT_HEX.into()),
            (byte, after) => (byte, after),
        };
        if byte == 0 {
            return Err("zero bytes are not allowed".into());
        }
        bytes.push(byte);
        rest = after;
    }
    Ok(bytes)
}

const NOT_HEX: &str = "% must be followed by two hexadecimal digits: write %25 for a percent sign";

fn digit(character: u8) -> Option<u8> {
    char::from(character).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Encodes bytes for a URL's path or options.
pub fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/-._~!$'()*+,;:@".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_can_be_written() {
        let all: Vec<u8> = (1..=255).collect();
        assert_eq!(decoded(&encoded(&all)), Ok(all));
        assert_eq!(encoded("größe 1%?".as_bytes()), "gr%C3%B6%C3%9Fe%201%25%3F");
        assert_eq!(decoded("größe"), Ok("größe".into()), "as it stands is fine too");
    }

    #[test]
    fn a_bad_escape_is_refused() {
        for bad in ["%", "%4", "%g0", "a%00b", "100%"] {
            assert!(decoded(bad).is_err(), "{bad}");
        }
    }
}
