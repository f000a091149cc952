//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Longer than anything takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold within two minutes.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
