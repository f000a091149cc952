//! `NAME=VALUE` and `FLAG` settings: after a word (`/run/vm.sock,tag=src`), after `-o`, and after the `?` of
//! a URL.

use std::ops::RangeInclusive;
use std::str::FromStr;

use clap::ValueEnum;
use clap::builder::PossibleValue;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    pub text: &'a str,
    /// Text before the `=`.
    pub name: &'a str,
    /// Text after the `=`; `None` without one.
    pub value: Option<&'a str>,
}

impl<'a> From<&'a str> for Setting<'a> {
    fn from(text: &'a str) -> Self {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        Self { text, name, value }
    }
}

/// Splits `WORD[,SETTING]…` into the word and its settings. Empty text between two commas is a setting
/// without a name.
pub fn behind_word(text: &str) -> (&str, impl Iterator<Item = Setting<'_>>) {
    let (word, settings) = text.split_once(',').map_or((text, None), |(word, rest)| (word, Some(rest)));
    (word, settings.into_iter().flat_map(|settings| settings.split(',')).map(Setting::from))
}

/// Splits `[SETTING[,SETTING]…]`, as after `-o`; empty settings are skipped.
pub fn list(text: &str) -> impl Iterator<Item = Setting<'_>> {
    text.split(',').filter(|text| !text.is_empty()).map(Setting::from)
}

impl Setting<'_> {
    /// Formats `NAME=VALUE: REASON`.
    pub fn wrong(&self, reason: impl std::fmt::Display) -> String {
        format!("{}: {reason}", self.text)
    }

    /// Formats `"NAME=VALUE" is none of …`.
    pub fn is_none_of(&self, known: &str) -> String {
        format!("{:?} is none of {known}", self.text)
    }

    /// Parses the value as `T`; the error of `T` is complete by itself.
    pub fn parsed<T: FromStr<Err = String>>(&self) -> Result<T, String> {
        self.value.unwrap_or_default().parse()
    }

    /// Parses a number within bounds; `what` is the unit, as in `a number of seconds`.
    pub fn number(&self, what: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
        let number = self.value.and_then(|value| value.parse().ok()).filter(|number| range.contains(number));
        number.ok_or_else(|| self.wrong(format_args!("{what} from {} to {}", range.start(), range.end())))
    }

    /// Parses a number of bytes: `N`, or `NK`, `NM`, `NG`, `NT` for powers of 1024; `None` for other values.
    pub fn bytes(&self) -> Option<u64> {
        let value = self.value?;
        let (digits, shift) = [(['k', 'K'], 10), (['m', 'M'], 20), (['g', 'G'], 30), (['t', 'T'], 40)]
            .into_iter()
            .find_map(|(suffix, shift)| Some((value.strip_suffix(suffix)?, shift)))
            .unwrap_or((value, 0));
        digits.parse::<u64>().ok()?.checked_mul(1 << shift)
    }

    /// Parses a number of bytes within bounds.
    pub fn bytes_in(&self, range: RangeInclusive<u64>) -> Result<u64, String> {
        let bytes = self.bytes().filter(|bytes| range.contains(bytes));
        let (min, max) = range.into_inner();
        bytes.ok_or_else(|| self.wrong(format_args!("a number of bytes from {min} to {max}")))
    }

    /// Parses one of the words of `T`.
    pub fn one_of<T: ValueEnum>(&self) -> Result<T, String> {
        T::from_str(self.value.unwrap_or_default(), false).map_err(|_| {
            let choices: Vec<_> = T::value_variants().iter().filter_map(T::to_possible_value).collect();
            let choices: Vec<_> = choices.iter().map(PossibleValue::get_name).collect();
            self.wrong(format_args!("must be one of {}", choices.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_cut_at_their_first_equals_sign() {
        let (word, settings) = behind_word("/run/x,tag=a=b,,ro");
        let settings: Vec<_> = settings.map(|setting| (setting.name, setting.value)).collect();
        assert_eq!((word, &*settings), ("/run/x", &[("tag", Some("a=b")), ("", None), ("ro", None)][..]));
        assert_eq!(behind_word("x").1.count(), 0);
        assert_eq!(list(",ro,,rw").map(|setting| setting.name).collect::<Vec<_>>(), ["ro", "rw"]);
    }

    #[test]
    fn invalid_value_names_setting_and_valid_range() {
        let number = |text: &str| Setting::from(text).number("a number", 1..=64);
        assert_eq!(number("queues=64"), Ok(64));
        for text in ["queues=65", "queues=", "queues=x", "queues"] {
            assert_eq!(number(text), Err(format!("{text}: a number from 1 to 64")));
        }
        let bytes = |text: &str| Setting::from(text).bytes();
        assert_eq!((bytes("s=4096"), bytes("s=1k"), bytes("s=2G")), (Some(4096), Some(1024), Some(2 << 30)));
        assert_eq!(bytes("s=3t"), Some(3 << 40));
        assert_eq!(
            (bytes("s=M"), bytes("s=4ö"), bytes("s=99999999999999999999G"), bytes("s")),
            (None, None, None, None)
        );
        assert_eq!(Setting::from("s=1").bytes_in(2..=3), Err("s=1: a number of bytes from 2 to 3".into()));
    }
}
