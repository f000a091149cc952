//! Versions so recent that another change might leave no trace in the times.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use tombolo_core::fs::{Timestamp, WeakAttr};
use tombolo_host_runtime::lock;

/// A file that was changed less than this before its data came may change again without a trace: clocks of
/// file systems tick so far apart, and those of two hosts differ by as much.
const YOUNG: Duration = Duration::from_secs(2);

/// What the origin's clock shows at least: this host's may be set at any time.
#[derive(Debug)]
pub(crate) struct Clock {
    /// This host's.
    wall: fn() -> SystemTime,
    started: (Duration, Instant),
    /// The latest change that the origin has told of, and when.
    latest: Mutex<Option<(Duration, Instant)>>,
}

impl Clock {
    pub(crate) fn new(wall: fn() -> SystemTime) -> Self {
        Self { wall, started: (since_epoch(wall()), Instant::now()), latest: Mutex::default() }
    }

    /// For how long another change of a file might not show in its times; `None` if it would now.
    pub(crate) fn young_for(&self, version: &WeakAttr) -> Option<Duration> {
        let told = Duration::new(seconds(version.ctime), version.ctime.nanos);
        let at_origin = {
            let mut latest = lock(&self.latest);
            let now = latest.map_or(told, |(then, at)| then.saturating_add(at.elapsed()));
            if latest.is_none() || told > now {
                *latest = Some((told, Instant::now()));
            }
            now.max(told)
        };
        // One that was set forwards since the start is not believed.
        let here = since_epoch((self.wall)()).min(self.started.0.saturating_add(self.started.1.elapsed()));
        let changed = Duration::from_secs(seconds(version.ctime).max(seconds(version.mtime)));
        changed.saturating_add(YOUNG).checked_sub(at_origin.max(here)).filter(|left| !left.is_zero())
    }
}

fn seconds(time: Timestamp) -> u64 {
    u64::try_from(time.secs).unwrap_or(0)
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
