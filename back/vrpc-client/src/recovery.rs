//! Restoring a session's state on its next link: nodes by handle, then openings and locks.

use std::sync::Arc;

use tombolo_core::fs::{Entry, File, NodeId, OpenId};
use tombolo_core::{Ctx, Error, Identity, Interrupt, SessionId};
use tombolo_host_links::client::Reply as Raw;
use tombolo_wire_vrpc::{Kind, Reply, Request};

use crate::link::{Link, Untranslatable};
use crate::reply::Answered;
use crate::request::NoAnswer;
use crate::session::pick;
use crate::slab::ServerId;

type Restored = Result<(), NoAnswer>;

/// Restores the node or opening without which a request cannot be sent.
pub(crate) async fn restore(link: &Arc<Link>, cx: &Ctx, unknown: Untranslatable) -> Restored {
    match unknown {
        Untranslatable::Node(node) => restore_node(link, cx, node).await,
        Untranslatable::Open(open) => reopen(link, cx, open).await,
        Untranslatable::Gone(error) => Err(NoAnswer::Failed(error)),
    }
}

/// Reopens a file and takes its locks again, independent of a request.
pub(crate) async fn opening(link: &Arc<Link>, open: OpenId) -> Restored {
    reopen(link, &no_caller(), open).await
}

/// Checks that the server replies.
pub(crate) async fn null(link: &Arc<Link>) -> Restored {
    exchange(link, &no_caller(), Request::Null, |reply| matches!(reply, Reply::Done).then_some(())).await
}

fn no_caller() -> Ctx {
    Ctx { interrupt: Interrupt::default(), ..Ctx::root(SessionId(0)) }
}

/// Returns the error for a node that a server cannot find. A lost link is reported as such, because the node
/// may already be bound on the next one.
fn not_found(link: &Link) -> NoAnswer {
    if link.line.is_lost() { NoAnswer::Lost } else { NoAnswer::Failed(Error::Stale) }
}

async fn restore_node(link: &Arc<Link>, cx: &Ctx, node: NodeId) -> Restored {
    let Some(handle) = link.objects.nodes.handle(node).filter(|_| link.knows_handles()) else {
        return Err(not_found(link));
    };
    let request = Request::Resolve { handle: (&handle).into() };
    let entry = exchange(link, cx, request, |reply| match reply {
        Reply::Entry(entry, _) => Some(entry),
        _ => None,
    });
    let Entry { node: server_id, .. } = entry.await?;
    if let Some(extra) = link.objects.nodes.rebind(link.number, node, server_id) {
        link.send_detached(cx, Request::Forget { forgets: tombolo_wire_vrpc::Forgets::new(&[extra]) });
    }
    match link.objects.nodes.server_id(node, link.number) {
        ServerId::Bound(_) => Ok(()),
        ServerId::Unbound => Err(not_found(link)),
        ServerId::Gone => Err(NoAnswer::Failed(Error::Stale)),
    }
}

async fn reopen(link: &Arc<Link>, cx: &Ctx, open: OpenId) -> Restored {
    let objects = &link.objects;
    let opening = objects.openings.get(open).ok_or(NoAnswer::Failed(Error::BadOpen))?;
    if opening.is_broken {
        return Err(NoAnswer::Failed(Error::io("a lock was lost to another client")));
    }
    let file = File { node: opening.node, open };
    if objects.nodes.server_id(file.node, link.number) == ServerId::Unbound {
        restore_node(link, cx, file.node).await?;
    }
    let ServerId::Bound(node) = objects.nodes.server_id(file.node, link.number) else {
        return Err(not_found(link));
    };
    let node = NodeId(node);
    let request = Request::Open { node, flags: opening.flags };
    let opener = Ctx { identity: opening.identity.clone(), want: Default::default(), ..cx.clone() };
    let (opened, is_prompt) = match exchange(link, &opener, request, pick!(Opened(opened, prompt))).await {
        // The opener may have lost the permission since the open. The file is then reopened as the superuser;
        // a server that does not let this client act as the superuser refuses that.
        Err(NoAnswer::Failed(Error::AccessDenied | Error::NotPermitted)) => {
            let root = Ctx { identity: Identity::ROOT, ..opener };
            exchange(link, &root, request, pick!(Opened(opened, prompt))).await?
        }
        opened => opened?,
    };
    let server_id = opened.open;
    let promise = link.prompt_as_agreed(server_id, is_prompt).map_err(NoAnswer::Failed)?;
    if !objects.openings.reopened(open, link.number, promise) {
        link.send_detached(cx, Request::Release { file: File { node, open: server_id } });
        return Ok(());
    }
    retake_locks(link, cx, file, File { node, open: server_id }).await
}

/// Takes the locks of an opening again. A lock held by another client now breaks the opening for good,
/// because the guarded data may have changed. After other failures, the next use retries. Interrupts of the
/// present request are ignored: the lock does not belong to it alone.
async fn retake_locks(link: &Arc<Link>, cx: &Ctx, file: File, server_id: File) -> Restored {
    for granted in link.objects.nodes.locks_of(file.node, file.open) {
        let holder = Ctx {
            identity: granted.note,
            want: Default::default(),
            interrupt: Interrupt::default(),
            ..cx.clone()
        };
        let request = Request::Lock { file: server_id, lock: granted.lock, wait: false };
        let locked = exchange(link, &holder, request, |reply| matches!(reply, Reply::Done).then_some(()));
        match locked.await {
            Ok(()) => {}
            Err(NoAnswer::Lost) => return Err(NoAnswer::Lost),
            Err(NoAnswer::Failed(error)) if !matches!(error, Error::WouldBlock) => {
                tracing::warn!(link = &**link.line.label(), %error, "cannot take a lock again after reconnecting");
                link.objects.openings.unbind(file.open);
                link.send_detached(cx, Request::Release { file: server_id });
                return Err(NoAnswer::Failed(error));
            }
            Err(NoAnswer::Failed(error)) => {
                tracing::error!(link = &**link.line.label(), %error, "a lock was lost to another client: its open file is unusable");
                link.objects.openings.mark_broken(file.open);
                link.send_detached(cx, Request::Release { file: server_id });
                return Err(NoAnswer::Failed(Error::io("a lock was lost to another client")));
            }
        }
    }
    Ok(())
}

async fn exchange<T>(
    link: &Arc<Link>,
    cx: &Ctx,
    request: Request<'_>,
    pick: impl FnOnce(Reply<'_>) -> Option<T>,
) -> Result<T, NoAnswer> {
    let kind: Kind = request.kind();
    let reply: Raw = link.exchange(cx, request.into()).await?;
    let extract = link.finish(kind, reply, |link: &Link, answered: Answered| answered.extract(link, pick));
    extract.map_err(NoAnswer::Failed)
}
