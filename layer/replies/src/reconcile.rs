//! Reconciliation of the operations in progress when an earlier process was killed: each intent is compared
//! with the present state.
//!
//! Operations that happened become outcomes; others are dropped, so that their duplicates run. Uncertain
//! cases get the more likely verdict, are logged and counted: a writer that bypasses this server may have
//! changed the same names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tombolo_core::fs::{
    Attr, Entry, FileSystem, FileType, NodeId, PersistentHandle, SetAttr, SetTime, Timestamp, XattrNameBuf,
};
use tombolo_core::{Ctx, Error, Result, Stability};

use super::counters::Counters;
use super::intent::{NamedEntry, RecordedEffect, ValueMark, XattrChange};
use super::journal::{RecoveredRecords, StoredIntent, StoredOutcome};
use super::key::EntryKey;
use super::observe::value_of;
use super::outcome::{Inode, NodeMark, Outcome};

/// Assumed maximum lag of the file system's clock behind this host's, in seconds. The lag of a local file
/// system is a kernel tick (10 ms at most); that of another machine's clock may be longer.
const CLOCK_BEHIND_SECS: i64 = 2;

/// Verdict on an intent: its operation happened, or did not.
struct Verdict {
    /// `None` if the operation did not happen.
    happened: Option<Happened>,
    /// `true` if the reply is right in every history that leads to the present state.
    is_certain: bool,
}

/// Outcome of an operation that happened, and the node that its reply contains, if any.
struct Happened {
    outcome: Outcome,
    node: Option<Inode>,
}

impl Verdict {
    fn no(is_certain: bool) -> Self {
        Self { happened: None, is_certain }
    }

    fn yes(is_certain: bool) -> Self {
        Self { happened: Some(Happened { outcome: Outcome::Done, node: None }), is_certain }
    }
}

/// Examiner of the export's present state, on behalf of the server.
pub(super) struct Reconciler<'a> {
    fs: Arc<dyn FileSystem>,
    cx: Ctx,
    counters: &'a Counters,
}

impl<'a> Reconciler<'a> {
    pub fn new(fs: Arc<dyn FileSystem>, cx: Ctx, counters: &'a Counters) -> Self {
        Self { fs, cx, counters }
    }

    /// Returns the valid outcomes, oldest first: those found that are at most `age` older than the newest
    /// record, and those of intents that happened. The newest record is the one with the highest sequence
    /// number, because clocks may be set back; a record with a later time than the newest counts as new.
    pub fn reconcile(&self, mut found: RecoveredRecords, age: Duration) -> Vec<StoredOutcome> {
        let outcomes = found.outcomes.iter().map(|outcome| (outcome.ended, outcome.time.secs));
        let intents = found.intents.iter().map(|intent| (intent.sequence, intent.time.secs));
        let newest = outcomes.chain(intents).max().map_or(0, |(_, secs)| secs);
        let oldest = newest.saturating_sub_unsigned(age.as_secs());
        let mut valid: HashMap<EntryKey, StoredOutcome> = HashMap::new();
        for outcome in found.outcomes {
            let newer = valid.get(&outcome.key).is_none_or(|other| other.sequence <= outcome.sequence);
            if newer && outcome.time.secs >= oldest {
                valid.insert(outcome.key, outcome);
            }
        }
        let recorded: Vec<_> = valid.values().map(|valid| (valid.claim, valid.ended)).collect();
        let mut claimed = HashSet::new();
        found.intents.sort_by_key(|intent| intent.sequence);
        for intent in found.intents {
            // An intent and its outcome both exist if the process died between writing the outcome and
            // freeing the intent.
            if valid.get(&intent.key).is_some_and(|valid| valid.sequence >= intent.sequence) {
                continue;
            }
            let is_taken = |claim: u64| {
                claimed.contains(&claim)
                    || recorded.iter().any(|&(other, ended)| other == claim && ended > intent.sequence)
            };
            if let Some(outcome) = self.reconcile_intent(&intent, is_taken) {
                claimed.insert(outcome.claim);
                valid.insert(outcome.key, outcome);
            }
        }
        let mut valid: Vec<_> = valid.into_values().collect();
        valid.sort_by_key(|valid| valid.ended);
        valid
    }

    /// Returns the outcome of an intent's operation; `None` if it did not happen. `is_taken` returns `true`
    /// if another request already has the same claim: of overlapping requests only one can have had that
    /// effect.
    fn reconcile_intent(
        &self,
        found: &StoredIntent,
        is_taken: impl Fn(u64) -> bool,
    ) -> Option<StoredOutcome> {
        let verdict = self.judge(found).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot examine an operation in progress at the crash");
            Verdict::no(false)
        });
        let claim = |happened: &Happened| found.effect.claim().with(happened.node).number();
        let (happened, is_certain) = match verdict.happened {
            // Two requests had the same effect concurrently, and only one of them succeeded.
            Some(happened) if claim(&happened) != 0 && is_taken(claim(&happened)) => (None, false),
            happened => (happened, verdict.is_certain),
        };
        let counters = self.counters;
        if happened.is_some() { &counters.reconciled_done } else { &counters.reconciled_not_done }
            .increment();
        if !is_certain {
            counters.reconciled_ambiguous.increment();
            tracing::warn!(
                operation = found.key.op.name(),
                name = found.effect.name(),
                "in progress at the crash, with uncertain outcome; assumed {}",
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

    fn judge(&self, found: &StoredIntent) -> Result<Verdict> {
        match &found.effect {
            RecordedEffect::Make { at, file_type } => self.judge_making(at, *file_type, found.time),
            RecordedEffect::Link { at, node } => self.judge_link(at, node),
            RecordedEffect::Remove { at } => self.judge_removal(at),
            RecordedEffect::Rename { from, to } => self.judge_rename(from, to),
            RecordedEffect::Change { node, set, ctime_before, size_before } => {
                self.judge_change(node, set, *ctime_before, *size_before)
            }
            RecordedEffect::Xattr { node, name, before, change } => {
                self.judge_xattr(node, name, *before, *change)
            }
            RecordedEffect::Append { node, size_before, len } => self.judge_append(node, *size_before, *len),
        }
    }

    fn judge_making(&self, at: &NamedEntry, file_type: FileType, time: Timestamp) -> Result<Verdict> {
        let present = match self.present_entry(at)? {
            // The node was not created, or another client has removed it: creating it again is right in both
            // cases.
            PresentEntry::NoParent | PresentEntry::Nothing => return Ok(Verdict::no(true)),
            PresentEntry::Node(present) => present,
        };
        if at.found == Some(present.inode) || present.attr.file_type != file_type {
            return Ok(Verdict::no(true));
        }
        let born_since = present.inode.birth.map(|birth| birth.secs >= time.secs - CLOCK_BEHIND_SECS);
        if born_since == Some(false) {
            // The node is older than the request: another request or program has moved it to this name.
            return Ok(Verdict::no(false));
        }
        let is_certain = born_since == Some(true) && at.found.is_none();
        Ok(Verdict { happened: Some(present.made()), is_certain })
    }

    fn judge_link(&self, at: &NamedEntry, node: &Inode) -> Result<Verdict> {
        Ok(match self.present_entry(at)? {
            PresentEntry::Node(present) if present.inode == *node && at.found.is_none() => {
                Verdict { happened: Some(present.made()), is_certain: true }
            }
            _ => Verdict::no(true),
        })
    }

    fn judge_removal(&self, at: &NamedEntry) -> Result<Verdict> {
        let Some(before) = at.found else { return Ok(Verdict::no(true)) };
        Ok(match self.present_entry(at)? {
            PresentEntry::Nothing => Verdict::yes(true),
            PresentEntry::Node(present) if present.inode == before => Verdict::no(true),
            // The name leads to another node, or its directory is gone: another client's change followed the
            // removal, or preceded it.
            PresentEntry::Node(_) | PresentEntry::NoParent => Verdict::yes(false),
        })
    }

    fn judge_rename(&self, from: &NamedEntry, to: &NamedEntry) -> Result<Verdict> {
        let Some(moved) = from.found else { return Ok(Verdict::no(true)) };
        let is_moved =
            |present: &PresentEntry| matches!(present, PresentEntry::Node(present) if present.inode == moved);
        if is_moved(&self.present_entry(from)?) {
            // The old name still leads to the node. If the new name does too, the rename has no effect
            // (rename(2)), and can be repeated.
            return Ok(Verdict::no(true));
        }
        Ok(Verdict::yes(is_moved(&self.present_entry(to)?)))
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
        // After a change within the same tick of the file system's clock, the ctime is equal and only the
        // size differs.
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
            // The operation must have failed.
            (XattrChange::Make(_), Some(_), _) | (XattrChange::Replace(_) | XattrChange::Remove, None, _) => {
                Verdict::no(true)
            }
            (_, before, now) if before == now => Verdict::no(true),
            (XattrChange::Make(value) | XattrChange::Replace(value), _, now) if now == Some(value) => {
                Verdict::yes(true)
            }
            (XattrChange::Remove, _, None) => Verdict::yes(true),
            // The value is neither the old nor the new one: another request has changed it too.
            _ => Verdict::no(false),
        })
    }

    /// Judges an append. No other recorded append of this server ran meanwhile, because these are serialized.
    fn judge_append(&self, node: &PersistentHandle, size_before: u64, len: u64) -> Result<Verdict> {
        let Some(entry) = self.resolve(node)? else { return Ok(Verdict::no(true)) };
        self.forget(entry.node);
        let Some(grown) = entry.attr.size.checked_sub(size_before) else { return Ok(Verdict::no(false)) };
        if grown == 0 {
            return Ok(Verdict::no(true));
        }
        // Fewer bytes than requested mean that the process was killed during the write: the outcome is a
        // short write. More bytes mean that another writer has appended since.
        let outcome = Outcome::Wrote { count: grown.min(len), stability: Stability::Unstable };
        Ok(Verdict { happened: Some(Happened { outcome, node: None }), is_certain: grown <= len })
    }

    /// Returns the present node of a name.
    fn present_entry(&self, named_entry: &NamedEntry) -> Result<PresentEntry> {
        let Some(parent) = self.resolve(&named_entry.parent)? else { return Ok(PresentEntry::NoParent) };
        let found = self.fs.lookup(&self.cx, parent.node, named_entry.name.as_name()).wait();
        self.forget(parent.node);
        let entry = match found {
            Ok(entry) => entry,
            Err(Error::NotFound | Error::NotDirectory) => return Ok(PresentEntry::Nothing),
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
        Ok(PresentEntry::Node(Box::new(PresentNode { attr: entry.attr, inode, mark })))
    }

    /// Returns the node of a handle; `None` if the node no longer exists.
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

/// The present node of a name; `NoParent` if its directory is gone.
enum PresentEntry {
    NoParent,
    Nothing,
    Node(Box<PresentNode>),
}

struct PresentNode {
    attr: Attr,
    inode: Inode,
    mark: NodeMark,
}

impl PresentNode {
    fn made(self) -> Happened {
        Happened { outcome: Outcome::Node(self.mark), node: Some(self.inode) }
    }
}

/// Returns `true` if the attributes have the values to be set, as far as can be determined afterwards.
fn holds(set: &SetAttr, attr: &Attr) -> bool {
    /// Set-user-id and set-group-id are silently dropped without the necessary privilege (chmod(2)).
    const LASTING_MODE: u32 = 0o1777;
    let mode = set.mode.is_none_or(|mode| (mode.bits() ^ attr.mode.bits()) & LASTING_MODE == 0);
    // Only seconds are compared: file systems differ in the precision of times.
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
