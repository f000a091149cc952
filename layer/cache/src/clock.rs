//! Recent versions: two changes of a file within one tick of the origin's clock give it the same times, so a
//! version may not be trusted before the tick is over. [`Clock`] estimates the remaining time.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use tombolo_core::fs::{Timestamp, WeakAttr};
use tombolo_core::lock;

/// Age below which a changed file may change again with the same times. It allows for the resolution of file
/// systems' times (2 s on FAT, 1 s on ext3) and for a difference of two hosts' clocks.
const RECENT_MAX: Duration = Duration::from_secs(2);

/// Estimate of the origin's clock: by the times that it reports, and by this host's clock, which may be set
/// at any time.
#[derive(Debug)]
pub(crate) struct Clock {
    /// This host's clock.
    wall: fn() -> SystemTime,
    /// Time of the start, by `wall` (since the epoch) and by the monotonic clock.
    started: (Duration, Instant),
    /// Time of the latest change reported by the origin, and the time of the report.
    latest: Mutex<Option<(Duration, Instant)>>,
}

impl Clock {
    pub(crate) fn new(wall: fn() -> SystemTime) -> Self {
        Self { wall, started: (since_epoch(wall()), Instant::now()), latest: Mutex::default() }
    }

    /// Returns the remaining time in which another change of a file with this version might not show in its
    /// times; `None` if another change would show now.
    pub(crate) fn recent_for(&self, version: &WeakAttr) -> Option<Duration> {
        let told = Duration::new(seconds(version.ctime), version.ctime.nanos);
        let at_origin = {
            let mut latest = lock(&self.latest);
            let now = latest.map_or(told, |(then, at)| then.saturating_add(at.elapsed()));
            if latest.is_none() || told > now {
                *latest = Some((told, Instant::now()));
            }
            now.max(told)
        };
        // A forward step of this host's clock since the start is ignored: recent versions would count as old.
        let here = since_epoch((self.wall)()).min(self.started.0.saturating_add(self.started.1.elapsed()));
        let changed = Duration::from_secs(seconds(version.ctime).max(seconds(version.mtime)));
        changed.saturating_add(RECENT_MAX).checked_sub(at_origin.max(here)).filter(|left| !left.is_zero())
    }
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.secs).unwrap_or(0)
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
