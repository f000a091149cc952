//! A caller in a directory of its own: performs random steps, whose results a model in memory predicts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tombolo_back_memory::Memory;
use tombolo_core::fs::{FileSystem, NodeId, OpenFlags};
use tombolo_core::{Ctx, Error, SessionId};
use tombolo_mem::Buffer;
use tombolo_nfs_client_tests::wire::{Network, Rng};
use tombolo_test_support::history::{Action, Machine, Mix, Outcome, Shown, Step, tree};
use tombolo_test_support::{Session, mode, name};

use crate::simulation::disk::Disk;

/// The session that all callers use.
pub const SESSION: SessionId = SessionId(77);

/// Operations of the superuser.
const MIX: Mix = Mix { users: 1, names: 8, nodes: 4, openings: 12, xattrs: 0, ranges: 0 };

/// State shared by callers.
#[derive(Clone)]
pub struct World {
    pub network: Network,
    /// The server's disk, for inspection.
    pub disk: Disk,
    /// Number of server starts.
    pub starts: Arc<AtomicU64>,
    /// Memory lent for writes, whose return is verified at the end.
    pub lent: Arc<Mutex<Vec<Buffer>>>,
}

/// A caller.
pub struct Caller {
    world: World,
    rng: Rng,
    random: fastrand::Rng,
    number: u64,
    model: Machine,
    real: Machine,
    /// Directories of the model in which the server may have silly names of open files.
    not_empty: BTreeSet<NodeId>,
    steps: u64,
    begun_at: u64,
}

impl Caller {
    /// Creates the caller's directory below `root`.
    pub async fn begin(world: World, fs: Arc<dyn FileSystem>, number: u64, mut rng: Rng) -> Self {
        let cx = Ctx::root(SESSION);
        let path = format!("caller-{number}");
        let name = name(&path);
        let starts = world.starts.load(Ordering::Relaxed);
        let made = fs.mkdir(&cx, NodeId::ROOT, name, mode(0o755)).resolve().await;
        let entry = match made {
            Ok(made) => made.entry,
            // Created before the server lost its reply cache.
            Err(Error::Exists) if world.starts.load(Ordering::Relaxed) != starts => {
                fs.lookup(&cx, NodeId::ROOT, name).resolve().await.expect("it is there")
            }
            Err(error) => panic!("mkdir of {name}: {error}"),
        };
        let mut model = Session::attach(&Memory::default());
        model.dir = model.dir("caller");
        let mut real = Machine::of(Session { fs, cx, dir: entry.node });
        (real.is_lazy, real.lent) = (true, world.lent.clone());
        Self {
            real,
            model: Machine::of(model),
            random: fastrand::Rng::with_seed(rng.next_u64()),
            world,
            rng,
            number,
            not_empty: BTreeSet::new(),
            steps: 0,
            begun_at: 0,
        }
    }

    /// Performs one operation, or reads a file piece by piece.
    pub async fn step(&mut self) {
        if self.rng.chance(100) {
            let pause = *self.rng.pick(&[1_000, 3_500_000, 70_000_000]);
            let pause = self.rng.between((Duration::ZERO, Duration::from_micros(pause)));
            self.world.network.sleep(pause).await;
        }
        let step = loop {
            let step = Step::sample(&mut self.random, &MIX);
            if self.model.applies(&step) && self.is_determined(&step.action) {
                break step;
            }
        };
        match step.action {
            Action::Read(open, _, len) if self.rng.chance(300) => {
                for piece in 0..6 {
                    let action = Action::Read(open, piece * len as u64, len);
                    self.perform(&Step { action, user: 0 }).await;
                }
            }
            _ => self.perform(&step).await,
        }
    }

    /// Returns `true` if NFS has the operation, and determines its result.
    fn is_determined(&self, action: &Action) -> bool {
        let is_file = |node: usize| self.model.node(node).is_some_and(|node| self.model.is_file(node));
        let may_remove = |at| self.model.node_at(at).is_none_or(|node| !self.not_empty.contains(&node));
        match action {
            Action::Mknod(..) | Action::CreateUnnamed(_) | Action::Access(..) => false,
            // No call carries the request to drop privileges.
            Action::Write(_, _, _, (kill_privileges, _), _) => !kill_privileges,
            Action::Open(node, flags) => flags.contains(OpenFlags::DIRECTORY) || is_file(*node),
            Action::Resize(node, _) => is_file(*node),
            // Removed open files remain in the directory under silly names, possibly for a while.
            Action::Rmdir(at) => may_remove(*at),
            // A directory would take the place of an open file, which is moved away before the server
            // compares the types.
            Action::Rename(from, to, flags) => {
                let open = |node: &NodeId| self.model.is_open(*node);
                let (from, target) = (self.model.node_at(*from), self.model.node_at(*to));
                let is_directory = from.is_some_and(|node| !self.model.is_file(node));
                flags.is_empty() && may_remove(*to) && !(is_directory && target.as_ref().is_some_and(open))
            }
            _ => true,
        }
    }

    /// Performs a step on both sides, and compares the results.
    async fn perform(&mut self, step: &Step) {
        self.steps += 1;
        self.begun_at = self.world.starts.load(Ordering::Relaxed);
        let (number, steps) = (self.number, self.steps);
        let words = || format!("caller {number}, step {steps}: {:?}", step.action);
        self.world.network.note(number << 32 | steps, words);
        if let Action::Unlink(at) | Action::Rename(_, at, _) = step.action
            && self.model.node_at(at).is_some_and(|node| self.model.is_open(node))
        {
            self.not_empty.extend(self.model.node(at.dir));
        }
        let stable = self.stable_after(&step.action);
        let expected = self.model.perform_now(step);
        let mut got = self.real.perform(step).await;
        if got != expected && self.world.starts.load(Ordering::Relaxed) != self.begun_at {
            got = self.done_before(&step.action, got).await;
        }
        // A removed open file has its silly name.
        let silly = expected.clone().map(|text| text.replace(" links 0 ", " links 1 "));
        assert!(got == expected || got == silly, "{step:?}: {got:?}, not {expected:?}");
        self.real.follow(&self.model);
        if let Some((content, fileid)) = stable {
            self.check_stable(&content, fileid);
        }
    }

    /// Returns the result of an operation that the server found already done after a restart, which lost its
    /// reply cache.
    async fn done_before(&mut self, action: &Action, got: Outcome) -> Outcome {
        match (action, got.as_ref().map_err(String::as_str)) {
            (Action::Mkdir(at, _) | Action::Symlink(at) | Action::Link(_, at), Err("Exists")) => {
                self.real.perform(&Step { action: Action::Lookup(*at), user: 0 }).await
            }
            (Action::Unlink(_) | Action::Rmdir(_) | Action::Rename(..), Err("NotFound")) => Ok("done".into()),
            _ => got,
        }
    }

    /// Returns the content of the file that must be stable after an operation, and the file's number.
    fn stable_after(&self, action: &Action) -> Option<(Vec<u8>, u64)> {
        let (Action::Fsync(open) | Action::Flush(open, _) | Action::Release(open, true)) = action else {
            return None;
        };
        let (theirs, ours) = self.model.file(*open).zip(self.real.file(*open))?;
        self.model.is_file(theirs.node).then(|| {
            (self.model.session.contents(theirs.node), self.real.number_of(ours.node).expect("known"))
        })
    }

    /// Asserts that a file's content would survive any failure of the server.
    fn check_stable(&self, content: &[u8], fileid: u64) {
        let surely = self.world.disk.surely(NodeId(fileid)).expect("the file");
        if surely != content {
            let at = surely.iter().zip(content).position(|(found, expected)| found != expected);
            let (found, expected) = (surely.len(), content.len());
            panic!("of {expected} bytes {found} are stable, and right up to {at:?}");
        }
    }

    /// Closes everything; returns the expected final tree on the server.
    pub async fn end(mut self) -> BTreeMap<String, Shown> {
        for open in 0..self.model.openings() {
            if self.model.file(open).is_some() {
                let action = Action::Release(open, self.rng.chance(800));
                self.perform(&Step { action, user: 0 }).await;
            }
        }
        self.real.forget_all();
        self.real.session.forget(self.real.session.dir);
        tree(&self.model.session, false, None)
    }
}
