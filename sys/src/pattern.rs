//! Patterns of names, in shell syntax (glob(7)).

use std::ffi::{CStr, CString, NulError};
use std::fmt;
use std::str::FromStr;

/// A glob(7) pattern, except that `*`, `?` and `[…]` also match `/` and leading dots. With a `/` in it, it
/// applies to paths from the root of a tree, otherwise to their last components. A leading `/` is not part of
/// the text: `/a.db` matches at the root only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: CString,
    of_paths: bool,
}

/// The reason why a pattern is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatternError {
    /// The pattern is empty.
    Empty,
    /// The pattern contains a NUL.
    Nul(NulError),
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "the pattern is empty",
            Self::Nul(_) => "the pattern contains a NUL",
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
    /// Returns `true` if the pattern applies to paths rather than names.
    pub fn is_of_paths(&self) -> bool {
        self.of_paths
    }

    /// Returns `true` if the pattern matches `text`: a path from the root, without a leading `/`, if it
    /// [is of paths](Self::is_of_paths), otherwise a name.
    pub fn matches(&self, text: &CStr) -> bool {
        matches(&self.text, text)
    }
}

/// Returns `true` if the whole of `text` matches `pattern`, in which `*`, `?` and `[…]` also match `/` and
/// leading dots.
pub fn matches(pattern: &CStr, text: &CStr) -> bool {
    // SAFETY: both are NUL-terminated strings, and are only read.
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
