//! A clock that is unaffected by changes of the system time, and advances while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the time since the machine was booted.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_goes_on() {
        let before = super::now();
        while super::now() == before {}
        assert!(super::now() > before);
    }
}
