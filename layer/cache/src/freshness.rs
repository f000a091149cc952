//! Validity of an object's cached attributes, absent names and listing under its contract.

use std::time::{Duration, Instant};

use tombolo_core::fs::FileType;

use crate::object::State;
use crate::options::{Contract, Options};

/// Maximum age of a directory's attributes, at the start of a look-up, for which a name missing in the cache
/// counts as absent.
const ABSENCE_KEPT: Duration = Duration::from_millis(100);

/// Purpose of an attribute query.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    /// Access without an open.
    Stat,
    /// An open that began at this time.
    Open(Instant),
}

impl State {
    /// Returns `true` if the attributes are valid for this purpose.
    pub(crate) fn is_believed(&self, look: Look, options: &Options) -> bool {
        if self.writers > 0 {
            return false;
        }
        // The origin may remove a file without a name at any time, without notice.
        if self.attr.nlink == 0 && options.contract != Contract::Immutable {
            return false;
        }
        let Some(asked) = self.asked.filter(|asked| !self.term.was_lost_since(*asked)) else {
            return options.contract == Contract::Immutable;
        };
        let younger = |than| asked.elapsed() <= than;
        match (options.contract, look) {
            (Contract::Immutable | Contract::Exclusive, _) => true,
            (Contract::Lease, look) if self.is_leased(asked, look) => true,
            (Contract::CloseToOpen | Contract::Lease, Look::Stat) => younger(options.attr_refresh),
            (Contract::CloseToOpen | Contract::Lease, Look::Open(began)) => asked >= began,
            (Contract::Refresh(time), _) => younger(time),
        }
    }

    /// Returns `true` if names missing in the cache are absent for a look-up that began at `began`. Under
    /// *close-to-open* an open must find a file that another client has created and closed before, so the
    /// directory's attributes must be nearly as new as the look-up.
    pub(crate) fn is_absence_believed(&self, began: Instant, options: &Options) -> bool {
        match (options.contract, self.asked) {
            (Contract::Immutable | Contract::Exclusive | Contract::Refresh(_), _) => true,
            (Contract::Lease, Some(asked)) if self.is_leased(asked, Look::Stat) => true,
            (_, asked) => asked.is_some_and(|asked| asked + ABSENCE_KEPT >= began),
        }
    }

    /// Returns `true` if absent names have a limited lifetime, of which less than half is left.
    pub(crate) fn is_absence_ageing(&self, options: &Options) -> bool {
        !self.is_absence_believed(Instant::now() + ABSENCE_KEPT / 2, options)
    }

    /// Returns `true` if a lease makes state requested at `asked` valid. Names and data of a version too
    /// recent to show another change must be revalidated once before; a file's attributes alone need not.
    fn is_leased(&self, asked: Instant, look: Look) -> bool {
        let is_attr = self.attr.file_type != FileType::Directory && matches!(look, Look::Stat);
        (self.recency.is_none() || is_attr) && self.term.covers(asked)
    }

    /// Returns `true` if a reader must query the file's version first, for example after a local change.
    pub(crate) fn is_version_unknown(&self, options: &Options) -> bool {
        self.asked.is_none() && options.contract != Contract::Immutable
    }

    /// Returns `true` if a new listing would bring names that are not cached, or renew attributes of entries
    /// that have become too old.
    pub(crate) fn wants_listing(&self, options: &Options) -> bool {
        let is_old = self.listed.is_none_or(|listed| self.is_old_listing(listed, options));
        let is_old = is_old && !options.contract.tells_changes();
        !self.shows_all_names() || is_old
    }

    /// Returns `true` if a listing that began at `begun` is too old for a reader that begins now.
    pub(crate) fn is_old_listing(&self, begun: Instant, options: &Options) -> bool {
        match options.contract {
            Contract::Immutable | Contract::Exclusive => false,
            Contract::Lease if self.term.covers(begun) => false,
            Contract::CloseToOpen | Contract::Lease => begun.elapsed() > options.attr_refresh,
            Contract::Refresh(time) => begun.elapsed() > time,
        }
    }
}
