//! Identity in a peer's certificate.

use std::fmt;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// A certificate issued by a trusted CA, whose key the peer has proved to have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerCertificate {
    /// Common name of the subject; empty if it has none in plain text.
    pub subject: String,
    /// Serial number of the certificate, in hexadecimal.
    pub serial: String,
}

impl PeerCertificate {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        let subject = common_name(certificate.subject()).unwrap_or_default().to_owned();
        Some(Self { subject, serial: hexadecimal(certificate.serial()) })
    }
}

impl fmt::Display for PeerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (certificate {})", self.subject, self.serial)
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// DER tags that occur in names (X.690 §8).
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;

/// id-at-commonName, 2.5.4.3 (RFC 5280 appendix A.1).
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// Returns the last, and thus most specific, common name in the contents of a Name (RFC 5280 §4.1.2.4).
pub(crate) fn common_name(name: &[u8]) -> Option<&str> {
    let (mut name, mut found) = (Der(name), None);
    while let Some(mut relative) = name.next_of(SET) {
        while let Some(mut attribute) = relative.next_of(SEQUENCE) {
            if attribute.next_of(OBJECT_ID)?.0 == COMMON_NAME {
                let (tag, value) = attribute.next()?;
                let is_text = matches!(tag, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
                // Control characters could make different readers see different names.
                found = str::from_utf8(value).ok().filter(|text| is_text && !text.contains(char::is_control));
            }
        }
    }
    found
}

/// A sequence of DER values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (len, rest) = match first {
            0..=0x7f => (first.into(), rest),
            // No value in a name is longer than 64 KiB.
            0x81 => rest.split_first().map(|(len, rest)| (usize::from(*len), rest))?,
            0x82 => rest.split_first_chunk().map(|(len, rest)| (u16::from_be_bytes(*len).into(), rest))?,
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, value))
    }

    /// Returns the next value, if it has this tag.
    fn next_of(&mut self, tag: u8) -> Option<Self> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, value)| Self(value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        [&[tag, value.len() as u8], value].concat()
    }

    fn attribute(id: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        der(SET, &der(SEQUENCE, &[der(OBJECT_ID, id), der(tag, value)].concat()))
    }

    #[test]
    fn common_name_is_extracted_only_as_plain_text() {
        let country = attribute(&[0x55, 0x04, 0x06], PRINTABLE_STRING, b"FI");
        let of = |tag, value: &[u8]| [country.clone(), attribute(COMMON_NAME, tag, value)].concat();
        assert_eq!(common_name(&of(UTF8_STRING, "työ".as_bytes())), Some("työ"));
        assert_eq!(common_name(&of(PRINTABLE_STRING, b"alice")), Some("alice"));
        assert_eq!(common_name(&of(0x1e, b"\0a\0l")), None, "two bytes a character");
        assert_eq!(common_name(&of(UTF8_STRING, b"alice\0.evil")), None);
        assert_eq!(common_name(&of(UTF8_STRING, b"\xff")), None);
        assert_eq!(common_name(&country), None);
        let twice = [of(UTF8_STRING, b"outer"), attribute(COMMON_NAME, UTF8_STRING, b"inner")].concat();
        assert_eq!(common_name(&twice), Some("inner"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_of_names_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            common_name(&bytes);
            PeerCertificate::of(&CertificateDer::from(bytes));
        }
    }
}
