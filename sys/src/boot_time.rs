//! A clock that no clock setting moves, and that goes on while the machine sleeps.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The time since the machine was started.
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
