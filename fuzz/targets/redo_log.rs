#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_fuzz_targets::redo_log::run(bytes));
