//! Exports for programs: paths, listings, files and copies of trees over the waist, without a mount.
#![forbid(unsafe_code)]
