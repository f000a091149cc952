//! What [`Coherence::Push`](super::Coherence::Push) adds to a session: what the kernel is told of changes,
//! and that no answer outlives its notice.
//!
//! An answer may have been made before a change and reach the kernel after its notice; then it would be
//! believed. So each request looks at the number of notices before it begins and after its answer is written:
//! those in between that are about what it answers are sent again.
//!
//! Nor is an answer that is written one that has arrived: the program that asked makes node and name of it
//! when it runs. Until then the kernel says of a notice that it knows no such thing. So one that found
//! nothing is not done with while an answer may be [under way](Push::may_be_under_way).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tombolo_core::fs::{NameBuf, NodeId, Notice};

/// So many notices can be sent again one by one; more of them, and everything is told.
const LOG_MAX: usize = 1024;

/// A program that does not run for so long after it was answered is not waited for.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// So many names in answers are remembered that long.
const NAMES_MAX: usize = 4096;

/// Notices of one session.
#[derive(Debug, Default)]
pub(crate) struct Push {
    /// How many were sent, or are about to be.
    count: AtomicU64,
    log: Mutex<Log>,
    nodes: [Mutex<HashMap<NodeId, u64>>; SHARDS],
    /// Names in the latest answers.
    names: Mutex<VecDeque<(Instant, NodeId, NameBuf)>>,
}

#[derive(Debug, Default)]
struct Log {
    /// The latest, the last of which has the number `count`.
    notices: VecDeque<Notice>,
    /// Those to be sent again.
    again: Vec<Notice>,
    /// Sends them.
    sender: Option<Thread>,
}

/// What an answer is about.
#[derive(Debug, Default)]
pub(super) struct About {
    pub(super) nodes: Vec<NodeId>,
    /// Names in directories.
    pub(super) names: Vec<(NodeId, NameBuf)>,
}

impl About {
    fn concerns(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Attributes(node) | Notice::Gone { node, .. } | Notice::Data { node, .. } => {
                self.nodes.contains(node)
            }
            Notice::Name { dir, name } => self.names.iter().any(|(other, it)| (other, it) == (dir, name)),
            Notice::Everything => true,
        }
    }
}

const SHARDS: usize = 16;

impl Push {
    /// How many notices there were: to be asked for before a request is begun, and given to
    /// [`Push::answered`].
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// The answer of a request is written.
    #[inline]
    pub(super) fn answered(&self, count_before: u64, about: &About) {
        if self.count.load(Ordering::SeqCst) != count_before {
            self.send_again(count_before, about);
        }
    }

    /// An answer is about to be written.
    pub(super) fn answers(&self, about: &About) {
        if about.names.is_empty() {
            return;
        }
        let now = Instant::now();
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.extend(about.names.iter().map(|(dir, name)| (now, *dir, name.clone())));
        let over = names.len().saturating_sub(NAMES_MAX);
        names.drain(..over);
    }

    /// Whether the kernel may be about to learn what this notice is about, though it says that it knows it
    /// not.
    pub(crate) fn may_be_under_way(&self, notice: &Notice) -> bool {
        match notice {
            Notice::Attributes(node) | Notice::Gone { node, .. } | Notice::Data { node, .. } => {
                self.shard(*node).contains_key(node)
            }
            Notice::Name { dir, name } => {
                let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
                let recent = names.iter().rev().take_while(|(since, ..)| since.elapsed() < UNDER_WAY);
                recent.into_iter().any(|(_, other, it)| (other, it) == (dir, name))
            }
            Notice::Everything => false,
        }
    }

    #[cold]
    fn send_again(&self, count_before: u64, about: &About) {
        let sender = {
            let mut log = self.log();
            let missed = (self.count.load(Ordering::SeqCst) - count_before) as usize;
            let again: Vec<_> = match log.notices.len().checked_sub(missed) {
                Some(skipped) => log
                    .notices
                    .iter()
                    .skip(skipped)
                    .filter(|notice| about.concerns(notice))
                    .cloned()
                    .collect(),
                None => vec![Notice::Everything],
            };
            if again.is_empty() {
                return;
            }
            log.again.extend(again);
            log.sender.clone()
        };
        if let Some(sender) = sender {
            sender.unpark();
        }
    }

    /// That thread sends notices; it is unparked when some are to be sent again.
    pub(crate) fn sent_by(&self, sender: Thread) {
        self.log().sender = Some(sender);
    }

    /// A notice is about to be sent.
    pub(crate) fn log_notice(&self, notice: &Notice) {
        let mut log = self.log();
        if log.notices.len() == LOG_MAX {
            log.notices.pop_front();
        }
        log.notices.push_back(notice.clone());
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// What is to be sent again, once.
    pub(crate) fn take_again(&self) -> Vec<Notice> {
        std::mem::take(&mut self.log().again)
    }

    /// The kernel is about to be given a look-up of the node.
    pub(super) fn looked_up(&self, node: NodeId) {
        *self.shard(node).entry(node).or_default() += 1;
    }

    /// It has given so many back.
    pub(super) fn forgotten(&self, node: NodeId, look_ups: u64) {
        let mut shard = self.shard(node);
        if let Some(held) = shard.get_mut(&node) {
            *held = held.saturating_sub(look_ups);
            if *held == 0 {
                shard.remove(&node);
            }
        }
    }

    /// All nodes that the kernel may know.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let shards = self.nodes.iter().map(|shard| shard.lock().unwrap_or_else(PoisonError::into_inner));
        let known = shards.flat_map(|shard| shard.keys().copied().collect::<Vec<_>>());
        std::iter::once(NodeId::ROOT).chain(known).collect()
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, HashMap<NodeId, u64>> {
        let [first, ..] = &self.nodes;
        let shard = self.nodes.get(node.0 as usize % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::fs::Name;

    fn about(node: u64) -> Notice {
        Notice::Attributes(NodeId(node))
    }

    fn answer(nodes: &[u64]) -> About {
        About { nodes: nodes.iter().copied().map(NodeId).collect(), names: Vec::new() }
    }

    #[test]
    fn notices_that_came_during_a_request_and_are_about_it_are_sent_again_once() {
        let push = Push::default();
        push.log_notice(&about(2));
        let before = push.count();
        push.log_notice(&about(3));
        push.answered(push.count(), &answer(&[2, 3, 4]));
        assert!(push.take_again().is_empty(), "nothing came during that request");
        push.log_notice(&about(4));
        push.answered(before, &answer(&[2, 4]));
        assert_eq!(push.take_again(), [about(4)]);
        assert!(push.take_again().is_empty());
        push.answered(before, &answer(&[3, 5]));
        assert_eq!(push.take_again(), [about(3)]);
    }

    #[test]
    fn a_name_is_sent_again_for_an_answer_about_that_name() {
        let push = Push::default();
        let name = |text: &str| Name::new(text.as_bytes()).expect("a name").to_owned();
        let notice = Notice::Name { dir: NodeId(2), name: name("a") };
        push.log_notice(&notice);
        for (dir, text, count) in [(2, "b", 0), (3, "a", 0), (2, "a", 1)] {
            assert!(!push.may_be_under_way(&notice));
            let about = About { nodes: Vec::new(), names: vec![(NodeId(dir), name(text))] };
            push.answers(&about);
            push.answered(0, &about);
            assert_eq!(push.take_again().len(), count, "{dir} {text}");
        }
        assert!(push.may_be_under_way(&notice));
    }

    #[test]
    fn what_the_log_does_not_hold_any_more_is_everything() {
        let push = Push::default();
        let before = push.count();
        (0..=LOG_MAX as u64).for_each(|node| push.log_notice(&about(node)));
        push.answered(before, &answer(&[1]));
        assert_eq!(push.take_again(), [Notice::Everything]);
        push.answered(before + 1, &answer(&[1, 2]));
        assert_eq!(push.take_again(), [about(1), about(2)]);
    }

    #[test]
    fn a_node_is_known_until_all_its_look_ups_are_given_back() {
        let push = Push::default();
        (0..3).for_each(|_| push.looked_up(NodeId(5)));
        push.forgotten(NodeId(5), 2);
        assert_eq!(push.nodes(), [NodeId::ROOT, NodeId(5)]);
        push.forgotten(NodeId(5), 1);
        assert_eq!(push.nodes(), [NodeId::ROOT]);
    }
}
