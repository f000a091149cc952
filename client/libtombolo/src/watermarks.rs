//! Progress of changes that a proxy acknowledges before the origin has them.

use std::thread;
use std::time::{Duration, Instant};

use tombolo_core::fs::{NodeId, Watermarks, XattrName, within};
use tombolo_core::{Answer, Error, Result, or_answer};

use crate::tree::Tree;

/// A stage that changes can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// The proxy's local disk.
    LocalDisk,
    /// The origin.
    Origin,
}

/// Maximum size of the extended attribute that holds the watermarks, in bytes.
const BYTES_MAX: usize = 4096;

/// Polling interval of a wait.
const PAUSE: Duration = Duration::from_millis(20);

impl Tree {
    /// Requests the progress of the changes of all clients of the tree. [`Error::NoAttribute`] where changes
    /// are not deferred.
    pub fn watermarks(&self) -> Answer<Watermarks> {
        let name = or_answer!(XattrName::new(Watermarks::XATTR));
        let value =
            within(self.fs().xattrs(), |xattrs| xattrs.get(&self.cx(), NodeId::ROOT, name, BYTES_MAX));
        value.map_result(|value| match value {
            Ok(text) => String::from_utf8_lossy(&text).parse(),
            Err(Error::NotSupported) => Err(Error::NoAttribute),
            Err(error) => Err(error),
        })
    }

    /// Blocks until everything changed before this call has reached `place`; fails with [`Error::TimedOut`]
    /// after `timeout` (`None`: never), and with [`Error::NotPermitted`] if the origin has everything except
    /// what it refused. Waiting does not speed anything up: the proxy sends changes to the origin within
    /// seconds.
    pub fn wait_for_changes(&self, place: Reached, timeout: Option<Duration>) -> Result<Watermarks> {
        let (begun, wanted) = (Instant::now(), self.watermarks().wait()?.change);
        loop {
            let marks = self.watermarks().wait()?;
            let reached = match place {
                Reached::LocalDisk => marks.on_disk,
                Reached::Origin => marks.at_origin,
            };
            if place == Reached::Origin && marks.refused > 0 && marks.settled.max(reached) >= wanted {
                return Err(Error::NotPermitted);
            }
            if reached >= wanted {
                return Ok(marks);
            }
            let left = timeout.map_or(PAUSE, |timeout| timeout.saturating_sub(begun.elapsed()));
            if left.is_zero() {
                return Err(Error::TimedOut);
            }
            thread::sleep(left.min(PAUSE));
        }
    }
}
