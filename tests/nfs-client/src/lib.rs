//! The NFS client against servers good and bad.
#![forbid(unsafe_code)]
