//! Change notifications: a task keeps a request pending at the server, and translates the notices received to
//! the session's ids.

use std::sync::{Arc, Once};

use tombolo_core::fs::{Changes, NodeId, Notice, Notices};
use tombolo_core::{Answer, Ctx, Interrupt, Result};
use tombolo_host_runtime::promise::Promise;
use tombolo_host_runtime::task;
use tombolo_wire_vrpc::{Reply, Request};

use super::{VrpcFileSystem, pick};
use crate::link::Link;
use crate::links::Links;
use crate::reply::Answered;

/// Handle of a session's notification task, which ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct Watch {
    begun: Once,
    /// Resolved once the server has begun to report, or will not.
    answered: Arc<Promise<()>>,
    interrupt: Interrupt,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self { begun: Once::new(), answered: Arc::default(), interrupt: Interrupt::new() }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.interrupt.raise();
    }
}

impl Changes for VrpcFileSystem {
    fn next(&self, cx: &Ctx, since: u64, limit_bytes: usize) -> Answer<Notices> {
        let answered = self.watch.answered.clone();
        self.watch.begun.call_once(|| {
            let cx = Ctx { interrupt: self.watch.interrupt.clone(), ..cx.clone() };
            task::spawn(watch(self.links.clone(), cx, answered.clone()));
        });
        let (notices, cx) = (self.links.objects.nodes.notices.clone(), cx.clone());
        Answer::later(async move {
            // Results obtained before the server began to report are invalidated by its first reply.
            answered.kept().await;
            notices.next(&cx, since, limit_bytes).resolve().await
        })
    }

    fn is_complete(&self) -> bool {
        self.links.reports_all_changes()
    }
}

async fn watch(links: Arc<Links>, cx: Ctx, answered: Arc<Promise<()>>) {
    let mut since = 0;
    loop {
        let session_links = links.clone();
        let pending_call = links.call(&cx, Request::Changes { since }, move |link, answered| {
            let (last, is_complete) = received(link, &answered)?;
            // `link_lost` may have run before this call: the loss is then detected by the check below.
            session_links.set_reports_all_changes(is_complete);
            if link.line.end().is_some() {
                session_links.set_reports_all_changes(false);
            }
            Ok(last)
        });
        let outcome = pending_call.resolve().await;
        answered.keep(());
        match outcome {
            Ok(last) => since = last,
            Err(error) => {
                if !cx.interrupt.is_raised() {
                    tracing::warn!(%error, "change notifications lost: clients revalidate");
                }
                links.set_reports_all_changes(false);
                return links.objects.nodes.notice(Notice::Everything);
            }
        }
    }
}

/// Queues the received notices, translated. Returns the number of the last one, and `true` if all changes are
/// reported.
fn received(link: &Link, answered: &Answered) -> Result<(u64, bool)> {
    let (last, list, is_complete) = answered.extract(link, pick!(Changes(last, list, is_complete)))?;
    let nodes = &link.objects.nodes;
    let ours = |node: NodeId| nodes.node_for_notice(link.number, node);
    for notice in list.to_vec() {
        let translated = match notice {
            Notice::Attributes(node) => ours(node).map(Notice::Attributes),
            Notice::Data { node, start, last } => ours(node).map(|node| Notice::Data { node, start, last }),
            Notice::Name { dir, name } => ours(dir).map(|dir| Notice::Name { dir, name }),
            Notice::Gone { node, name } => {
                // The name is left out if its directory is unknown to this session.
                let name = name.and_then(|(dir, name)| Some((nodes.node_of(link.number, dir)?, name)));
                ours(node).map(|node| Notice::Gone { node, name })
            }
            Notice::Everything => Some(Notice::Everything),
        };
        translated.into_iter().for_each(|notice| nodes.notice(notice));
    }
    Ok((last, is_complete))
}
