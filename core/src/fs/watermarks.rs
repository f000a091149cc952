//! How far changes that are kept back have come, as an attribute of the root says it.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// How far changes have come that are answered before the origin has them. Changes are counted from 1, over
/// restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// The latest change.
    pub change: u64,
    /// The local disk has all up to this one.
    pub on_disk: u64,
    /// The origin has all up to this one, but for what it has refused.
    pub at_origin: u64,
    /// How many files and directories have attributes that the origin has refused.
    pub refused: u64,
}

impl Watermarks {
    /// The extended attribute of the root whose value they are, as text. It is neither listed nor stored.
    pub const XATTR: &'static [u8] = b"user.tombolo.watermarks";
}

impl fmt::Display for Watermarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "change={} on_disk={} at_origin={}", self.change, self.on_disk, self.at_origin)?;
        match self.refused {
            0 => Ok(()),
            refused => write!(f, " refused={refused}"),
        }
    }
}

impl FromStr for Watermarks {
    type Err = Error;

    /// Words that it does not know are passed over: a later version may say more.
    fn from_str(text: &str) -> Result<Self, Error> {
        let value = |key: &str| {
            let mut words = text.split_ascii_whitespace().filter_map(|word| word.split_once('='));
            words.find(|(found, _)| *found == key).and_then(|(_, value)| value.parse().ok())
        };
        let needed = |key: &str| value(key).ok_or_else(|| Error::io("these are no watermarks"));
        let refused = value("refused").unwrap_or(0);
        Ok(Self {
            change: needed("change")?,
            on_disk: needed("on_disk")?,
            at_origin: needed("at_origin")?,
            refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_also_with_more_words() {
        let marks = Watermarks { change: 12, on_disk: 11, at_origin: u64::MAX, refused: 0 };
        assert_eq!(marks.to_string(), "change=12 on_disk=11 at_origin=18446744073709551615");
        for marks in [marks, Watermarks { refused: 3, ..marks }] {
            assert_eq!(marks.to_string().parse::<Watermarks>().expect("watermarks"), marks);
        }
        let more = format!("epoch=1 {marks} new\n");
        assert_eq!(more.parse::<Watermarks>().expect("watermarks"), marks);
        for wrong in ["", "change=1 on_disk=2", "change=-1 on_disk=2 at_origin=3"] {
            assert!(wrong.parse::<Watermarks>().is_err(), "{wrong}");
        }
    }
}
