//! End-to-end tests of disks over NBD, in `tests/it`.
#![forbid(unsafe_code)]
