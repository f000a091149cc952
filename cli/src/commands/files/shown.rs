//! Formatting of names, modes, sizes and times.

use tombolo_core::fs::{Attr, FileType, Timestamp};

/// Formats a name or path: control and invisible characters, backslashes and invalid text are escaped.
pub fn name(bytes: &[u8]) -> String {
    let mut shown = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter.is_control() || letter == '\\' || is_invisible(letter) {
                shown.extend(letter.escape_default());
            } else {
                shown.push(letter);
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// Returns `true` for zero-width spaces and joiners, marks that change the text direction, and line breaks
/// that are not control characters.
fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

pub fn file_type(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::BlockDevice => "block device",
        FileType::CharDevice => "character device",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
    }
}

/// Formats type and mode like ls(1).
pub fn mode(attr: &Attr) -> String {
    let kind = match attr.file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let bits = attr.mode.bits();
    let mut shown = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let has = |bit: u32| bits >> shift & bit != 0;
        shown.push(if has(4) { 'r' } else { '-' });
        shown.push(if has(2) { 'w' } else { '-' });
        shown.push(match (bits & special != 0, has(1)) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

/// Formats bytes in the largest unit with a value of at least one.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = None;
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = Some(name);
    }
    unit.map_or_else(|| format!("{bytes} bytes"), |unit| format!("{value:.1} {unit}"))
}

/// Formats bytes like ls(1) and du(1) with -h: at most four digits, rounded up, and a letter for the power
/// of 1024.
pub fn short_size(bytes: u64) -> String {
    let mut unit = 1_u128;
    let bytes = u128::from(bytes);
    for letter in ["", "K", "M", "G", "T", "P", "E"] {
        let tenths = (bytes * 10).div_ceil(unit);
        let whole = bytes.div_ceil(unit);
        if unit > 1 && tenths < 100 {
            return format!("{}.{}{letter}", tenths / 10, tenths % 10);
        }
        if whole < 1024 {
            return format!("{whole}{letter}");
        }
        unit *= 1024;
    }
    // Not reached: 64-bit numbers are below 16 EiB.
    bytes.to_string()
}

/// Formats a time as year to second, in UTC.
pub fn time(time: Timestamp) -> String {
    let (date, clock) = date_and_clock(time);
    format!("{date} {clock}Z")
}

/// Formats a time with nanoseconds, as in RFC 3339.
pub fn exact_time(time: Timestamp) -> String {
    let (date, clock) = date_and_clock(time);
    format!("{date}T{clock}.{:09}Z", time.nanos)
}

fn date_and_clock(time: Timestamp) -> (String, String) {
    let (days, second) = (time.secs.div_euclid(86_400), time.secs.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), format!("{hour:02}:{minute:02}:{second:02}"))
}

/// Converts days since 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that
/// the leap day is the last one; 400 years have 146,097 days.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days.saturating_add(719_468);
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(name("größe 1".as_bytes()), "größe 1");
        assert_eq!(name(b"a\x1b[2J\n\\"), "a\\u{1b}[2J\\n\\\\");
        assert_eq!(name(b"\xff\xfe"), "\\xff\\xfe");
        assert_eq!(name("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |secs| time(Timestamp { secs, nanos: 5 });
        assert_eq!(at(0), "1970-01-01 00:00:00Z");
        assert_eq!(at(-1), "1969-12-31 23:59:59Z");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00Z");
        assert_eq!(exact_time(Timestamp { secs: 0, nanos: 5 }), "1970-01-01T00:00:00.000000005Z");
        time(Timestamp { secs: i64::MIN, nanos: 0 });
        time(Timestamp { secs: i64::MAX, nanos: 0 });
    }

    #[test]
    fn sizes_have_three_digits_at_most() {
        assert_eq!((size(1023), size(3 << 20)), ("1023 bytes".into(), "3.0 MiB".into()));
        assert_eq!(size(u64::MAX), "16.0 EiB");
        for (bytes, short) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 << 10, "10K"),
            ((1 << 20) - 1, "1.0M"),
            (1 << 20, "1.0M"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short_size(bytes), short, "{bytes}");
        }
    }
}
