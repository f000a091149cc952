//! Random operations of a client in a directory of its own, whose results a model in memory predicts. An
//! operation that was executed twice shows in its answer (a second `mkdir` fails with EXIST), in a later one,
//! or in the final tree: names are few, so that a removal that is repeated removes something else.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;

use fastrand::Rng;
use tombolo_back_local_dir::LocalDir;
use tombolo_back_memory::Memory;
use tombolo_core::fs::{Exclusive, FileSystem, FileType, OpenFlags};
use tombolo_test_support::history::{Action, At, Machine, Mix, Outcome, Shown, Step, tree};
use tombolo_test_support::{READ_WRITE, Session};

use crate::failure::{Failure, Result, refused, wrong};

/// Names below a directory.
type Tree = BTreeMap<String, Node>;

/// The visible state of a name, and the data of a file.
type Node = (Shown, Vec<u8>);

/// Operations of the superuser, most of them on names, which are the ones that must not run twice.
const MIX: Mix = Mix { users: 1, names: 30, nodes: 3, openings: 6, xattrs: 0, ranges: 0 };

/// Maximum number of openings: names of open files are not removed.
const OPENINGS_MAX: usize = 2;

/// Number of operations in the report of a failure.
const REPORTED: usize = 40;

/// The operations of a seed, performed on the model only.
pub struct Plan {
    model: Machine,
    random: Rng,
    kind: Kind,
}

/// Kind of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It cannot exchange names, or move one only where there is none.
    Nfs,
    /// It may be killed, so that each of its operations is one request.
    Link,
}

impl Plan {
    /// Begins with an empty directory.
    pub fn new(random: Rng, kind: Kind) -> Self {
        let mut model = Session::attach(&Memory::default());
        model.dir = model.dir("own");
        Self { model: Machine::of(model), random, kind }
    }

    /// Performs the next step; returns it with its result.
    pub fn next(&mut self) -> (Step, Outcome) {
        loop {
            let step = self.sample();
            if self.model.applies(&step) && self.is_determined(&step.action) {
                let expected = self.model.perform_now(&step);
                // A refused operation has no effect that a repetition could have, too.
                if expected.is_ok() || self.random.u8(..8) == 0 {
                    return (step, expected);
                }
            }
        }
    }

    fn sample(&mut self) -> Step {
        let open = (0..self.model.openings()).filter(|open| self.model.file(*open).is_some());
        match open.collect::<Vec<_>>().as_slice() {
            [first, others @ ..] if others.len() >= OPENINGS_MAX => {
                Step { user: 0, action: Action::Release(*first, true) }
            }
            open if self.kind == Kind::Link && self.random.u8(..3) == 0 => self.append(open),
            _ => Step::sample(&mut self.random, &MIX),
        }
    }

    /// Returns an append, or an opening for some.
    fn append(&mut self, open: &[usize]) -> Step {
        let appends = |open: &&usize| {
            self.model.opening(**open).is_some_and(|(_, flags)| flags.contains(OpenFlags::APPEND))
        };
        let action = match open.iter().find(appends) {
            Some(open) => {
                let (len, fill) = (self.random.usize(1..3000), self.random.u64(..));
                Action::Write(*open, 0, len, (false, false), fill)
            }
            None => {
                let flags = READ_WRITE | OpenFlags::APPEND;
                Action::Create(At { dir: 0, name: "log" }, 0o644, flags, Exclusive::No)
            }
        };
        Step { user: 0, action }
    }

    /// Returns `true` if all clients have the operation, and restarts of the server do not change its result:
    /// they end openings of files without a name.
    fn is_determined(&self, action: &Action) -> bool {
        let is_file = |node: usize| self.model.node(node).is_some_and(|node| self.model.is_file(node));
        let is_open = |at: At| self.model.node_at(at).is_some_and(|node| self.model.is_open(node));
        match action {
            Action::Mknod(..) | Action::CreateUnnamed(_) | Action::Access(..) => false,
            Action::Write(_, _, _, (kill_privileges, _), _) => !kill_privileges,
            // Mostly new files, as only those are changes of names.
            Action::Create(at, _, flags, _) => {
                let opens = OpenFlags::TRUNCATE | OpenFlags::APPEND;
                self.model.node_at(*at).is_none() || flags.intersects(opens)
            }
            Action::Open(node, flags) => flags.contains(OpenFlags::DIRECTORY) || is_file(*node),
            Action::Resize(node, _) => is_file(*node),
            // Over links an entry may take more than the smallest page has.
            Action::List(_, page_bytes, _) => *page_bytes >= 1000,
            Action::Unlink(at) | Action::Rmdir(at) => !is_open(*at),
            Action::Rename(_, to, flags) => !is_open(*to) && (flags.is_empty() || self.kind == Kind::Link),
            Action::WriteSeveral(..) => self.kind == Kind::Nfs,
            _ => true,
        }
    }

    /// Returns the model's directory.
    pub fn tree(&self) -> Tree {
        with_data(&self.model.session)
    }

    /// Compares a directory of the host with the model's.
    pub fn compare(&self, dir: &Path) -> Result<()> {
        let (found, expected) = (tree_at(dir)?, self.tree());
        let shown = |tree: &Tree, path| tree.get(path).map(|(shown, _)| shown.clone());
        match found.keys().chain(expected.keys()).find(|path| found.get(*path) != expected.get(*path)) {
            None => Ok(()),
            Some(path) => Err(Failure::Tree(format!(
                "{}/{path} is {:?}, and must be {:?}",
                dir.display(),
                shown(&found, path),
                shown(&expected, path)
            ))),
        }
    }
}

/// Returns the tree at a directory of the host.
pub fn tree_at(dir: &Path) -> Result<Tree> {
    let export = LocalDir::open(dir, Default::default())
        .map_err(|error| Failure::Tree(format!("{}: {error}", dir.display())))?;
    Ok(with_data(&Session::attach(&export)))
}

fn with_data(session: &Session) -> Tree {
    let with_data = |(path, shown): (String, Shown)| {
        let is_file = shown.file_type == FileType::Regular;
        let data = if is_file { session.contents(path.as_str()) } else { Vec::new() };
        (path, (shown, data))
    };
    tree(session, false, None).into_iter().map(with_data).collect()
}

/// Returns `true` if a tree has a part of the data that make one state into the next, as after a kill.
pub fn is_partly_written(found: &Tree, before: &Tree, after: &Tree) -> bool {
    let names_stay = before.keys().eq(after.keys()) && before.keys().eq(found.keys());
    names_stay
        && found.iter().all(|(path, found)| {
            let (before, after) = (&before[path], &after[path]);
            found == before || found == after || is_between(found, before, after)
        })
}

/// Returns `true` if each byte of a file is that of one of two states, and the rest as in the second.
fn is_between((found, data): &Node, (before, old): &Node, (after, new): &Node) -> bool {
    let rest = Shown { size: after.size, content: after.content, ..found.clone() };
    let is_of = |bytes: &[u8], at, byte| bytes.get(at).unwrap_or(&0) == byte;
    found.file_type == FileType::Regular
        && rest == *after
        && (before.size..=after.size).contains(&found.size)
        && data.iter().enumerate().all(|(at, byte)| is_of(old, at, byte) || is_of(new, at, byte))
}

/// A client with its plan.
pub struct Load {
    /// The plan.
    pub plan: Plan,
    /// Number of operations with the right result.
    pub steps: u64,
    real: Machine,
    recent: VecDeque<String>,
}

impl Load {
    /// Creates the client's directory.
    pub fn new(fs: Arc<dyn FileSystem>, dir: &str, plan: Plan) -> Result<Self> {
        let mut session = Session::of(fs);
        session.dir = match session.mkdir(dir) {
            Ok(made) => made.entry.node,
            Err(error) => return refused(format!("mkdir of {dir}"), error),
        };
        let mut real = Machine::of(session);
        real.is_lazy = true;
        Ok(Self { plan, steps: 0, real, recent: VecDeque::new() })
    }

    /// Performs a step of the plan, whose result must be as predicted.
    pub fn perform(&mut self, (step, expected): (Step, Outcome)) -> Result<()> {
        let mut told = format!("{:?}", step.action);
        let mut got = self.real.perform_now(&step);
        // A server that was killed in it reports what it had written.
        let count = got.as_ref().ok().and_then(|text| text.strip_suffix(" bytes")?.parse().ok());
        if count.is_some_and(|count| self.real.write_rest(&step.action, count)) {
            got.clone_from(&expected);
        }
        self.real.follow(&self.plan.model);
        if got != expected {
            let before: Vec<_> = self.recent.iter().map(|line| format!("  {line}\n")).collect();
            return wrong(format!("{told}: {got:?}, not {expected:?}, after\n{}", before.concat()));
        }
        told.truncate(200);
        self.recent.push_back(told);
        self.recent.drain(..self.recent.len().saturating_sub(REPORTED));
        self.steps += 1;
        Ok(())
    }

    /// Performs an action that is not part of the plan.
    fn also(&mut self, action: Action) -> Result<()> {
        let step = Step { user: 0, action };
        if !self.plan.model.applies(&step) {
            return Ok(());
        }
        let expected = self.plan.model.perform_now(&step);
        self.perform((step, expected))
    }

    /// Ends all openings, after which everything is stable.
    pub fn release_all(&mut self) -> Result<()> {
        (0..self.plan.model.openings()).try_for_each(|open| self.also(Action::Release(open, true)))
    }

    /// Checks that every known node is still found, with the same number and attributes.
    pub fn check_nodes(&mut self) -> Result<()> {
        (0..self.plan.model.nodes()).try_for_each(|node| self.also(Action::Getattr(node)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_write_has_bytes_of_both_states_only() {
        let session = Session::attach(&Memory::default());
        let tree_of = |data: &[u8]| {
            session.put("file", data);
            with_data(&session)
        };
        let (before, after) = (tree_of(b"aaaa"), tree_of(b"aabbbb"));
        for (found, is_partly) in
            [("aabbb", true), ("aaabb", true), ("aaaa\0b", true), ("aabx", false), ("aab", false)]
        {
            assert_eq!(is_partly_written(&tree_of(found.as_bytes()), &before, &after), is_partly, "{found}");
        }
    }
}
