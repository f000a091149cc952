//! Disks over NBD, from end to end: the tests are in `tests/it`.
#![forbid(unsafe_code)]
