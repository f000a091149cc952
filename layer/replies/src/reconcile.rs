//! What became of the operations that an earlier process was killed in: each intent is held against what is
//! there now.
//!
//! What happened becomes an outcome; what did not is dropped, so that its duplicate runs. Where it cannot be
//! told, the more likely is taken, said in the log and counted: a writer that does not come through us may
//! have changed the same names meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::{
    Attr, Entry, FileSystem, FileType, NodeId, PersistentHandle, SetAttr, SetTime, Timestamp, XattrNameBuf,
};
use tombolo_core::{Ctx, Error, Result, Stability};

use super::counters::Counters;
use super::intent::{Deed, NamedEntry, ValueMark, XattrChange};
use super::journal::{Found, FoundIntent, StoredOutcome};
use super::key::EntryKey;
use super::look::value_of;
use super::outcome::{Inode, NodeMark, Outcome};

/// By how much the clock that file systems stamp births with may be behind ours, in seconds. Locally a tick
/// of the kernel (10 ms at most); more for those whose clock is another machine's.
const CLOCK_BEHIND_SECS: i64 = 2;

/// What is to be thought of an intent.
struct Verdict {
    /// `None`: it did not happen.
    happened: Option<Happened>,
    /// Whether nothing else could explain what is there.
    sure: bool,
}

/// What is there of a deed.
struct Happened {
    outcome: Outcome,
    node: Option<Inode>,
}

impl Verdict {
    fn no(sure: bool) -> Self {
        Self { happened: None, sure }
    }

    fn yes(sure: bool) -> Self {
        Self { happened: Some(Happened { outcome: Outcome::Done, node: None }), sure }
    }
}

/// Looks at an export on behalf of the server.
pub(super) struct Reconciler<'a> {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    counters: &'a Counters,
}

impl<'a> Reconciler<'a> {
    pub fn new(fs: Arc<dyn FileSystem>, cx: Ctx, counters: &'a Counters) -> Self {
        Self { fs, cx, counters }
    }

    /// The outcomes that count from now on, the oldest first: those found that are not older than `age`, by
    /// the newest record's time, and those of intents that happened. The newest is the one with the highest
    /// number: clocks are set back, too, and what seems to be later than it is not old.
    pub fn reconcile(&self, mut found: Found, age: Duration) -> Vec<StoredOutcome> {
        let outcomes = found.outcomes.iter().map(|outcome| (outcome.ended, outcome.time.secs));
        let intents = found.intents.iter().map(|intent| (intent.sequence, intent.time.secs));
        let newest = outcomes.chain(intents).max().map_or(0, |(_, secs)| secs);
        let oldest = newest.saturating_sub_unsigned(age.as_secs());
        let mut kept: HashMap<EntryKey, StoredOutcome> = HashMap::new();
        for outcome in found.outcomes {
            let newer = kept.get(&outcome.key).is_none_or(|known| known.sequence <= outcome.sequence);
            if newer && outcome.time.secs >= oldest {
                kept.insert(outcome.key, outcome);
            }
        }
        let recorded: Vec<_> = kept.values().map(|kept| (kept.claim, kept.ended)).collect();
        let mut claimed = HashSet::new();
        found.intents.sort_by_key(|intent| intent.sequence);
        for intent in found.intents {
            // Both are there when the process died between writing the one and freeing the other.
            if kept.get(&intent.key).is_some_and(|kept| kept.sequence >= intent.sequence) {
                continue;
            }
            let overlaps = |claim: u64| {
                claimed.contains(&claim)
                    || recorded.iter().any(|&(other, ended)| other == claim && ended > intent.sequence)
            };
            if let Some(outcome) = self.settle(&intent, overlaps) {
                claimed.insert(outcome.claim);
                kept.insert(outcome.key, outcome);
            }
        }
        let mut kept: Vec<_> = kept.into_values().collect();
        kept.sort_by_key(|kept| kept.ended);
        kept
    }

    /// The outcome of an intent that happened. `taken`: whether another request has what this one would
    /// claim.
    fn settle(&self, found: &FoundIntent, taken: impl Fn(u64) -> bool) -> Option<StoredOutcome> {
        let verdict = self.judge(found).unwrap_or_else(|error| {
            tracing::warn!(%error, "an operation that was under way at a crash cannot be looked into");
            Verdict::no(false)
        });
        let claim = |happened: &Happened| found.intent.deed.claim().with(happened.node).number();
        let (happened, sure) = match verdict.happened {
            // Two wanted to make or to take away the same at once, and one of them did.
            Some(happened) if claim(&happened) != 0 && taken(claim(&happened)) => (None, false),
            happened => (happened, verdict.sure),
        };
        let counters = self.counters;
        if happened.is_some() { &counters.reconciled_done } else { &counters.reconciled_not_done }.count();
        if !sure {
            counters.reconciled_ambiguous.count();
            tracing::warn!(
                operation = found.intent.op.name(),
                name = found.intent.deed.name(),
                "under way at a crash, and it cannot be told for sure; taken for {}",
                if happened.is_some() { "done" } else { "not done" }
            );
        }
        let happened = happened?;
        Some(StoredOutcome {
            key: found.key,
            claim: claim(&happened),
            outcome: happened.outcome,
            sequence: found.sequence,
            time: found.time,
            ended: found.sequence,
        })
    }

    fn judge(&self, found: &FoundIntent) -> Result<Verdict> {
        match &found.intent.deed {
            Deed::Make { at, file_type } => self.judge_making(at, *file_type, found.time),
            Deed::Link { at, node } => self.judge_link(at, node),
            Deed::Remove { at } => self.judge_removal(at),
            Deed::Rename { from, to } => self.judge_rename(from, to),
            Deed::Change { node, set, ctime_before, size_before } => {
                self.judge_change(node, set, *ctime_before, *size_before)
            }
            Deed::Xattr { node, name, before, change } => self.judge_xattr(node, name, *before, *change),
            Deed::Append { node, size_before, len } => self.judge_append(node, *size_before, *len),
        }
    }

    fn judge_making(&self, at: &NamedEntry, file_type: FileType, time: Timestamp) -> Result<Verdict> {
        let there = match self.there(at)? {
            // Made and removed again by another client would look the same.
            There::NoParent | There::Nothing => return Ok(Verdict::no(true)),
            There::Node(there) => there,
        };
        if at.found == Some(there.inode) || there.attr.file_type != file_type {
            return Ok(Verdict::no(true));
        }
        let born_since = there.inode.birth.map(|birth| birth.secs >= time.secs - CLOCK_BEHIND_SECS);
        if born_since == Some(false) {
            // An older node that was moved here meanwhile.
            return Ok(Verdict::no(false));
        }
        let sure = born_since == Some(true) && at.found.is_none();
        Ok(Verdict { happened: Some(there.made()), sure })
    }

    fn judge_link(&self, at: &NamedEntry, node: &Inode) -> Result<Verdict> {
        Ok(match self.there(at)? {
            There::Node(there) if there.inode == *node && at.found.is_none() => {
                Verdict { happened: Some(there.made()), sure: true }
            }
            _ => Verdict::no(true),
        })
    }

    fn judge_removal(&self, at: &NamedEntry) -> Result<Verdict> {
        let Some(before) = at.found else { return Ok(Verdict::no(true)) };
        Ok(match self.there(at)? {
            There::Nothing => Verdict::yes(true),
            There::Node(there) if there.inode == before => Verdict::no(true),
            // Another client's change came after ours, or before it.
            There::Node(_) | There::NoParent => Verdict::yes(false),
        })
    }

    fn judge_rename(&self, from: &NamedEntry, to: &NamedEntry) -> Result<Verdict> {
        let Some(moved) = from.found else { return Ok(Verdict::no(true)) };
        let is_moved = |there: &There| matches!(there, There::Node(there) if there.inode == moved);
        if is_moved(&self.there(from)?) {
            // Also where both are names of one node: to rename it does nothing (rename(2)), and may as well
            // be done again.
            return Ok(Verdict::no(true));
        }
        Ok(Verdict::yes(is_moved(&self.there(to)?)))
    }

    fn judge_change(
        &self,
        node: &PersistentHandle,
        set: &SetAttr,
        ctime_before: Timestamp,
        size_before: u64,
    ) -> Result<Verdict> {
        let Some(entry) = self.resolve(node)? else { return Ok(Verdict::no(true)) };
        self.forget(entry.node);
        // Within a tick of the file system's clock the size alone tells.
        let is_cut = set.size == Some(entry.attr.size) && entry.attr.size != size_before;
        if entry.attr.ctime == ctime_before && !is_cut {
            return Ok(Verdict::no(true));
        }
        Ok(if holds(set, &entry.attr) { Verdict::yes(true) } else { Verdict::no(false) })
    }

    fn judge_xattr(
        &self,
        node: &PersistentHandle,
        name: &XattrNameBuf,
        before: Option<ValueMark>,
        change: XattrChange,
    ) -> Result<Verdict> {
        let Some(entry) = self.resolve(node)? else { return Ok(Verdict::no(true)) };
        let now = value_of(&*self.fs, &self.cx, entry.node, name.as_name()).wait();
        self.forget(entry.node);
        let now = now?;
        Ok(match (change, before, now) {
            // It had to fail.
            (XattrChange::Make(_), Some(_), _) | (XattrChange::Replace(_) | XattrChange::Remove, None, _) => {
                Verdict::no(true)
            }
            (_, before, now) if before == now => Verdict::no(true),
            (XattrChange::Make(value) | XattrChange::Replace(value), _, now) if now == Some(value) => {
                Verdict::yes(true)
            }
            (XattrChange::Remove, _, None) => Verdict::yes(true),
            // Another request's change came before ours, or after it.
            _ => Verdict::no(false),
        })
    }

    /// No other request of ours appended meanwhile: appends are serialized.
    fn judge_append(&self, node: &PersistentHandle, size_before: u64, len: u64) -> Result<Verdict> {
        let Some(entry) = self.resolve(node)? else { return Ok(Verdict::no(true)) };
        self.forget(entry.node);
        let Some(grown) = entry.attr.size.checked_sub(size_before) else { return Ok(Verdict::no(false)) };
        if grown == 0 {
            return Ok(Verdict::no(true));
        }
        // Less than all: the process was killed in the middle, and what stands is a short write. More: others
        // came after.
        let outcome = Outcome::Wrote { count: grown.min(len), stability: Stability::Unstable };
        Ok(Verdict { happened: Some(Happened { outcome, node: None }), sure: grown <= len })
    }

    /// What a name leads to now.
    fn there(&self, named_entry: &NamedEntry) -> Result<There> {
        let Some(parent) = self.resolve(&named_entry.parent)? else { return Ok(There::NoParent) };
        let found = self.fs.lookup(&self.cx, parent.node, named_entry.name.as_name()).wait();
        self.forget(parent.node);
        let entry = match found {
            Ok(entry) => entry,
            Err(Error::NotFound | Error::NotDirectory) => return Ok(There::Nothing),
            Err(error) => return Err(error),
        };
        let handle = self.fs.persistent_handles().map(|handles| handles.handle_of(&self.cx, entry.node));
        let handle = handle.map(|handle| handle.wait());
        self.forget(entry.node);
        let inode = Inode::from(&entry.attr);
        let mark = match handle {
            Some(handle) => NodeMark::Handle(handle?),
            None => NodeMark::Inode(inode),
        };
        Ok(There::Node(Box::new(Thing { attr: entry.attr, inode, mark })))
    }

    /// `None` when the node is gone.
    fn resolve(&self, handle: &PersistentHandle) -> Result<Option<Entry>> {
        let found = self.fs.persistent_handles().map(|handles| handles.resolve(&self.cx, handle));
        match found.ok_or(Error::NotSupported)?.wait() {
            Ok(entry) => Ok(Some(entry)),
            Err(Error::Stale) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn forget(&self, node: NodeId) {
        self.fs.forget(&self.cx, &[(node, 1)]);
    }
}

/// What a name leads to.
enum There {
    NoParent,
    Nothing,
    Node(Box<Thing>),
}

struct Thing {
    attr: Attr,
    inode: Inode,
    mark: NodeMark,
}

impl Thing {
    fn made(self) -> Happened {
        Happened { outcome: Outcome::Node(self.mark), node: Some(self.inode) }
    }
}

/// Whether attributes are as they were to be set, as far as that can be seen afterwards.
fn holds(set: &SetAttr, attr: &Attr) -> bool {
    /// Without the right to set set-user-id and set-group-id they are dropped without an error (chmod(2)).
    const LASTING_MODE: u32 = 0o1777;
    let mode = set.mode.is_none_or(|mode| (mode.bits() ^ attr.mode.bits()) & LASTING_MODE == 0);
    // To the second: file systems differ in what they keep of the rest.
    let time = |set: Option<SetTime>, now: Timestamp| match set {
        Some(SetTime::At(time)) => time.secs == now.secs,
        Some(SetTime::Now) | None => true,
    };
    mode && set.uid.is_none_or(|uid| uid == attr.uid)
        && set.gid.is_none_or(|gid| gid == attr.gid)
        && set.size.is_none_or(|size| size == attr.size)
        && time(set.atime, attr.atime)
        && time(set.mtime, attr.mtime)
}
