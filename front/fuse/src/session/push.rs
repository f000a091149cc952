//! Notices of [`Coherence::Push`](super::Coherence::Push): no reply may outlive a notice that concerns it.
//!
//! A reply may be made before a change and reach the kernel after its notice, and would then be cached.
//! Therefore each request compares the number of notices before it begins and after its reply is written;
//! notices in between that concern the reply are sent again.
//!
//! A written reply is not yet applied: the requesting thread inserts node and name when it runs. Until then
//! the kernel answers a notice with ENOENT. Therefore a notice that found nothing is retried while a reply
//! that concerns it may be [under way](Push::may_be_under_way).

use super::kernel_names::{DirName, KernelNames};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::Thread;
use std::time::Duration;
use tombolo_core::fs::{NameBuf, NodeId, Notice};
use tombolo_core::lock;
use tombolo_sys::moment::Moment;

/// Maximum number of notices that can be sent again individually; beyond that all of the kernel's cached
/// state is invalidated, or all of the reply if that must be done name by name.
const LOG_MAX: usize = 1024;

/// Time for which the names in a written reply count as not yet applied by the requesting thread.
const UNDER_WAY: Duration = Duration::from_secs(4);
/// Time for which this session's renames are recorded: more than the delay of a notice about the old name.
const MOVED: Duration = Duration::from_secs(60);
/// Maximum number of names to which one name was moved; beyond it everything is invalidated.
const TARGETS_MAX: usize = 64;
/// Maximum number of retained names of recent replies, and of moves.
const NAMES_MAX: usize = 4096;

/// Notices of one session.
#[derive(Debug, Default)]
pub(crate) struct Push {
    /// Number of notices sent or about to be sent.
    count: AtomicU64,
    log: Mutex<Log>,
    /// Number of look-ups of each node that the kernel has.
    nodes: [Mutex<HashMap<NodeId, u64>>; SHARDS],
    /// Names in recent replies.
    names: Mutex<VecDeque<(Moment, NodeId, NameBuf)>>,
    /// Names that recent renames of this session have moved in the kernel's cache, and whereto.
    moves: Mutex<VecDeque<(Moment, DirName, DirName)>>,
    /// Names in all replies, if the kernel cannot invalidate all names at once.
    pub(crate) kernel_names: KernelNames,
}

#[derive(Debug, Default)]
struct Log {
    /// The latest notices; the last one has the number `count`.
    notices: VecDeque<Notice>,
    /// Notices to be sent again.
    resends: Vec<Notice>,
    /// The sending thread.
    sender: Option<Thread>,
}

/// Nodes and names that a reply describes.
#[derive(Debug, Default)]
pub(super) struct Subject {
    pub(super) nodes: Vec<NodeId>,
    /// Names with their directories.
    pub(super) names: Vec<(NodeId, NameBuf)>,
}

impl Subject {
    fn concerns(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Attributes(node) | Notice::Gone { node, .. } | Notice::Data { node, .. } => {
                self.nodes.contains(node)
            }
            Notice::Name { dir, name } => self.names.iter().any(|(other, it)| (other, it) == (dir, name)),
            Notice::Everything => true,
        }
    }

    /// Returns the notices that invalidate all of the reply that the kernel caches for long: its nodes, and
    /// those of its names that are `recorded`.
    fn notices(&self, recorded: &KernelNames) -> Vec<Notice> {
        let nodes = self.nodes.iter().map(|node| Notice::Data { node: *node, start: 0, last: u64::MAX });
        let names = self.names.iter().filter(|name| recorded.contains(name));
        nodes.chain(names.cloned().map(|(dir, name)| Notice::Name { dir, name })).collect()
    }
}

const SHARDS: usize = 16;

impl Push {
    /// Returns the number of notices so far: read it before a request begins and pass it to
    /// [`Push::resend_missed`].
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Sends again the notices since `count_before` that concern a written reply. `names` are those in the
    /// kernel's cache, if it cannot invalidate all at once.
    #[inline]
    pub(super) fn resend_missed(&self, count_before: u64, subject: &Subject, names: Option<&KernelNames>) {
        if self.count.load(Ordering::SeqCst) != count_before {
            self.queue_missed(count_before, subject, names);
        }
    }

    /// Records the names of a reply that is about to be written.
    pub(super) fn record_names(&self, subject: &Subject) {
        if subject.names.is_empty() {
            return;
        }
        let now = Moment::now();
        let mut names = lock(&self.names);
        names.extend(subject.names.iter().map(|(dir, name)| (now, *dir, name.clone())));
        let over = names.len().saturating_sub(NAMES_MAX);
        names.drain(..over);
    }

    /// Records the move of a name in a reply to RENAME that is about to be written; with `is_exchange`, in
    /// both directions.
    pub(super) fn record_move(&self, old: DirName, new: DirName, is_exchange: bool) {
        let now = Moment::now();
        let mut moves = lock(&self.moves);
        if is_exchange {
            moves.push_back((now, new.clone(), old.clone()));
        }
        moves.push_back((now, old, new));
        let over = moves.len().saturating_sub(NAMES_MAX);
        moves.drain(..over);
    }

    /// Returns the names to which renames of this session have recently moved a name. A notice about the old
    /// name must invalidate these too: the kernel has moved its cached entry to the new name. `None` if there
    /// are too many.
    pub(crate) fn moved(&self, dir: NodeId, name: &NameBuf) -> Option<Vec<DirName>> {
        let mut moves = lock(&self.moves);
        while moves.front().is_some_and(|(since, ..)| since.elapsed() >= MOVED) {
            moves.pop_front();
        }
        if moves.is_empty() {
            return Some(Vec::new());
        }
        let (mut found, mut at) = (vec![(dir, name.clone())], 0);
        while let Some(from) = found.get(at).cloned() {
            for (_, old, new) in &*moves {
                if *old == from && !found.contains(new) {
                    found.push(new.clone());
                }
            }
            if found.len() > TARGETS_MAX {
                return None;
            }
            at += 1;
        }
        Some(found.split_off(1))
    }

    /// Returns `true` if a reply that concerns this notice may not have been applied by the kernel yet.
    pub(crate) fn may_be_under_way(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Attributes(node) | Notice::Gone { node, .. } | Notice::Data { node, .. } => {
                self.shard(*node).contains_key(node)
            }
            Notice::Name { dir, name } => {
                let names = lock(&self.names);
                let recent = names.iter().rev().take_while(|(since, ..)| since.elapsed() < UNDER_WAY);
                recent.into_iter().any(|(_, other, it)| (other, it) == (dir, name))
            }
            Notice::Everything => false,
        }
    }

    #[cold]
    fn queue_missed(&self, count_before: u64, subject: &Subject, names: Option<&KernelNames>) {
        let resends: Vec<_> = {
            let log = lock(&self.log);
            let missed = (self.count.load(Ordering::SeqCst) - count_before) as usize;
            let skipped = log.notices.len().checked_sub(missed);
            let missed = || log.notices.iter().skip(skipped.unwrap_or_default());
            let is_all = skipped.is_none() || missed().any(|notice| *notice == Notice::Everything);
            match names {
                Some(names) if is_all => subject.notices(names),
                None if is_all => vec![Notice::Everything],
                _ => missed().filter(|notice| subject.concerns(notice)).cloned().collect(),
            }
        };
        self.resend(resends);
    }

    /// Queues notices for the sending thread, in addition to those of the file system, and wakes the thread.
    pub(super) fn resend(&self, notices: impl IntoIterator<Item = Notice>) {
        let mut notices = notices.into_iter().peekable();
        if notices.peek().is_none() {
            return;
        }
        let mut log = lock(&self.log);
        for notice in notices {
            // A queued notice of everything invalidates this reply too.
            if notice != Notice::Everything || !log.resends.contains(&notice) {
                log.resends.push(notice);
            }
        }
        let sender = log.sender.clone();
        drop(log);
        if let Some(sender) = sender {
            sender.unpark();
        }
    }

    /// Sets the sending thread, which is unparked when notices are to be sent again.
    pub(crate) fn set_sender(&self, sender: Thread) {
        lock(&self.log).sender = Some(sender);
    }

    /// Records a notice that is about to be sent.
    pub(crate) fn log_notice(&self, notice: &Notice) {
        let mut log = lock(&self.log);
        if log.notices.len() == LOG_MAX {
            log.notices.pop_front();
        }
        log.notices.push_back(notice.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes the notices to be sent again.
    pub(crate) fn take_resends(&self) -> Vec<Notice> {
        std::mem::take(&mut lock(&self.log).resends)
    }

    /// Counts a look-up that the kernel is about to receive.
    pub(super) fn looked_up(&self, node: NodeId) {
        *self.shard(node).entry(node).or_default() += 1;
    }

    /// Subtracts look-ups that the kernel has forgotten.
    pub(super) fn forgotten(&self, node: NodeId, look_ups: u64) {
        let mut shard = self.shard(node);
        if let Some(count) = shard.get_mut(&node) {
            *count = count.saturating_sub(look_ups);
            if *count == 0 {
                shard.remove(&node);
                self.kernel_names.forget(node);
            }
        }
    }

    /// Returns all nodes that the kernel may have cached.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let shards = self.nodes.iter().map(|shard| lock(shard));
        let nodes = shards.flat_map(|shard| shard.keys().copied().collect::<Vec<_>>());
        std::iter::once(NodeId::ROOT).chain(nodes).collect()
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, HashMap<NodeId, u64>> {
        let [first, ..] = &self.nodes;
        let shard = self.nodes.get(node.0 as usize % SHARDS).unwrap_or(first);
        lock(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::fs::Name;

    fn attributes(node: u64) -> Notice {
        Notice::Attributes(NodeId(node))
    }

    fn answer(nodes: &[u64]) -> Subject {
        Subject { nodes: nodes.iter().copied().map(NodeId).collect(), names: Vec::new() }
    }

    #[test]
    fn concurrent_notices_about_a_reply_are_resent_once() {
        let push = Push::default();
        push.log_notice(&attributes(2));
        let before = push.count();
        push.log_notice(&attributes(3));
        push.resend_missed(push.count(), &answer(&[2, 3, 4]), None);
        assert!(push.take_resends().is_empty(), "nothing came during that request");
        push.log_notice(&attributes(4));
        push.resend_missed(before, &answer(&[2, 4]), None);
        assert_eq!(push.take_resends(), [attributes(4)]);
        assert!(push.take_resends().is_empty());
        push.resend_missed(before, &answer(&[3, 5]), None);
        assert_eq!(push.take_resends(), [attributes(3)]);
    }

    #[test]
    fn name_notice_is_resent_for_that_name_only() {
        let push = Push::default();
        let name = |text: &str| Name::new(text.as_bytes()).expect("a name").to_owned();
        let notice = Notice::Name { dir: NodeId(2), name: name("a") };
        push.log_notice(&notice);
        for (dir, text, count) in [(2, "b", 0), (3, "a", 0), (2, "a", 1)] {
            assert!(!push.may_be_under_way(&notice));
            let subject = Subject { nodes: Vec::new(), names: vec![(NodeId(dir), name(text))] };
            push.record_names(&subject);
            push.resend_missed(0, &subject, None);
            assert_eq!(push.take_resends().len(), count, "{dir} {text}");
        }
        assert!(push.may_be_under_way(&notice));
    }

    #[test]
    fn log_overflow_invalidates_everything() {
        let push = Push::default();
        let before = push.count();
        (0..=LOG_MAX as u64).for_each(|node| push.log_notice(&attributes(node)));
        push.resend_missed(before, &answer(&[1]), None);
        assert_eq!(push.take_resends(), [Notice::Everything]);
        push.resend_missed(before + 1, &answer(&[1, 2]), None);
        assert_eq!(push.take_resends(), [attributes(1), attributes(2)]);
    }

    #[test]
    fn node_is_tracked_until_its_last_forget() {
        let push = Push::default();
        (0..3).for_each(|_| push.looked_up(NodeId(5)));
        push.forgotten(NodeId(5), 2);
        assert_eq!(push.nodes(), [NodeId::ROOT, NodeId(5)]);
        push.forgotten(NodeId(5), 1);
        assert_eq!(push.nodes(), [NodeId::ROOT]);
    }
}
