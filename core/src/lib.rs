//! Empty so far.
#![forbid(unsafe_code)]
