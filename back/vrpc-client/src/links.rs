//! The successive links of a session.
//!
//! A request is sent over the current link. If the link is lost before the reply, it is sent again over the
//! next one, translated to the ids of that server. A change then has the same sequence number as before, by
//! which the server recognises it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use smallvec::SmallVec;
use tombolo_core::fs::{NodeId, Notice};
use tombolo_core::{Answer, Ctx, Error, Interrupt, Result, SessionId, lock, or_answer};
use tombolo_host_links::EndReason;
use tombolo_wire_vrpc::{Forgets, Reply, Request, Session};

use crate::behind::WritesBehind;
use crate::connect::LinkLossPolicy;
use crate::link::{Link, SessionObjects, Untranslatable};
use crate::owned::Owned;
use crate::released::{Released, ReleasedKind};
use crate::reply::Answered;
use crate::request::{InFlight, NoAnswer, Outcome, OutgoingRequest, Sent};

/// Time without a link after which waiting requests can be interrupted; until then a new link may bring the
/// reply.
const UNINTERRUPTIBLE: Duration = Duration::from_secs(2);

/// The successive links of a session.
pub(crate) struct Links {
    current: ArcSwap<Link>,
    /// Terms of the first link, on which users of the session rely.
    pub(crate) terms: Session,
    pub(crate) objects: Arc<SessionObjects>,
    /// The writes behind of the session; `None` if all writes are awaited.
    behind: Option<WritesBehind>,
    link_loss_policy: LinkLossPolicy,
    link_waiters: Mutex<LinkWaiters>,
    /// Channel by which the supervisor is asked to check if the link is lost.
    supervisor: SyncSender<()>,
    /// `true` if the server reports all changes, so that results may be cached; `false` without a link.
    reports_all_changes: AtomicBool,
}

/// Requests waiting for the next link.
#[derive(Default)]
struct LinkWaiters {
    waiters: Vec<Waker>,
    /// Start of the time without a link; `None` while there is one.
    since: Option<Instant>,
    /// `true` once no further link will be established.
    has_ended: bool,
}

impl Links {
    /// Creates the state of a session that has its first link.
    pub(crate) fn new(
        first: Arc<Link>,
        behind: Option<WritesBehind>,
        link_loss_policy: LinkLossPolicy,
        supervisor: SyncSender<()>,
    ) -> Self {
        let (terms, objects) = (first.terms, first.objects.clone());
        let links = Self {
            current: ArcSwap::new(first),
            terms,
            objects,
            behind,
            link_loss_policy,
            link_waiters: Mutex::default(),
            supervisor,
            reports_all_changes: AtomicBool::new(false),
        };
        links.watch(&links.current.load());
        links
    }

    /// Makes the end of the link notify the supervisor, even if no request is pending.
    fn watch(&self, link: &Link) {
        let supervisor = self.supervisor.clone();
        // A full channel means that the supervisor is notified already.
        link.line.on_end(move || {
            let _ = supervisor.try_send(());
        });
    }

    /// Returns the current link, which may be lost.
    pub(crate) fn current(&self) -> Arc<Link> {
        self.current.load_full()
    }

    /// Returns a short-lived guard of the current link, which is cheaper than [`current`](Self::current).
    #[inline]
    pub(crate) fn current_now(&self) -> arc_swap::Guard<Arc<Link>> {
        self.current.load()
    }

    /// Takes replies out of the ring, unless another thread is receiving, and removes the writes that they
    /// answer. Returns the session's remaining writes behind; `None` if all writes are awaited.
    pub(crate) fn settled(&self) -> Option<&WritesBehind> {
        let behind = self.behind.as_ref()?;
        if !behind.is_empty() {
            self.current.load().line.receive();
            behind.collect(&self.objects);
        }
        Some(behind)
    }

    /// Sends a request. `finish` converts the reply to the waist's result.
    pub(crate) fn call<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        request: Request<'_>,
        finish: impl FnOnce(&Link, Answered) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        self.call_with_tail(cx, self.objects.next_sequence(), (request, &[]), finish)
    }

    /// Sends a request as [`call`](Self::call) does, with a sequence number that it may have been sent with
    /// before, and with bytes that follow its frame.
    #[inline]
    pub(crate) fn call_with_tail<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        sequence: u64,
        (request, tail): (Request<'_>, &[u8]),
        finish: impl FnOnce(&Link, Answered) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let link = self.current.load();
        let kind = request.kind();
        let mut in_flight = None;
        match link.translated(&request) {
            Ok(request) => match link.send(cx, sequence, OutgoingRequest { request, tail, ..request.into() })
            {
                Sent::Ended(Ok(reply)) => return Answer::Done(link.finish(kind, reply, finish)),
                Sent::Ended(Err(NoAnswer::Failed(error))) => return Answer::err(error),
                Sent::Ended(Err(NoAnswer::Lost)) => {}
                Sent::Pending(pending) => in_flight = Some(pending),
            },
            Err(Untranslatable::Gone(error)) => return Answer::err(error),
            Err(_) => {}
        }
        let owned = or_answer!(Owned::new(&request, tail, sequence, cx));
        Answer::later(self.clone().resume(owned, in_flight, cx.clone(), finish))
    }

    /// Sends a request as [`call`](Self::call) does, and returns the part of the reply that `pick` extracts.
    pub(crate) fn call_for<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        request: Request<'_>,
        pick: impl FnOnce(Reply<'_>) -> Option<T> + Send + 'static,
    ) -> Answer<T> {
        self.call(cx, request, |link, answered| answered.extract(link, pick))
    }

    /// Sends a request that has no result, as [`call`](Self::call) does.
    pub(crate) fn call_unit(self: &Arc<Self>, cx: &Ctx, request: Request<'_>) -> Answer<()> {
        self.call_for(cx, request, |reply| matches!(reply, Reply::Done).then_some(()))
    }

    /// Sends a request over one link, whose memory it references. [`Error::Disconnected`] if the link is
    /// lost.
    pub(crate) fn call_on<T: Send + 'static>(
        self: &Arc<Self>,
        link: &Arc<Link>,
        cx: &Ctx,
        sequence: u64,
        outgoing: OutgoingRequest<'_>,
        finish: impl FnOnce(&Link, Answered) -> Result<T> + Send + 'static,
    ) -> Answer<T> {
        let kind = outgoing.request.kind();
        let pending = match link.translated(&outgoing.request) {
            Ok(request) => match link.send(cx, sequence, OutgoingRequest { request, ..outgoing }) {
                Sent::Ended(Ok(reply)) => return Answer::Done(link.finish(kind, reply, finish)),
                Sent::Ended(Err(no_answer)) => return Answer::err(no_answer),
                Sent::Pending(pending) => pending,
            },
            Err(Untranslatable::Gone(error)) => return Answer::err(error),
            Err(_) => {
                let owned = or_answer!(Owned::new(&outgoing.request, outgoing.tail, sequence, cx));
                let (link, cx, spans) = (link.clone(), cx.clone(), outgoing.spans);
                return Answer::later(async move {
                    let reply = owned.send(&link, &cx, spans).await?;
                    link.finish(kind, reply, finish)
                });
            }
        };
        let interrupt = cx.interrupt.clone();
        Answer::later(async move {
            let link = pending.link.clone();
            let reply = pending.outcome(&interrupt).await?;
            link.finish(kind, reply, finish)
        })
    }

    /// Performs an operation that uses [`call_on`](Self::call_on) over the current link, and again over each
    /// further link until one lasts until the reply.
    pub(crate) fn repeat<T: Send + 'static>(
        self: &Arc<Self>,
        cx: &Ctx,
        ask: impl Fn(&Arc<Self>, &Arc<Link>, &Ctx) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let link = self.current.load();
        let answer = ask(self, &link, cx);
        if let Answer::Done(result) = answer {
            match result {
                Err(Error::Disconnected) if link.line.is_lost() => {}
                result => return Answer::Done(result),
            }
            return Answer::later(self.clone().repeat_on(cx.clone(), ask));
        }
        let (links, link, cx) = (self.clone(), link.clone(), cx.clone());
        Answer::later(async move {
            match answer.resolve().await {
                Err(Error::Disconnected) if link.line.is_lost() => links.repeat_on(cx, ask).await,
                result => result,
            }
        })
    }

    async fn repeat_on<T>(
        self: Arc<Self>,
        cx: Ctx,
        ask: impl Fn(&Arc<Self>, &Arc<Link>, &Ctx) -> Answer<T>,
    ) -> Result<T> {
        loop {
            let link = self.usable(&cx.interrupt).await?;
            match ask(&self, &link, &cx).resolve().await {
                Err(Error::Disconnected) if link.line.is_lost() => {}
                result => return result,
            }
        }
    }

    /// Releases nodes and openings at the server that has assigned their ids: now, or once the link to that
    /// server is the current one. Releases for a former link are dropped.
    pub(crate) fn release(&self, cx: &Ctx, gone: &[Released]) {
        let link = self.current.load();
        send_releases(&link, cx, gone);
        let later = gone.iter().filter(|gone| gone.link > link.number);
        let is_any = later.map(|gone| self.objects.releases.put(*gone)).count() > 0;
        if is_any {
            // The link may have become current before the entry was queued.
            self.send_queued_releases();
        }
    }

    fn send_queued_releases(&self) {
        let link = self.current.load();
        send_releases(&link, &Ctx::root(SessionId(0)), &self.objects.releases.take(link.number));
    }

    /// Continues a request until it has a reply, over further links if the present one is lost.
    async fn resume<T>(
        self: Arc<Self>,
        owned: Owned,
        in_flight: Option<InFlight>,
        cx: Ctx,
        finish: impl FnOnce(&Link, Answered) -> Result<T>,
    ) -> Result<T> {
        let mut in_flight = in_flight;
        loop {
            let (link, outcome): (_, Outcome) = match in_flight.take() {
                Some(pending) => (pending.link.clone(), pending.outcome(&cx.interrupt).await),
                None => {
                    let link = self.usable(&cx.interrupt).await?;
                    let outcome = owned.send(&link, &cx, Default::default()).await;
                    (link, outcome)
                }
            };
            match outcome {
                Ok(reply) => return link.finish(owned.kind(), reply, finish),
                Err(NoAnswer::Failed(error)) => return Err(error),
                Err(NoAnswer::Lost) => {}
            }
        }
    }

    /// Returns a link that is not known to be lost, waiting within the session's timeout. Interrupts take
    /// effect only after two seconds without a link: until then the reply is worth waiting for, because the
    /// request may have been performed.
    pub(crate) async fn usable(&self, interrupt: &Interrupt) -> Result<Arc<Link>> {
        let mut raised = pin!(interrupt.raised());
        let mut is_raised = false;
        poll_fn(|context| {
            let link = self.current.load_full();
            if !link.line.is_lost() {
                return Poll::Ready(Ok(link));
            }
            is_raised = is_raised || (interrupt.can_be_raised() && raised.as_mut().poll(context).is_ready());
            let mut state = lock(&self.link_waiters);
            // The next link may have been installed before the lock was taken.
            let link = self.current.load_full();
            if !link.line.is_lost() {
                return Poll::Ready(Ok(link));
            }
            if state.has_ended || matches!(self.link_loss_policy, LinkLossPolicy::None) {
                return Poll::Ready(Err(Error::Disconnected));
            }
            let away = state.since.get_or_insert_with(Instant::now).elapsed();
            if is_raised && away >= UNINTERRUPTIBLE {
                return Poll::Ready(Err(Error::Interrupted));
            }
            if let LinkLossPolicy::Soft(timeout) = self.link_loss_policy
                && away >= timeout
            {
                return Poll::Ready(Err(Error::TimedOut));
            }
            if !state.waiters.iter().any(|waker| waker.will_wake(context.waker())) {
                state.waiters.push(context.waker().clone());
            }
            drop(state);
            self.check_link();
            Poll::Pending
        })
        .await
    }

    /// Asks the supervisor to check the link, which it replaces if it is lost.
    pub(crate) fn check_link(&self) {
        // A full channel means that the supervisor is notified already; a supervisor that has ended blocks no
        // request.
        let _ = self.supervisor.try_send(());
    }

    /// Records the loss of the current link. If the server was silent, the timeout of the session counts as
    /// elapsed.
    pub(crate) fn link_lost(&self, end: &EndReason) {
        let waited = match (end, self.link_loss_policy) {
            (EndReason::Silent, LinkLossPolicy::Soft(timeout)) => timeout,
            _ => Duration::ZERO,
        };
        // Writes whose replies were received must not be sent again: other clients may have written since.
        self.settled();
        let now = Instant::now();
        lock(&self.link_waiters).since.get_or_insert(now.checked_sub(waited).unwrap_or(now));
        self.current.load().bulk_waiters.changed();
        // Cached results are invalid until the next link reports changes.
        self.set_reports_all_changes(false);
        self.objects.nodes.notice(Notice::Everything);
    }

    /// Records if the server reports all changes, according to its latest reply.
    pub(crate) fn set_reports_all_changes(&self, all: bool) {
        self.reports_all_changes.store(all, Ordering::SeqCst);
    }

    pub(crate) fn reports_all_changes(&self) -> bool {
        self.reports_all_changes.load(Ordering::SeqCst)
    }

    /// Makes a new link the current one, and wakes the requests that wait for it.
    pub(crate) fn install(&self, link: Arc<Link>) {
        let former = self.current.swap(link);
        // The end of the link is watched only now, because the supervisor checks the current link.
        self.watch(&self.current.load());
        lock(&self.link_waiters).since = None;
        former.bulk_waiters.changed();
        self.send_queued_releases();
        self.wake_all();
    }

    /// Ends the session: no further link will be established.
    pub(crate) fn end(&self) {
        lock(&self.link_waiters).has_ended = true;
        if let Some(behind) = &self.behind {
            behind.fail_all(&self.objects);
        }
        self.current.load().bulk_waiters.changed();
        self.wake_all();
    }

    pub(crate) fn without_link_since(&self) -> Option<Instant> {
        lock(&self.link_waiters).since
    }

    /// Wakes requests that wait for a link, so that they check for a new link and for their deadlines.
    pub(crate) fn wake_all(&self) {
        let waiters = std::mem::take(&mut lock(&self.link_waiters).waiters);
        waiters.into_iter().for_each(Waker::wake);
    }
}

/// Sends those of the releases whose ids are of this link's server.
fn send_releases(link: &Arc<Link>, cx: &Ctx, gone: &[Released]) {
    let mut forgotten: SmallVec<[(NodeId, u64); 4]> = SmallVec::new();
    for gone in gone.iter().filter(|gone| gone.link == link.number) {
        match gone.kind {
            ReleasedKind::Opening(file) => link.send_detached(cx, Request::Release { file }),
            ReleasedKind::LookUps(node, look_ups) => forgotten.push((node, look_ups)),
        }
    }
    for some in forgotten.chunks(tombolo_wire_vrpc::FORGETS_MAX) {
        link.send_detached(cx, Request::Forget { forgets: Forgets::new(some) });
    }
}
