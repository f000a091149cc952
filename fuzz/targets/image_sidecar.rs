#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tombolo_fuzz_targets::image_sidecar::run(bytes));
