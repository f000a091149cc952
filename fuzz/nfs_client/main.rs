//! Any bytes as what a server sends to the NFS client during a short session of operations: it must not panic, must not write beside the
//! memory that a reader gave it, and each operation must come to an end: by an answer, an error, or the clock.
#![no_main]

mod session;
mod wire;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| session::run(bytes));
