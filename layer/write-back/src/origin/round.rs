//! One round of an attempt: it sends all differences of a [`Plan`] to the origin.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use tombolo_core::fs::{Attr, File, NodeId, WeakAttr};
use tombolo_core::{Answer, Ctx, Error, Identity, Interrupt, Result, lock};

use super::attributes::is_refusal;
use super::plan::{Chosen, Key, Plan};
use super::window::Window;
use crate::shared::{SESSION, Shared};
use crate::tree::{Set, Tree};

/// One round, shared by its concurrent operations.
pub(super) struct Round {
    pub shared: Arc<Shared>,
    pub plan: Plan,
    pub window: Arc<Window>,
    interrupt: Interrupt,
    found: Mutex<Found>,
}

/// Options of a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// `true` if all differing names are looked up first.
    pub looks: bool,
    /// `true` if refused attributes are tried again.
    pub tries_refused: bool,
}

/// Outcome of a round.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The origin has all changes up to this one.
    Done(u64),
    /// Other writers' changes were found and recorded; another round is due.
    Again,
    /// The origin has got modes or owners that may permit refused operations. Contains the outcome to report
    /// if no further round follows.
    Permitted(std::result::Result<u64, Failure>),
    /// The origin lacks changes, for this reason.
    Failed(Failure),
}

/// Reason why the origin lacks changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Failure {
    pub reason: String,
    /// `true` if the origin has refused an operation other than a change of attributes.
    pub is_refused: bool,
    /// Number of nodes with a refused operation.
    pub refused: usize,
    /// Unsent changes, if refusals are the only reason.
    pub stuck: Option<Stuck>,
}

/// Changes that only wait for refused operations.
#[derive(Clone, Debug)]
pub(super) struct Stuck {
    /// Nodes of which the origin lacks something.
    pub nodes: HashSet<NodeId>,
    /// Nodes whose data could not be sent.
    pub unsent: Arc<HashSet<NodeId>>,
    /// The origin has all other changes up to this one.
    pub change: u64,
}

/// Results of a round so far.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Nodes whose data or attributes could not be sent.
    pub failed: HashSet<NodeId>,
    /// Nodes of which the origin lacks names.
    pub undone: HashSet<NodeId>,
    /// First failure that is neither a refusal nor the consequence of another failure.
    pub failure: Option<String>,
    /// First failure that follows from another, such as a missing directory.
    pub consequence: Option<String>,
    /// Nodes with an operation that the origin has refused, other than a change of attributes.
    pub refused_nodes: HashSet<NodeId>,
    /// First refusal of such an operation.
    pub refused_operation: Option<String>,
    /// Names that a failed operation may have changed.
    pub in_doubt: HashSet<Key>,
    /// `true` if the origin is unreachable, the journal cannot be written or the sender is ending, so that no
    /// further operation is tried.
    pub is_over: bool,
    /// `true` if another writer's changes were adopted, and another round is due.
    pub has_conflicts: bool,
    /// Nodes whose data and attributes are at the origin.
    pub sent: HashSet<NodeId>,
    /// Nodes that were created as their owner.
    pub made_by_owner: HashSet<NodeId>,
    /// Directories whose entries were changed.
    pub changed: HashSet<NodeId>,
    /// Directories whose local link count may still differ after the round.
    pub links_differ: HashSet<NodeId>,
    /// Attributes at the origin after the last change; `None` if to be fetched.
    pub versions: HashMap<NodeId, Option<Attr>>,
    /// Requested attributes that the origin has refused, of the nodes sent; mostly none of them.
    pub refused: HashMap<NodeId, Set>,
    /// First refusal of requested attributes.
    pub refusal: Option<String>,
}

/// Work whose panic is a failure: the node is not recorded as sent, and the thread continues.
struct Caught<F>(Pin<Box<F>>);

const PANICKED: &str = "write-back has panicked: see the log";

/// Maximum number of refusals logged in one round.
const REFUSALS_LOGGED: usize = 100;

/// Reason for which the origin lacks the name of a node that waits for other nodes.
pub(super) const WAITS: &str = "what it replaces, or is to become, is not there yet";

impl Round {
    /// Sends all current differences to the origin. A panic is a failure.
    pub(super) fn run(shared: &Arc<Shared>, interrupt: &Interrupt, how: How) -> Outcome {
        let run = AssertUnwindSafe(|| Self::attempt(shared, interrupt, how));
        let panicked = Failure { reason: PANICKED.into(), ..Failure::default() };
        catch_unwind(run).unwrap_or(Outcome::Failed(panicked))
    }

    /// Performs the phases of a round in order.
    fn attempt(shared: &Arc<Shared>, interrupt: &Interrupt, how: How) -> Outcome {
        if how.looks {
            let round = Self::new(shared, interrupt, Plan::default());
            round.look_at_all();
            // Names that the origin refused to look up are left alone later, and delay nothing else.
            if let Some(failure) = lock(&round.found).failure(0).filter(|failure| failure.stuck.is_none()) {
                return Outcome::Failed(failure);
            }
        }
        let choose = |tree: &mut Tree| Plan::choose(tree, how.tries_refused);
        let (plan, ticket) = shared.gate.closed(|| shared.note(choose));
        if plan.is_empty() {
            shared.note(|tree| tree.forget_unused());
            return Outcome::Done(plan.change);
        }
        let round = Self::new(shared, interrupt, plan);
        // The plan is made stable first: by it, new nodes found at the origin after a crash are recognised.
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

    /// Begins work for a node, unless the round is over. A failure of the work is recorded.
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

    /// Records failed work for a node, or else ends the round. A refusal delays only dependent changes.
    pub(super) fn fail(&self, id: Option<NodeId>, error: &Error) {
        self.found().failed.extend(id);
        self.report(id, error);
    }

    /// Records a failed operation on a name of a node, whose data and attributes may still be sent.
    pub(super) fn fail_name(&self, id: NodeId, error: &Error) {
        self.found().undone.insert(id);
        self.report(Some(id), error);
    }

    /// Reports a failure: a refusal as such, others as the reason of the round's failure.
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
        let mut found = self.found();
        found.is_over |= is_away(error) || id.is_none();
        found.failure.get_or_insert(error_text);
    }

    /// Records a refused operation on a node. Logs it, up to a limit, if the last attempt did not meet it.
    fn report_refusal(&self, id: NodeId, error: &str) {
        let is_new =
            self.shared.control.state().stuck.as_ref().is_none_or(|stuck| !stuck.nodes.contains(&id));
        let before = {
            let mut found = self.found();
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
        self.found().refused_operation.get_or_insert(refusal);
    }

    /// Records nodes that wait for others that are not at the origin.
    pub(super) fn wait_for_others(&self, ids: impl IntoIterator<Item = NodeId>) {
        let mut found = self.found();
        found.undone.extend(ids);
        found.consequence.get_or_insert_with(|| WAITS.into());
    }

    /// Returns `true` if the directory of a new node could not be created, and records that the node waits.
    pub(super) fn lacks_home(&self, chosen: &Chosen) -> bool {
        let home = chosen.home.as_ref().map(|(dir, _)| *dir);
        let lacks = home.is_some_and(|dir| self.has_failed(dir) && self.below(dir).is_err());
        if lacks {
            self.found().failed.insert(chosen.id);
            self.wait_for_others([chosen.id]);
        }
        lacks
    }

    /// Records nodes for another round, which is due as another writer's change was found.
    pub(super) fn put_off(&self, ids: impl IntoIterator<Item = NodeId>) {
        let mut found = self.found();
        found.has_conflicts = true;
        found.failed.extend(ids);
    }

    pub(super) fn found(&self) -> MutexGuard<'_, Found> {
        lock(&self.found)
    }

    pub(super) fn is_over(&self) -> bool {
        self.found().is_over
    }

    pub(super) fn has_failed(&self, id: NodeId) -> bool {
        let found = self.found();
        found.failed.contains(&id) || found.undone.contains(&id)
    }

    /// Returns `true` if the attributes of a directory can be sent, even if its names cannot.
    pub(super) fn takes_attributes(&self, id: NodeId) -> bool {
        !self.found().failed.contains(&id) && self.below(id).is_ok()
    }

    /// Records the attributes of a node at the origin after its last change; `None` if to be fetched.
    pub(super) fn set_version(&self, id: NodeId, version: Option<Attr>) {
        self.found().versions.insert(id, version);
    }

    /// Returns the version of a node whose data and attributes are at the origin, if it is known.
    pub(super) fn version_of(&self, id: NodeId) -> Option<WeakAttr> {
        let found = self.found();
        let has_arrived = found.sent.contains(&id) && !found.failed.contains(&id);
        let version = found.versions.get(&id).and_then(Option::as_ref);
        version.filter(|_| has_arrived).map(WeakAttr::from)
    }

    pub(super) fn cx(&self, identity: Identity) -> Ctx {
        Ctx { identity, interrupt: self.interrupt.clone(), ..Ctx::root(SESSION) }
    }

    /// Returns the cache's number of a node; fails with `Stale` if the origin lacks the node.
    pub(super) fn below(&self, id: NodeId) -> Result<NodeId> {
        self.shared.tree().below(id).ok_or(Error::Stale)
    }

    /// Performs work as the first user whom the origin permits it; fails with the last refusal, or another
    /// error.
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

    /// Makes the cache's numbers of created nodes stable in the journal before the nodes get their final
    /// names: without its number, a node is found after a crash only under the name at which it was created.
    fn keep_numbers(&self) {
        if self.is_over() || self.plan.nodes.values().all(|chosen| chosen.home.is_none()) {
            return;
        }
        if let Err(error) = tombolo_core::block_on(self.shared.journal.all_stable()) {
            self.fail(None, &error);
        }
    }

    /// Queries the versions of changed nodes that are still unknown.
    fn look_at_versions(self: &Arc<Self>) {
        let mut unknown: Vec<NodeId> = {
            let found = self.found();
            found.versions.iter().filter(|(_, version)| version.is_none()).map(|(id, _)| *id).collect()
        };
        {
            let tree = self.shared.tree();
            // Nodes without a name are gone, unless they are open.
            let is_over = |id| tree.is_unnamed(id) && !tree.open.contains_key(&id);
            unknown.retain(|id| tree.nodes.contains_key(id) && !is_over(*id));
        }
        for id in unknown {
            let round = self.clone();
            self.start(id, async move {
                let below = round.below(id)?;
                let cx = round.cx(Identity::ROOT);
                match round.shared.below.getattr(&cx, below, None).resolve().await {
                    Ok(attr) => round.set_version(id, Some(attr)),
                    // The node is gone: it had no name besides those removed.
                    Err(Error::Stale | Error::NotFound) => {}
                    Err(error) => return Err(error),
                }
                Ok(())
            });
        }
        self.window.wait();
    }

    /// Removes the differences that the origin now has.
    fn settle(&self) {
        let found = self.found();
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
                    let sent = self.plan.nodes.get(id).map_or(Set::empty(), |chosen| chosen.set);
                    node.version = version.as_ref().map(WeakAttr::from);
                    version.iter().for_each(|there| node.take_in(there, sent));
                }
            }
            for key in self.plan.names.keys().filter(|key| !found.in_doubt.contains(key)) {
                tree.set_doubt(key.0, &key.1, false);
            }
            tree.forget_unused();
            tree.epoch += 1;
            tree.forget_settled();
            if found.failure(self.plan.change).is_none() && !found.has_conflicts {
                tree.at_origin(self.plan.change);
            }
        });
        drop(found);
        self.shared.freed();
    }

    pub(super) fn release(&self, cx: &Ctx, file: File) {
        self.shared.below.release(cx, file);
    }
}

impl Found {
    /// Returns `true` if the origin has got a requested mode or owner, and has refused an operation.
    fn may_permit(&self, plan: &Plan) -> bool {
        let permits = |chosen: &Arc<Chosen>| {
            let refused = self.refused.get(&chosen.id).copied().unwrap_or_default();
            let arrived = chosen.set - chosen.implied - refused;
            self.sent.contains(&chosen.id) && arrived.intersects(Set::MODE | Set::OWNER)
        };
        !self.refused_nodes.is_empty() && plan.nodes.values().any(permits)
    }

    /// Returns the nodes of which something has failed.
    pub fn all_failed(&self) -> HashSet<NodeId> {
        &self.failed | &self.undone
    }

    /// Returns the reason why the origin lacks changes up to `change`; `None` without a failure.
    fn failure(&self, change: u64) -> Option<Failure> {
        let others = self.failure.as_ref();
        let reason = others.or(self.refused_operation.as_ref()).or(self.consequence.as_ref())?.clone();
        let is_refused = !self.refused_nodes.is_empty();
        let is_stuck = is_refused && others.is_none() && !self.has_conflicts;
        let stuck = is_stuck.then(|| Stuck {
            nodes: self.all_failed(),
            unsent: Arc::new(self.failed.clone()),
            change,
        });
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

/// Removes the differences of a node that was sent, except for those in `refused`; retains all if that is
/// `None`.
fn settle(tree: &mut Tree, chosen: &Chosen, refused: Option<Set>) {
    let Some(node) = tree.node_mut(chosen.id) else { return };
    node.is_sent = false;
    let sending = std::mem::take(&mut node.sending);
    let Some(refused) = refused else {
        node.set |= sending;
        node.thaw();
        return;
    };
    // Attributes changed since the plan are not refused yet: they are sent next time.
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

/// Returns `true` if the origin would answer no other request now either, or the sender is ending.
fn is_away(error: &Error) -> bool {
    matches!(error, Error::Disconnected | Error::TimedOut | Error::Interrupted)
}
