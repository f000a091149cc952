//! Patterns of names, as shells have them (glob(7)).

use std::ffi::{CStr, CString, NulError};
use std::fmt;
use std::str::FromStr;

/// Names of files, as glob(7) has them: with a `/` in it a path from the root of a tree, and else the last
/// component of one. `*` stands for `/` too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: CString,
    of_paths: bool,
}

/// Why a pattern is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// No name is empty.
    Empty,
    /// No name has it.
    Nul(NulError),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the pattern is empty",
            Self::Nul(_) => "there is a NUL in the pattern",
        })
    }
}

impl std::error::Error for PatternError {}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        match text.strip_prefix('/').unwrap_or(text) {
            "" => Err(PatternError::Empty),
            path => Ok(Self {
                text: CString::new(path).map_err(PatternError::Nul)?,
                of_paths: text.contains('/'),
            }),
        }
    }
}

impl Pattern {
    /// Whether it is compared with paths, and not with names.
    pub fn is_of_paths(&self) -> bool {
        self.of_paths
    }

    /// Whether it is this name, or path from the root without a `/` in front.
    pub fn matches(&self, text: &CStr) -> bool {
        matches(&self.text, text)
    }
}

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
