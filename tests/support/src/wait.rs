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

/// Repeats an opening for up to two minutes while it `is_in_use`. The locks of a dropped disk or store may
/// outlive it: a thread of its pool, or a child that another test is starting, still holds them.
pub fn once_free<T, E>(
    mut open: impl FnMut() -> Result<T, E>,
    is_in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let end = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(error) if is_in_use(&error) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}
