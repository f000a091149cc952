//! Lock requests and waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tombolo_core::fs::{File, Granted, Lock};
use tombolo_core::{Answer, Ctx, Interrupt, Later, Raised, Result};
use tombolo_host_runtime::task;
use tombolo_wire_vrpc::Request;

use crate::links::Links;

/// Requests a lock, and records it when granted.
pub(super) fn request(links: &Arc<Links>, cx: &Ctx, file: File, lock: Lock, wait: bool) -> Answer<()> {
    let identity = cx.identity.clone();
    let (all_links, release_cx) = (links.clone(), cx.clone());
    links.call(cx, Request::Lock { file, lock, wait }, move |link, answered| {
        answered.success(link)?;
        let granted = Granted { open: file.open, lock, note: identity };
        link.objects.nodes.with_locks(file.node, |locks| locks.add(granted));
        if link.line.is_lost() {
            // The opening may have been reopened before the lock was recorded, so it is reopened once more,
            // together with the lock.
            let unbound = link.objects.openings.unbind(file.open);
            if let Some(gone) = unbound.and_then(|server_id| link.objects.opening_gone(file.node, server_id))
            {
                all_links.release(&release_cx, &[gone]);
            }
        }
        Ok(())
    })
}

/// Waits for a lock. Dropping the answer cancels the wait: the request is interrupted, and a lock granted
/// nevertheless is released.
pub(super) fn wait(links: &Arc<Links>, cx: &Ctx, file: File, lock: Lock) -> Answer<()> {
    let interrupt = Interrupt::new();
    let own = Ctx { interrupt: interrupt.clone(), ..cx.clone() };
    match request(links, &own, file, lock, true) {
        Answer::Done(result) => Answer::Done(result),
        Answer::Later(later) => {
            let caller_interrupt = cx.interrupt.can_be_raised().then(|| cx.interrupt.raised());
            Answer::later(Waiting {
                later: Some(later),
                caller_interrupt,
                interrupt,
                links: links.clone(),
                cx: own,
                file,
                lock,
            })
        }
    }
}

struct Waiting {
    /// Pending answer of the server; `None` once received.
    later: Option<Later<()>>,
    /// The caller's interrupt.
    caller_interrupt: Option<Raised>,
    /// The request's interrupt, also raised when the answer is dropped.
    interrupt: Interrupt,
    links: Arc<Links>,
    cx: Ctx,
    file: File,
    lock: Lock,
}

impl Future for Waiting {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if let Some(caller_interrupt) = &mut this.caller_interrupt
            && Pin::new(caller_interrupt).poll(context).is_ready()
        {
            this.caller_interrupt = None;
            this.interrupt.raise();
        }
        let Some(later) = &mut this.later else { return Poll::Pending };
        let answer = later.as_mut().poll(context);
        if answer.is_ready() {
            this.later = None;
        }
        answer
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let Some(later) = self.later.take() else { return };
        self.interrupt.raise();
        let (links, cx, file, lock) = (self.links.clone(), self.cx.clone(), self.file, self.lock);
        task::spawn(async move {
            if later.await.is_ok() {
                let Lock { family, range, owner, .. } = lock;
                links.objects.nodes.with_locks(file.node, |locks| locks.give_back(family, owner, range));
                let own = Ctx { interrupt: Interrupt::default(), ..cx };
                drop(links.call_unit(&own, Request::Unlock { file, family, range, owner }).resolve().await);
            }
        });
    }
}
