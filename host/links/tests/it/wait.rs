//! Waiting, with a time-out that fails the test.

use std::time::{Duration, Instant};

/// Far more than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    found(what, || holds().then_some(()));
}

/// Waits until there is a value.
pub fn found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = look() {
            return value;
        }
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}
