//! Directory listings.

use std::sync::{Arc, Mutex};

use tombolo_core::fs::{Cookie, DirBudget, DirPage, File, NodeId, OpenFlags, OpenId};
use tombolo_core::{Answer, Ctx, Result, lock, or_answer};
use tombolo_host_links::client::Spans;
use tombolo_wire_vrpc::listing::Listing;
use tombolo_wire_vrpc::{FRAME_BYTES, Reply, Request};

use super::names::destination;
use super::replies::pick;
use crate::bulk_memory::largest;
use crate::link::{Link, NO_LINK};
use crate::links::Links;
use crate::reply::Answered;
use crate::request::OutgoingRequest;

/// Maximum length of the entries in one reply, in bytes.
const LISTING_BYTES_MAX: usize = 64 << 10;

/// Opens a directory without a request, while the server reports all changes and has reported no change of
/// the directory since it let this identity open it. The server opens the directory at the first use of the
/// opening, as after a lost link; often there is no use, because the kernel in front caches listings too.
pub(super) fn open_without_request(
    links: &Links,
    cx: &Ctx,
    node: NodeId,
    flags: OpenFlags,
) -> Option<OpenId> {
    let objects = &links.objects;
    let is_known =
        links.reports_all_changes() && cx.want.is_empty() && objects.nodes.is_lister(node, &cx.identity);
    is_known.then(|| objects.opened(node, flags, cx.identity.clone(), (NO_LINK, OpenId(0), false)))
}

/// Lists a directory. The page after the last one, which a kernel requests of each listing, is empty without
/// a request.
pub(super) fn readdir(
    links: &Arc<Links>,
    cx: &Ctx,
    file: File,
    cookie: Cookie,
    mut page: DirPage,
) -> Answer<DirPage> {
    let Some(number) = links.objects.openings.begin_page(file, cookie) else {
        page.set_end();
        return Answer::Done(Ok(page));
    };
    let budget = page.budget();
    let first = Mutex::new(Some(page));
    links.repeat(cx, move |links, link, cx| {
        // The first attempt consumes the page; an attempt over another link gets a new one.
        let page = lock(&first).take();
        readdir_on(links, link, cx, (file, cookie, number), page.unwrap_or_else(|| DirPage::new(budget)))
    })
}

fn readdir_on(
    links: &Arc<Links>,
    link: &Arc<Link>,
    cx: &Ctx,
    (file, cookie, number): (File, Cookie, u64),
    mut page: DirPage,
) -> Answer<DirPage> {
    let plus = page.wants_entries() && link.objects.nodes.takes_listed();
    let budget = DirBudget { plus, ..page.budget() };
    let wanted = budget.size_bytes.min(LISTING_BYTES_MAX);
    let span = if wanted > FRAME_BYTES { largest(link.line.in_area(), wanted, FRAME_BYTES) } else { None };
    let room_bytes = span.as_ref().map_or(FRAME_BYTES, |span| span.len() as usize);
    let destination = or_answer!(destination(link, span.as_ref(), FRAME_BYTES));
    let spans = span.map_or_else(Spans::none, Spans::from);
    let request = Request::Readdir { file, cookie, budget, destination };
    let (all_links, release_cx) = (links.clone(), cx.clone());
    let outgoing = OutgoingRequest { request, tail: &[], spans };
    let sequence = links.objects.next_sequence();
    links.call_on(link, cx, sequence, outgoing, move |link, answered| {
        let mut adopted = Vec::new();
        let filled = fill(link, &answered, (&mut page, plus), room_bytes, &mut adopted);
        // The nodes of entries that did not fit are released, and after a malformed entry all nodes.
        let kept_count = *filled.as_ref().unwrap_or(&0);
        let nodes = &link.objects.nodes;
        let gone: Vec<_> =
            adopted.iter().skip(kept_count).filter_map(|node| nodes.forget(*node, 1)).collect();
        all_links.release(&release_cx, &gone);
        filled?;
        if page.is_end()
            && let Some(last) = page.iter().last()
        {
            link.objects.openings.set_end(file.open, number, last.cookie);
        }
        Ok(page)
    })
}

/// Moves the entries of a reply to the page, and their nodes to `adopted`. Returns the number of these nodes
/// whose entries fitted: the first ones.
fn fill(
    link: &Link,
    answered: &Answered,
    (page, plus): (&mut DirPage, bool),
    room_bytes: usize,
    adopted: &mut Vec<NodeId>,
) -> Result<usize> {
    let (listing, end) = answered.extract(link, pick!(Readdir(listing, end)))?;
    let bytes = answered.bytes(link, &listing, room_bytes)?;
    let mut kept_count = 0;
    let mut is_full = false;
    for entry in Listing::new(&bytes).entries() {
        let mut entry = entry.map_err(|error| link.malformed(error))?;
        if entry.entry.is_some() && !plus {
            return Err(link.protocol_violation("attributes that were not requested"));
        }
        entry.entry = entry.entry.map(|found| link.adopt(true, found, entry.handle));
        adopted.extend(entry.entry.map(|entry| entry.node));
        is_full = is_full || !page.push(entry.as_dir_entry());
        if !is_full {
            kept_count = adopted.len();
        }
    }
    if end && !is_full {
        page.set_end();
    }
    Ok(kept_count)
}
