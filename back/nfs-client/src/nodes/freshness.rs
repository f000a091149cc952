//! Lifetimes of cached attributes.

use std::cmp::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tombolo_core::fs::{Attr, FileType, WeakAttr};

use crate::options::AttributeTimes;

/// When a name was last taken away of which it was not known what it led to: a file has a link less, and it
/// may be any that had more than one.
#[derive(Debug, Default)]
pub(super) struct UnknownRemoval(Mutex<Option<Instant>>);

impl UnknownRemoval {
    /// Such a name was taken away by now.
    pub(super) fn happened(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    fn is_told_by(&self, freshness: &Freshness) -> bool {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_none_or(|last| freshness.is_since(last))
    }
}

/// Attributes, and until when they are believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freshness {
    attr: Attr,
    /// When the call that brought them was made, or one that brought no others.
    asked: Instant,
    /// When they came. A call that was made before that may have been carried out before or after what they
    /// tell of.
    came: Instant,
    /// How long they are believed from then on.
    lifetime: Duration,
    /// They are to be asked for again, whatever their age.
    doubtful: bool,
}

impl Freshness {
    /// Attributes that were asked for at `asked`.
    pub(super) fn new(attr: Attr, asked: Instant, times: &AttributeTimes) -> Self {
        Self { attr, asked, came: asked, lifetime: span(times, attr.file_type).0, doubtful: false }
    }

    /// Takes in attributes that were asked for at `asked` and came `now`. Those of a call that was made after
    /// what is known came are news. Others may be older: replies overtake each other, and a server does what
    /// it has at one time in any order. Then its own time of change tells; where that is the same for both,
    /// the file is as long as either says, and asked about again.
    pub(super) fn learn(&mut self, attr: Attr, asked: Instant, now: Instant, times: &AttributeTimes) {
        if asked < self.came {
            match attr.ctime.cmp(&self.attr.ctime) {
                Ordering::Less => return,
                Ordering::Equal => return self.reconcile(&attr, asked, now),
                Ordering::Greater => {}
            }
        }
        let (least, most) = span(times, attr.file_type);
        let unchanged = WeakAttr::from(&attr) == WeakAttr::from(&self.attr);
        self.lifetime = match unchanged && !self.doubtful {
            // It stood still over a whole lifetime: it will over a longer one.
            true if asked.saturating_duration_since(self.asked) >= self.lifetime => {
                self.lifetime.saturating_mul(2).clamp(least, most)
            }
            true => self.lifetime.clamp(least, most),
            false => least,
        };
        self.attr = attr;
        self.asked = self.asked.max(asked);
        self.came = self.came.max(now);
        self.doubtful = false;
    }

    /// Two replies with the same ctime: their order is unknown.
    fn reconcile(&mut self, attr: &Attr, asked: Instant, now: Instant) {
        if WeakAttr::from(attr) == WeakAttr::from(&self.attr) && attr.nlink == self.attr.nlink {
            self.asked = self.asked.max(asked);
            self.came = self.came.max(now);
        } else {
            self.attr.size = self.attr.size.max(attr.size);
            self.doubtful = true;
        }
    }

    /// What is known, however old.
    pub(super) fn known(&self) -> Attr {
        self.attr
    }

    /// What is known, if it is to be believed now.
    pub(super) fn believed(&self, now: Instant, removal: &UnknownRemoval) -> Option<Attr> {
        let age = now.saturating_duration_since(self.asked);
        let has_one_name = self.attr.nlink <= 1 || self.attr.file_type == FileType::Directory;
        let is_believed = !self.doubtful && age < self.lifetime && (has_one_name || removal.is_told_by(self));
        is_believed.then_some(self.attr)
    }

    /// When it came. What was asked for before may be older.
    pub(super) fn came(&self) -> Instant {
        self.came
    }

    /// Whether it is from a call that was made at `time` or later.
    pub(super) fn is_since(&self, time: Instant) -> bool {
        !self.doubtful && self.asked >= time
    }

    /// Whether it is to be asked for again, whatever its age.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful
    }

    /// Something has changed that is not seen in the attributes. What was asked before `now` does not tell of
    /// it.
    pub(super) fn doubt(&mut self, now: Instant) {
        self.doubtful = true;
        self.came = self.came.max(now);
    }
}

fn span(times: &AttributeTimes, file_type: FileType) -> (Duration, Duration) {
    let (least, most) = match file_type {
        FileType::Directory => (times.dir_min, times.dir_max),
        _ => (times.file_min, times.file_max),
    };
    (least, most.max(least))
}

#[cfg(test)]
mod tests {
    use tombolo_core::fs::{Device, Mode, Timestamp};

    use super::*;

    static NONE: UnknownRemoval = UnknownRemoval(Mutex::new(None));

    const TIMES: AttributeTimes = AttributeTimes {
        file_min: Duration::from_secs(3),
        file_max: Duration::from_secs(10),
        dir_min: Duration::from_secs(30),
        dir_max: Duration::from_secs(60),
    };

    fn attr(ctime: i64) -> Attr {
        let time = Timestamp { secs: ctime, nanos: 0 };
        Attr {
            file_type: FileType::Regular,
            mode: Mode::new(0o644),
            nlink: 1,
            uid: 0,
            gid: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            rdev: Device::default(),
            fsid: 1,
            fileid: 2,
            generation: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            volatile: false,
        }
    }

    #[test]
    fn attribute_lifetime_doubles_while_unchanged_and_resets_on_change() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut known = Freshness::new(attr(1), start, &TIMES);
        assert!(known.believed(at(2), &NONE).is_some() && known.believed(at(3), &NONE).is_none());
        known.learn(attr(1), at(4), at(4), &TIMES);
        assert!(known.believed(at(9), &NONE).is_some() && known.believed(at(10), &NONE).is_none());
        known.learn(attr(1), at(11), at(11), &TIMES);
        assert!(
            known.believed(at(20), &NONE).is_some() && known.believed(at(21), &NONE).is_none(),
            "the most is ten"
        );
        known.learn(attr(2), at(22), at(22), &TIMES);
        assert!(known.believed(at(25), &NONE).is_none());
    }

    #[test]
    fn a_late_old_reply_does_not_replace_newer_attributes() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut known = Freshness::new(attr(5), at(1), &TIMES);
        known.learn(attr(4), start, at(2), &TIMES);
        assert_eq!(known.known().ctime.secs, 5);
        known.learn(attr(6), start, at(2), &TIMES);
        assert_eq!(known.known().ctime.secs, 6, "the server's own time says that it is news");
        known.learn(attr(2), at(3), at(4), &TIMES);
        assert_eq!(known.known().ctime.secs, 2, "a server's clock may be set back");
    }

    #[test]
    fn concurrent_getattr_does_not_revert_attributes_of_a_write() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let long = |ctime| Attr { size: 100, ..attr(ctime) };
        // WRITE asked at 1, GETATTR asked at 2 and carried out before it; the WRITE's answer came first.
        let mut known = Freshness::new(attr(1), start, &TIMES);
        known.learn(long(2), at(1), at(3), &TIMES);
        known.learn(attr(1), at(2), at(4), &TIMES);
        assert_eq!(known.known().size, 100);
        // The same within one tick of the server's clock: the order is unknown, so the server is asked again.
        let mut known = Freshness::new(attr(1), start, &TIMES);
        known.learn(long(1), at(1), at(3), &TIMES);
        known.learn(attr(1), at(2), at(4), &TIMES);
        assert_eq!((known.known().size, known.believed(at(5), &NONE)), (100, None));
        known.learn(attr(1), at(6), at(7), &TIMES);
        assert_eq!(
            known.believed(at(8), &NONE).map(|attr| attr.size),
            Some(0),
            "asked after all that is news"
        );
    }

    #[test]
    fn doubtful_attributes_are_not_used_until_the_next_reply() {
        let now = Instant::now();
        let mut known = Freshness::new(attr(1), now, &TIMES);
        known.doubt(now);
        assert!(known.believed(now, &NONE).is_none() && !known.is_since(now));
        known.learn(attr(1), now, now, &TIMES);
        assert!(known.believed(now, &NONE).is_some() && known.is_since(now));
    }

    #[test]
    fn attribute_times_of_zero_disable_caching() {
        let now = Instant::now();
        assert!(Freshness::new(attr(1), now, &AttributeTimes::NONE).believed(now, &NONE).is_none());
    }

    #[test]
    fn unknown_removal_expires_attributes_of_multiply_linked_files() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let removal = UnknownRemoval::default();
        let one = Freshness::new(attr(1), start, &TIMES);
        let mut two = Freshness::new(Attr { nlink: 2, ..attr(1) }, start, &TIMES);
        assert!(two.believed(at(1), &removal).is_some());
        removal.happened(at(2));
        assert!(one.believed(at(3), &removal).is_some() && two.believed(at(3), &removal).is_none());
        two.learn(Attr { nlink: 2, ..attr(1) }, at(1), at(4), &TIMES);
        assert!(two.believed(at(5), &removal).is_none(), "asked for before");
        two.learn(Attr { nlink: 2, ..attr(1) }, at(5), at(6), &TIMES);
        assert!(two.believed(at(7), &removal).is_some());
    }
}
