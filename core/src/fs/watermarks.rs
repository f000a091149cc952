//! Progress of write-back, reported as an attribute of the root.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Progress of changes that are answered before the origin has them, numbered from 1, across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Number of the latest change.
    pub change: u64,
    /// Number of the last change on the local disk.
    pub on_disk: u64,
    /// Number of the last change up to which the origin has everything, except attributes that it refused.
    pub at_origin: u64,
    /// Number of files and directories with attributes or other changes that the origin refused.
    pub refused: u64,
    /// Number of the last change up to which the origin has everything, except what it refused.
    pub settled: u64,
}

impl Watermarks {
    /// Name of the root's extended attribute that contains these numbers, as text. The attribute is neither
    /// listed nor stored.
    pub const XATTR: &'static [u8] = b"user.tombolo.watermarks";
}

impl fmt::Display for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change={} on_disk={} at_origin={}", self.change, self.on_disk, self.at_origin)?;
        match self.refused {
            0 => Ok(()),
            refused => write!(f, " refused={refused} settled={}", self.settled),
        }
    }
}

impl FromStr for Watermarks {
    type Err = Error;

    /// Ignores unknown words, which a later version may add.
    fn from_str(text: &str) -> Result<Self, Error> {
        let value = |key: &str| {
            let mut words = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
            words.find(|(found, _)| *found == key).and_then(|(_, value)| value.parse().ok())
        };
        let needed = |key: &str| value(key).ok_or_else(|| Error::io("invalid watermarks"));
        let at_origin = needed("at_origin")?;
        Ok(Self {
            change: needed("change")?,
            on_disk: needed("on_disk")?,
            at_origin,
            refused: value("refused").unwrap_or(0),
            settled: value("settled").unwrap_or(at_origin),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_round_trip_and_ignore_unknown_words() {
        let marks =
            Watermarks { change: 12, on_disk: 11, at_origin: u64::MAX, refused: 0, settled: u64::MAX };
        assert_eq!(marks.to_string(), "change=12 on_disk=11 at_origin=18446744073709551615");
        for marks in [marks, Watermarks { refused: 3, at_origin: 7, settled: 9, ..marks }] {
            assert_eq!(marks.to_string().parse::<Watermarks>().expect("watermarks"), marks);
        }
        let more = format!("epoch=1 {marks} new\n");
        assert_eq!(more.parse::<Watermarks>().expect("watermarks"), marks);
        for wrong in ["", "change=1 on_disk=2", "change=-1 on_disk=2 at_origin=3"] {
            assert!(wrong.parse::<Watermarks>().is_err(), "{wrong}");
        }
    }
}
