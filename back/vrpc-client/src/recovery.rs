//! Restoring a session's state on its next link: nodes by handle, then openings and locks.

use std::sync::Arc;

use tombolo_core::fs::{Entry, File, NodeId, OpenId};
use tombolo_core::{Ctx, Error, Identity, Interrupt, SessionId};
use tombolo_host_links::client::Reply as Raw;
use tombolo_wire_vrpc::{Kind, Reply, Request};

use crate::link::{Link, Unknown};
use crate::reply::Answered;
use crate::request::NoAnswer;
use crate::slab::Theirs;

type Found = Result<(), NoAnswer>;

/// Restores the node or opening without which a request cannot be sent.
pub(crate) async fn found_again(link: &Arc<Link>, cx: &Ctx, unknown: Unknown) -> Found {
    match unknown {
        Unknown::Node(node) => node_again(link, cx, node).await,
        Unknown::Open(open) => open_again(link, cx, open).await,
        Unknown::Gone(error) => Err(NoAnswer::Failed(error)),
    }
}

/// Reopens a file and takes its locks again, independent of a request.
pub(crate) async fn opening(link: &Arc<Link>, open: OpenId) -> Found {
    open_again(link, &no_caller(), open).await
}

/// Checks that the server replies.
pub(crate) async fn null(link: &Arc<Link>) -> Found {
    asked(link, &no_caller(), Request::Null, |reply| matches!(reply, Reply::Done).then_some(())).await
}

fn no_caller() -> Ctx {
    Ctx { interrupt: Interrupt::default(), ..Ctx::root(SessionId(0)) }
}

/// Returns the error for a node that a server cannot find. A lost link is reported as such, because the node
/// may already be bound on the next one.
fn unknown(link: &Link) -> NoAnswer {
    if link.line.is_lost() { NoAnswer::Lost } else { NoAnswer::Failed(Error::Stale) }
}

async fn node_again(link: &Arc<Link>, cx: &Ctx, node: NodeId) -> Found {
    let Some(handle) = link.things.nodes.handle(node).filter(|_| link.knows_handles()) else {
        return Err(unknown(link));
    };
    let request = Request::Resolve { handle: (&handle).into() };
    let entry = asked(link, cx, request, |reply| match reply {
        Reply::Entry(entry, _) => Some(entry),
        _ => None,
    });
    let Entry { node: theirs, .. } = entry.await?;
    if let Some(extra) = link.things.nodes.found_again(link.number, node, theirs) {
        link.tell(cx, Request::Forget { forgets: tombolo_wire_vrpc::Forgets::new(&[extra]) });
    }
    match link.things.nodes.theirs(node, link.number) {
        Theirs::Bound(_) => Ok(()),
        Theirs::Unbound => Err(unknown(link)),
        Theirs::Gone => Err(NoAnswer::Failed(Error::Stale)),
    }
}

async fn open_again(link: &Arc<Link>, cx: &Ctx, open: OpenId) -> Found {
    let things = &link.things;
    let opening = things.openings.get(open).ok_or(NoAnswer::Failed(Error::BadOpen))?;
    if opening.is_broken {
        return Err(NoAnswer::Failed(Error::io("a lock was lost to another client")));
    }
    let file = File { node: opening.node, open };
    if things.nodes.theirs(file.node, link.number) == Theirs::Unbound {
        node_again(link, cx, file.node).await?;
    }
    let Theirs::Bound(node) = things.nodes.theirs(file.node, link.number) else {
        return Err(unknown(link));
    };
    let node = NodeId(node);
    let request = Request::Open { node, flags: opening.flags };
    let opener = Ctx { identity: opening.identity.clone(), want: Default::default(), ..cx.clone() };
    let opened = match asked(link, &opener, request, opened).await {
        // The opener may have lost the permission since. A server that trusts this client also trusts that it
        // had it.
        Err(NoAnswer::Failed(Error::AccessDenied | Error::NotPermitted)) => {
            let root = Ctx { identity: Identity::ROOT, ..opener };
            asked(link, &root, request, opened).await?
        }
        opened => opened?,
    };
    if !things.openings.opened_again(open, link.number, opened) {
        link.tell(cx, Request::Release { file: File { node, open: opened } });
        return Ok(());
    }
    locks_again(link, cx, file, File { node, open: opened }).await
}

/// Takes the locks of an opening again. A lock held by another client now breaks the opening for good,
/// because the guarded data may have changed. After other failures, the next use retries. Interrupts of the
/// present request are ignored: the lock does not belong to it alone.
async fn locks_again(link: &Arc<Link>, cx: &Ctx, file: File, theirs: File) -> Found {
    for held in link.things.nodes.locks_of(file.node, file.open) {
        let holder = Ctx {
            identity: held.note,
            want: Default::default(),
            interrupt: Interrupt::default(),
            ..cx.clone()
        };
        let request = Request::Lock { file: theirs, lock: held.lock, wait: false };
        let locked = asked(link, &holder, request, |reply| matches!(reply, Reply::Done).then_some(()));
        match locked.await {
            Ok(()) => {}
            Err(NoAnswer::Lost) => return Err(NoAnswer::Lost),
            Err(NoAnswer::Failed(error)) if !matches!(error, Error::WouldBlock) => {
                tracing::warn!(link = &**link.line.label(), %error, "cannot take a lock again after reconnecting");
                link.things.openings.unbind(file.open);
                link.tell(cx, Request::Release { file: theirs });
                return Err(NoAnswer::Failed(error));
            }
            Err(NoAnswer::Failed(error)) => {
                tracing::error!(link = &**link.line.label(), %error, "a lock was lost to another client: its open file is unusable");
                link.things.openings.break_off(file.open);
                link.tell(cx, Request::Release { file: theirs });
                return Err(NoAnswer::Failed(Error::io("a lock was lost to another client")));
            }
        }
    }
    Ok(())
}

fn opened(reply: Reply<'_>) -> Option<OpenId> {
    match reply {
        Reply::Opened(opened) => Some(opened.open),
        _ => None,
    }
}

async fn asked<T>(
    link: &Arc<Link>,
    cx: &Ctx,
    request: Request<'_>,
    pick: impl FnOnce(Reply<'_>) -> Option<T>,
) -> Result<T, NoAnswer> {
    let kind: Kind = request.kind();
    let reply: Raw = link.asked(cx, request.into()).await?;
    let picked = link.finish(kind, reply, |link: &Link, answered: Answered| answered.picked(link, pick));
    picked.map_err(NoAnswer::Failed)
}
