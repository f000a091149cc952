#![no_main]
// A panic of the crate that knows the format is an error of that image to us; one of our own code is a
// failure.
fn aborts_on_ours() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|place| place.file().contains("/imago-")) {
            tell(panic);
        }
    }));
}
libfuzzer_sys::fuzz_target!(init: aborts_on_ours(), |bytes: &[u8]| tombolo_fuzz_targets::qcow2::run(bytes));
