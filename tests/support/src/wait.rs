//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Returns the maximum wait: longer than anything takes on the slowest machine, unless a planted bug is on,
/// with which a wait in vain is expected.
fn patience() -> Duration {
    let is_planted = std::env::var("TOMBOLO_PLANTED").is_ok_and(|bug| bug != "none");
    Duration::from_secs(if is_planted { 20 } else { 120 })
}

/// Waits until a condition holds.
///
/// # Panics
/// If it does not hold within two minutes, or with a planted bug within 20 seconds.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + patience();
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
    let end = Instant::now() + patience();
    loop {
        match open() {
            Err(error) if is_in_use(&error) && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}
