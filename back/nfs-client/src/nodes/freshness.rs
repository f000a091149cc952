//! Lifetimes of cached attributes.

use std::cmp::Ordering;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tombolo_core::fs::{Attr, FileType, WeakAttr};
use tombolo_core::lock;

use crate::options::AttributeTimes;

/// Time of the last removal of a name with unknown target, which may have been a link of any file with
/// several names.
#[derive(Debug, Default)]
pub(super) struct UnknownRemoval(Mutex<Option<Instant>>);

impl UnknownRemoval {
    pub(super) fn happened(&self, now: Instant) {
        *lock(&self.0) = Some(now);
    }

    /// Returns `true` if the attributes were requested after the last such removal.
    fn is_told_by(&self, freshness: &Freshness) -> bool {
        let last = *lock(&self.0);
        last.is_none_or(|last| freshness.is_since(last))
    }
}

/// Attributes with their lifetime.
#[derive(Clone, Copy, Debug)]
pub(super) struct Freshness {
    attr: Attr,
    /// Time of the latest call that returned these attributes.
    asked: Instant,
    /// Time of their receipt or of their expiry. A call made before that may have been executed before or
    /// after the state that they describe.
    received: Instant,
    /// Lifetime from `asked` on.
    lifetime: Duration,
    /// `true` if the attributes must be revalidated regardless of their age.
    expired: bool,
}

impl Freshness {
    /// Creates attributes requested at `asked` and received `now`.
    pub(super) fn new(attr: Attr, asked: Instant, now: Instant, times: &AttributeTimes) -> Self {
        Self { attr, asked, received: now, lifetime: span(times, attr.file_type).0, expired: false }
    }

    /// Updates from attributes requested at `asked` and received `now`. Replies to calls made after the
    /// receipt of the present ones are newer. Otherwise the order is unknown, as replies overtake each other
    /// and a server executes concurrent calls in any order: then ctime decides, and if that is equal, the
    /// larger size is used until the next revalidation.
    pub(super) fn learn(&mut self, attr: Attr, asked: Instant, now: Instant, times: &AttributeTimes) {
        if asked < self.received {
            match attr.ctime.cmp(&self.attr.ctime) {
                Ordering::Less => return,
                Ordering::Equal => return self.reconcile(&attr, asked, now),
                Ordering::Greater => {}
            }
        }
        let (least, most) = span(times, attr.file_type);
        let unchanged = WeakAttr::from(&attr) == WeakAttr::from(&self.attr);
        self.lifetime = match unchanged && !self.expired {
            // The file was unchanged over a whole lifetime, so the next lifetime is longer.
            true if asked.saturating_duration_since(self.asked) >= self.lifetime => {
                self.lifetime.saturating_mul(2).clamp(least, most)
            }
            true => self.lifetime.clamp(least, most),
            false => least,
        };
        self.attr = attr;
        self.asked = self.asked.max(asked);
        self.received = self.received.max(now);
        self.expired = false;
    }

    /// Merges two replies with the same ctime, whose order is unknown.
    fn reconcile(&mut self, attr: &Attr, asked: Instant, now: Instant) {
        if WeakAttr::from(attr) == WeakAttr::from(&self.attr) && attr.nlink == self.attr.nlink {
            self.asked = self.asked.max(asked);
            self.received = self.received.max(now);
        } else {
            self.attr.size = self.attr.size.max(attr.size);
            self.expired = true;
        }
    }

    pub(super) fn known(&self) -> Attr {
        self.attr
    }

    /// Returns the attributes if they are valid now. A file with several names may have lost one in an
    /// [`UnknownRemoval`] since; its attributes are then invalid.
    pub(super) fn believed(&self, now: Instant, removal: &UnknownRemoval) -> Option<Attr> {
        let age = now.saturating_duration_since(self.asked);
        let has_one_name = self.attr.nlink <= 1 || self.attr.file_type == FileType::Directory;
        let is_believed = !self.expired && age < self.lifetime && (has_one_name || removal.is_told_by(self));
        is_believed.then_some(self.attr)
    }

    /// Returns the time of receipt or expiry. Replies to earlier calls may be older.
    pub(super) fn received(&self) -> Instant {
        self.received
    }

    /// Returns `true` if the attributes were requested at `time` or later and have not been expired.
    pub(super) fn is_since(&self, time: Instant) -> bool {
        !self.expired && self.asked >= time
    }

    pub(super) fn is_expired(&self) -> bool {
        self.expired
    }

    /// Expires the attributes after a change that they do not show. Replies to calls before `now` may not
    /// show it either.
    pub(super) fn expire(&mut self, now: Instant) {
        self.expired = true;
        self.received = self.received.max(now);
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
    use tombolo_wire_nfs3::{FileType3, attr};

    use super::*;
    use crate::nodes::table::tests::fattr;

    static NONE: UnknownRemoval = UnknownRemoval(Mutex::new(None));

    const TIMES: AttributeTimes = AttributeTimes {
        file_min: Duration::from_secs(3),
        file_max: Duration::from_secs(10),
        dir_min: Duration::from_secs(30),
        dir_max: Duration::from_secs(60),
    };

    fn attr(ctime: u32) -> Attr {
        attr::attr(&fattr(2, FileType3::Regular, ctime))
    }

    #[test]
    fn attribute_lifetime_doubles_while_unchanged_and_resets_on_change() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let mut known = Freshness::new(attr(1), start, start, &TIMES);
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
        let mut known = Freshness::new(attr(5), at(1), at(1), &TIMES);
        known.learn(attr(4), start, at(2), &TIMES);
        assert_eq!(known.known().ctime.secs, 5);
        known.learn(attr(6), start, at(2), &TIMES);
        assert_eq!(known.known().ctime.secs, 6, "the server's own time says that it is news");
        known.learn(attr(2), at(3), at(4), &TIMES);
        assert_eq!(known.known().ctime.secs, 2, "a server's clock may be set back");
        let mut known = Freshness::new(attr(5), start, at(2), &TIMES);
        known.learn(attr(4), at(1), at(3), &TIMES);
        assert_eq!(known.known().ctime.secs, 5, "of concurrent calls");
    }

    #[test]
    fn concurrent_getattr_does_not_revert_attributes_of_a_write() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let long = |ctime| Attr { size: 100, ..attr(ctime) };
        // WRITE requested at 1; GETATTR requested at 2, executed before it, and answered after it.
        let mut known = Freshness::new(attr(1), start, start, &TIMES);
        known.learn(long(2), at(1), at(3), &TIMES);
        known.learn(attr(1), at(2), at(4), &TIMES);
        assert_eq!(known.known().size, 100);
        // Within one tick of the server's clock the order is unknown, so the server is queried again.
        let mut known = Freshness::new(attr(1), start, start, &TIMES);
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
    fn expired_attributes_are_not_used_until_the_next_reply() {
        let now = Instant::now();
        let mut known = Freshness::new(attr(1), now, now, &TIMES);
        known.expire(now);
        assert!(known.believed(now, &NONE).is_none() && !known.is_since(now));
        known.learn(attr(1), now, now, &TIMES);
        assert!(known.believed(now, &NONE).is_some() && known.is_since(now));
    }

    #[test]
    fn attribute_times_of_zero_disable_caching() {
        let now = Instant::now();
        assert!(Freshness::new(attr(1), now, now, &AttributeTimes::NONE).believed(now, &NONE).is_none());
    }

    #[test]
    fn unknown_removal_expires_attributes_of_multiply_linked_files() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let removal = UnknownRemoval::default();
        let one = Freshness::new(attr(1), start, start, &TIMES);
        let mut two = Freshness::new(Attr { nlink: 2, ..attr(1) }, start, start, &TIMES);
        assert!(two.believed(at(1), &removal).is_some());
        removal.happened(at(2));
        assert!(one.believed(at(3), &removal).is_some() && two.believed(at(3), &removal).is_none());
        two.learn(Attr { nlink: 2, ..attr(1) }, at(1), at(4), &TIMES);
        assert!(two.believed(at(5), &removal).is_none(), "asked for before");
        two.learn(Attr { nlink: 2, ..attr(1) }, at(5), at(6), &TIMES);
        assert!(two.believed(at(7), &removal).is_some());
    }
}
