//! Patterns of names, as shells have them (glob(7)).

use std::ffi::CStr;

/// Whether the whole of `text` matches `pattern`. `*` stands for any bytes, `/` and leading dots included.
pub fn matches(pattern: &CStr, text: &CStr) -> bool {
    // SAFETY: both are strings that end with a NUL, and are only read.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            (c"*.db", c"a.db", true),
            (c"*.db", c".db", true),
            (c"*.db", c"a.db-wal", false),
            (c"vm/*", c"vm/deep/disk.img", true),
            (c"vm/*", c"vm", false),
            (c"disk[0-9]?", c"disk7x", true),
            (c"a\\*", c"a*", true),
            (c"a\\*", c"ab", false),
            (c"*.db", c"\xff.db", true),
            (c"[", c"[", true),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern:?} {text:?}");
        }
    }
}
