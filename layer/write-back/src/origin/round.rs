//! One attempt to send all differences to the origin.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tombolo_core::fs::{File, NodeId, WeakAttr};
use tombolo_core::{Answer, Ctx, Error, Identity, Interrupt, Result};
use tombolo_host_runtime::lock;

use super::attributes::is_refusal;
use super::plan::{Chosen, Key, Plan};
use super::window::Window;
use crate::shared::{SESSION, Shared};
use crate::tree::{Set, Tree};

/// The attempt. Shared by what is under way.
pub(super) struct Round {
    pub shared: Arc<Shared>,
    pub plan: Plan,
    pub window: Arc<Window>,
    interrupt: Interrupt,
    found: Mutex<Found>,
}

/// How it is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// It is found out first what is at the origin.
    pub looks: bool,
    /// What the origin has refused before is asked for again.
    pub tries_refused: bool,
}

/// How it ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The origin has all up to this change.
    Done(u64),
    /// Something was found there that was not known, and is now.
    Again,
    /// Modes or owners have arrived that may permit what was refused before; the outcome otherwise.
    Permitted(std::result::Result<u64, Failure>),
    /// It does not have it all, and this is the first reason.
    Failed(Failure),
}

/// Why the origin does not have it all.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure {
    pub reason: String,
    /// The origin has refused some of it, and does so again.
    pub is_refused: bool,
    /// Number of nodes with a refused operation.
    pub refused: usize,
    /// Unsent changes, if refusals are the only reason.
    pub stuck: Option<Stuck>,
}

/// Changes that only wait for what the origin has refused.
#[derive(Clone, Debug)]
pub(super) struct Stuck {
    pub nodes: HashSet<NodeId>,
    /// All other changes up to this one are at the origin.
    pub change: u64,
}

/// What came of it so far.
#[derive(Debug, Default)]
struct Found {
    /// Nodes whose data or attributes could not be brought there.
    failed: HashSet<NodeId>,
    /// Nodes whose names are not all there.
    undone: HashSet<NodeId>,
    /// The first reason, unless it is a refusal or follows from one.
    failure: Option<String>,
    /// The first failure that follows from another, such as a missing directory.
    consequence: Option<String>,
    /// Nodes with an operation that the origin has refused, other than a change of attributes.
    refused_nodes: HashSet<NodeId>,
    /// The first of these refusals.
    refused_operation: Option<String>,
    /// Names of operations that have failed.
    doubtful: HashSet<Key>,
    /// The origin is away: the rest is not tried.
    is_over: bool,
    /// What is there is another's in part: there is more to be brought now.
    has_conflicts: bool,
    /// Nodes whose data and attributes are there.
    sent: HashSet<NodeId>,
    /// Nodes that were made in the name of their owner.
    made_by_owner: HashSet<NodeId>,
    /// Directories in which names were changed.
    changed: HashSet<NodeId>,
    /// Directories whose link count may differ when all else has arrived.
    links_differ: HashSet<NodeId>,
    /// What nodes are there now; `None`: to be looked at.
    versions: HashMap<NodeId, Option<WeakAttr>>,
    /// What was asked for of nodes and the origin has refused.
    refused: HashMap<NodeId, Set>,
    /// The first of these refusals.
    refusal: Option<String>,
}

/// Work that fails where it panics: neither is the node taken for one that has arrived, nor does the thread
/// end that goes on with it.
struct Caught<F>(Pin<Box<F>>);

const PANICKED: &str = "write-back has panicked: see the log";

/// Maximum number of refusals logged in one attempt.
const REFUSALS_LOGGED: usize = 100;

pub(super) const WAITS: &str = "what it replaces, or is to become, is not there yet";

impl Round {
    /// Brings all that differs now to the origin. A panic is a failure.
    pub(super) fn run(shared: &Arc<Shared>, interrupt: &Interrupt, how: How) -> Outcome {
        let run = AssertUnwindSafe(|| Self::attempt(shared, interrupt, how));
        let panicked = Failure { reason: PANICKED.into(), ..Failure::default() };
        catch_unwind(run).unwrap_or(Outcome::Failed(panicked))
    }

    fn attempt(shared: &Arc<Shared>, interrupt: &Interrupt, how: How) -> Outcome {
        if how.looks {
            let round = Self::new(shared, interrupt, Plan::default());
            round.look_at_all();
            // Names that could not be looked up are left alone later: they hold up nothing else.
            if let Some(failure) = lock(&round.found).failure(0).filter(|failure| failure.stuck.is_none()) {
                return Outcome::Failed(failure);
            }
        }
        let choose = |tree: &mut Tree| Plan::choose(tree, how.tries_refused);
        let (plan, ticket) = shared.gate.closed(|| shared.note(choose));
        if plan.is_empty() {
            shared.note(|tree| tree.bury_gone());
            return Outcome::Done(plan.change);
        }
        let round = Self::new(shared, interrupt, plan);
        // What is found at the origin later is known to be ours.
        if let Err(error) = tombolo_core::block_on(shared.journal.stable(ticket)) {
            round.fail(None, &error);
        } else {
            round.make_directories();
            round.send_files();
            round.keep_numbers();
            round.send_names();
            round.send_directories();
            round.look_at_versions();
            round.offer_data();
        }
        round.settle();
        let found = std::mem::take(&mut *lock(&round.found));
        if let Some(refusal) = found.refusal.clone() {
            shared.control.tell(|state| state.refusal = Some(refusal));
        }
        match found.failure(round.plan.change) {
            None if found.has_conflicts => Outcome::Again,
            Some(failure) if failure.stuck.is_none() => Outcome::Failed(failure),
            failure if found.may_permit(&round.plan) => {
                Outcome::Permitted(failure.map_or(Ok(round.plan.change), Err))
            }
            Some(failure) => Outcome::Failed(failure),
            None => Outcome::Done(round.plan.change),
        }
    }

    fn new(shared: &Arc<Shared>, interrupt: &Interrupt, plan: Plan) -> Arc<Self> {
        let window = Window::new(shared.options.in_flight_max);
        let (shared, interrupt, found) = (shared.clone(), interrupt.clone(), Mutex::default());
        Arc::new(Self { shared, plan, window, interrupt, found })
    }

    /// Begins with work for a node.
    pub(super) fn start<F>(self: &Arc<Self>, id: NodeId, work: F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        if self.is_over() {
            return;
        }
        let (round, work) = (self.clone(), Caught(Box::pin(work)));
        self.window.start(async move {
            if let Err(error) = work.await {
                round.fail(Some(id), &error);
            }
        });
    }

    /// Records that work for a node has failed. A refused operation holds up nothing but what depends on it.
    pub(super) fn fail(&self, id: Option<NodeId>, error: &Error) {
        lock(&self.found).failed.extend(id);
        self.report(id, error);
    }

    /// Records that an operation on a name of a node has failed: the rest of the node may arrive.
    pub(super) fn fail_name(&self, id: NodeId, error: &Error) {
        self.set_undone([id]);
        self.report(Some(id), error);
    }

    fn report(&self, id: Option<NodeId>, error: &Error) {
        let error_text = with_causes(error);
        if let Some(id) = id.filter(|_| is_refusal(error)) {
            return self.report_refusal(id, &error_text);
        }
        tracing::warn!(
            node = id.map(|id| id.0),
            error = error_text,
            "a change cannot be brought to the origin yet"
        );
        let mut found = lock(&self.found);
        found.is_over |= is_away(error) || id.is_none();
        found.failure.get_or_insert(error_text);
    }

    fn report_refusal(&self, id: NodeId, error: &str) {
        let is_new =
            self.shared.control.state().stuck.as_ref().is_none_or(|stuck| !stuck.nodes.contains(&id));
        let before = {
            let mut found = lock(&self.found);
            found.refused_nodes.insert(id);
            found.refused_nodes.len() - 1
        };
        if before > 0 && (!is_new || before >= REFUSALS_LOGGED) {
            return;
        }
        let path = self.shared.tree().shown_path(id);
        let refusal = format!("the origin refuses what was done to {path}: {error}");
        if is_new {
            tracing::warn!(node = id.0, "{refusal}");
        }
        lock(&self.found).refused_operation.get_or_insert(refusal);
    }

    /// Records that nodes wait for others that are not at the origin.
    pub(super) fn wait_for_others(&self, ids: impl IntoIterator<Item = NodeId>) {
        let mut found = lock(&self.found);
        found.undone.extend(ids);
        found.consequence.get_or_insert_with(|| WAITS.into());
    }

    /// Returns `true` if the directory of a new node could not be created: then neither is the node.
    pub(super) fn lacks_home(&self, chosen: &Chosen) -> bool {
        let home = chosen.home.as_ref().map(|(dir, _)| *dir);
        let lacks = home.is_some_and(|dir| self.has_failed(dir) && self.below(dir).is_err());
        if lacks {
            self.wait_for_others([chosen.id]);
        }
        lacks
    }

    /// Nodes whose names are not all there yet.
    pub(super) fn set_undone(&self, ids: impl IntoIterator<Item = NodeId>) {
        lock(&self.found).undone.extend(ids);
    }

    /// Something was found at the origin that was not known: a node of ours is for the next time.
    pub(super) fn put_off(&self, ids: impl IntoIterator<Item = NodeId>) {
        let mut found = lock(&self.found);
        found.has_conflicts = true;
        found.failed.extend(ids);
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.found).is_over
    }

    pub(super) fn has_failed(&self, id: NodeId) -> bool {
        let found = lock(&self.found);
        found.failed.contains(&id) || found.undone.contains(&id)
    }

    /// Returns the nodes that have failed so far.
    pub(super) fn failed(&self) -> HashSet<NodeId> {
        lock(&self.found).all_failed()
    }

    /// Returns `true` if the attributes of a directory can be sent, whatever becomes of its names.
    pub(super) fn takes_attributes(&self, id: NodeId) -> bool {
        !lock(&self.found).failed.contains(&id) && self.below(id).is_ok()
    }

    /// What a node is at the origin since its last change there; `None`: it is to be looked at.
    pub(super) fn set_version(&self, id: NodeId, version: Option<WeakAttr>) {
        lock(&self.found).versions.insert(id, version);
    }

    /// The origin has refused these attributes of a node, which were asked for.
    pub(super) fn set_refused(&self, id: NodeId, refused: Set) {
        if !refused.is_empty() {
            lock(&self.found).refused.insert(id, refused);
        }
    }

    pub(super) fn set_refusal(&self, refusal: String) {
        lock(&self.found).refusal.get_or_insert(refusal);
    }

    /// Its data and attributes are at the origin.
    pub(super) fn set_sent(&self, id: NodeId, version: Option<WeakAttr>) {
        lock(&self.found).sent.insert(id);
        self.set_version(id, version);
    }

    /// What a node is there now that has arrived, if that is known.
    pub(super) fn version_of(&self, id: NodeId) -> Option<WeakAttr> {
        let found = lock(&self.found);
        let has_arrived = found.sent.contains(&id) && !found.failed.contains(&id);
        found.versions.get(&id).copied().flatten().filter(|_| has_arrived)
    }

    /// It is not known whether an operation has changed these names.
    pub(super) fn set_doubtful(&self, keys: impl IntoIterator<Item = Key>) {
        lock(&self.found).doubtful.extend(keys);
    }

    pub(super) fn is_doubtful_in(&self, dir: NodeId) -> bool {
        lock(&self.found).doubtful.iter().any(|key| key.0 == dir)
    }

    /// Names were changed in a directory.
    pub(super) fn set_changed(&self, dir: NodeId) {
        lock(&self.found).changed.insert(dir);
    }

    pub(super) fn set_links_differ(&self, dirs: impl IntoIterator<Item = NodeId>) {
        lock(&self.found).links_differ.extend(dirs);
    }

    pub(super) fn has_changed(&self, dir: NodeId) -> bool {
        lock(&self.found).changed.contains(&dir)
    }

    pub(super) fn cx(&self, identity: Identity) -> Ctx {
        Ctx { identity, interrupt: self.interrupt.clone(), ..Ctx::root(SESSION) }
    }

    /// The number below of a node that is there.
    pub(super) fn below(&self, id: NodeId) -> Result<NodeId> {
        self.shared.tree().below(id).ok_or(Error::Stale)
    }

    /// Does work in the name of the first of these users that may.
    pub(super) async fn by_first<T>(
        &self,
        users: &[Identity],
        work: impl Fn(&Ctx) -> Answer<T>,
    ) -> Result<(T, Ctx)> {
        let mut refused = Error::AccessDenied;
        for (index, user) in users.iter().enumerate() {
            if users.get(..index).is_some_and(|before| before.contains(user)) {
                continue;
            }
            let cx = self.cx(user.clone());
            match work(&cx).resolve().await {
                Err(error @ (Error::AccessDenied | Error::NotPermitted)) => refused = error,
                done => return done.map(|done| (done, cx)),
            }
        }
        Err(refused)
    }

    /// Remembers that a node was made in the name of its owner.
    pub(super) fn set_made_by_owner(&self, id: NodeId) {
        lock(&self.found).made_by_owner.insert(id);
    }

    /// Returns whether this attempt has made a node in the name of its owner.
    pub(super) fn is_made_by_owner(&self, id: NodeId) -> bool {
        lock(&self.found).made_by_owner.contains(&id)
    }

    /// What was made has its number on the disk before it gets its name: under the one that was written down
    /// it is not found any more then.
    fn keep_numbers(&self) {
        if self.is_over() || self.plan.nodes.values().all(|chosen| chosen.home.is_none()) {
            return;
        }
        if let Err(error) = tombolo_core::block_on(self.shared.journal.all_stable()) {
            self.fail(None, &error);
        }
    }

    /// What is not known yet of what nodes are at the origin now.
    fn look_at_versions(self: &Arc<Self>) {
        let mut unknown: Vec<NodeId> = {
            let found = lock(&self.found);
            found.versions.iter().filter(|(_, version)| version.is_none()).map(|(id, _)| *id).collect()
        };
        {
            let tree = self.shared.tree();
            // What has no name is not there any more, unless it is open.
            let is_over = |id| tree.is_unnamed(id) && !tree.open.contains_key(&id);
            unknown.retain(|id| tree.nodes.contains_key(id) && !is_over(*id));
        }
        for id in unknown {
            let round = self.clone();
            self.start(id, async move {
                let below = round.below(id)?;
                let cx = round.cx(Identity::ROOT);
                match round.shared.below.getattr(&cx, below, None).resolve().await {
                    Ok(attr) => round.set_version(id, Some(WeakAttr::from(&attr))),
                    // It had no other name.
                    Err(Error::Stale | Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            });
        }
        self.window.wait();
    }

    /// What is at the origin differs no more.
    fn settle(&self) {
        let found = lock(&self.found);
        self.shared.note(|tree| {
            for chosen in self.plan.nodes.values() {
                let is_there = found.sent.contains(&chosen.id) && !found.failed.contains(&chosen.id);
                let refused = found.refused.get(&chosen.id).copied().unwrap_or_default();
                settle(tree, chosen, is_there.then_some(refused));
                if (found.links_differ.contains(&chosen.id) || found.undone.contains(&chosen.id))
                    && let Some(node) = tree.node_mut(chosen.id)
                {
                    node.set |= Set::NAMES;
                }
            }
            for (id, version) in &found.versions {
                if tree.nodes.contains_key(id)
                    && let Some(node) = tree.node_mut(*id)
                {
                    node.version = *version;
                }
            }
            for key in self.plan.names.keys().filter(|key| !found.doubtful.contains(key)) {
                tree.set_doubt(key.0, &key.1, false);
            }
            tree.bury_gone();
            tree.epoch += 1;
            tree.forget_settled();
            if found.failure(self.plan.change).is_none() && !found.has_conflicts {
                tree.at_origin(self.plan.change);
            }
        });
        drop(found);
        self.shared.freed();
    }

    /// Ends an opening below.
    pub(super) fn release(&self, cx: &Ctx, file: File) {
        self.shared.below.release(cx, file);
    }
}

impl Found {
    /// Returns `true` if a requested mode or owner has arrived while something was refused.
    fn may_permit(&self, plan: &Plan) -> bool {
        let permits = |chosen: &Arc<Chosen>| {
            let refused = self.refused.get(&chosen.id).copied().unwrap_or_default();
            let arrived = chosen.set - chosen.implied - refused;
            self.sent.contains(&chosen.id) && arrived.intersects(Set::MODE | Set::OWNER)
        };
        let is_refused = !self.refused_nodes.is_empty() || !self.refused.is_empty();
        is_refused && plan.nodes.values().any(permits)
    }

    fn all_failed(&self) -> HashSet<NodeId> {
        &self.failed | &self.undone
    }

    /// Returns why the origin does not have all up to `change`.
    fn failure(&self, change: u64) -> Option<Failure> {
        let others = self.failure.as_ref();
        let reason = others.or(self.refused_operation.as_ref()).or(self.consequence.as_ref())?.clone();
        let is_refused = !self.refused_nodes.is_empty();
        let is_stuck = is_refused && others.is_none() && !self.has_conflicts;
        let stuck = is_stuck.then(|| Stuck { nodes: self.all_failed(), change });
        Some(Failure { reason, is_refused, refused: self.refused_nodes.len(), stuck })
    }
}

impl<F: Future<Output = Result<()>>> Future for Caught<F> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let polled = catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(cx)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(Error::io(PANICKED))))
    }
}

/// Takes in that a node is at the origin, but for what that has refused; or that it is not.
fn settle(tree: &mut Tree, chosen: &Chosen, refused: Option<Set>) {
    let Some(node) = tree.node_mut(chosen.id) else { return };
    node.is_sent = false;
    let sending = std::mem::take(&mut node.sending);
    let Some(refused) = refused else {
        node.set |= sending;
        node.thaw();
        return;
    };
    // What was changed since is for the next time.
    node.refused = refused - node.set;
    node.set |= refused;
    node.implied &= node.set;
    if !refused.contains(Set::XATTRS) {
        node.xattrs.retain(|name, value| chosen.xattrs.get(name) != Some(value));
    }
    let sent = node.take_sent(chosen.layers.len());
    sent.into_iter().for_each(|layer| tree.drop_layer(layer));
}

fn with_causes(error: &Error) -> String {
    let (mut text, mut cause) = (error.to_string(), std::error::Error::source(error));
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Nothing else would be answered now.
fn is_away(error: &Error) -> bool {
    matches!(error, Error::Disconnected | Error::TimedOut | Error::Interrupted)
}
