//! Directory listings.

use tombolo_core::fs::{Cookie, DirBudget, DirEntry, DirPage, File};
use tombolo_core::{Ctx, Error};
use tombolo_wire_vrpc::listing::{ListingWriter, budget_within};
use tombolo_wire_vrpc::{Destination, FRAME_BYTES, FrameBuf, FrameSink, Reply, Returned, SinkFrame};

use super::nodes;
use crate::buffers::{ReplyBuffer, wire_len};
use crate::exchange::{Completion, Exchange, or_cut};

/// Maximum size of a listing, which a session buffers in private memory.
const LISTING_BYTES_MAX: usize = 64 << 10;

pub(super) fn readdir(
    mut exchange: Exchange<'_>,
    file: File,
    cookie: Cookie,
    budget: &DirBudget,
    destination: &Destination<'_>,
) {
    let reply_buffer = or_cut!(exchange, ReplyBuffer::of(destination, &exchange.responder));
    let reply_buffer = reply_buffer.at_most(LISTING_BYTES_MAX);
    let len_max = reply_buffer.len_bytes();
    let page = exchange.parts.page(budget_within(budget, len_max));
    let answer = exchange.fs().readdir(exchange.cx, file, cookie, page);
    let cx = exchange.cx.clone();
    let wants_handles = exchange.wants_handles;
    exchange.close(answer, move |completion, page| {
        match &reply_buffer {
            ReplyBuffer::Frame(_) => {
                let mut bytes = [0; FRAME_BYTES];
                let mut frame = FrameBuf::new(bytes.get_mut(..len_max).unwrap_or_default());
                let (_, is_whole) = write(&mut frame, completion, &cx, &page, wants_handles);
                send(completion, &page, is_whole, Returned::Inline(frame.as_bytes()));
            }
            ReplyBuffer::Bulk(sink) => {
                let (len, is_whole) = write(&mut SinkFrame::new(sink), completion, &cx, &page, wants_handles);
                send(completion, &page, is_whole, Returned::Placed { len_bytes: wire_len(len) });
            }
        }
        completion.parts.store_page(page);
    });
}

fn send(completion: &mut Completion<'_>, page: &DirPage, is_whole: bool, listing: Returned<'_>) {
    if listing.len_bytes() == 0 && !page.is_empty() {
        // No entry fits the destination. An empty listing would mean that the next entry exceeds the client's
        // budget, and a client that repeats the request would make no progress.
        completion.fail(&Error::OutOfRange);
    } else {
        completion.send(&Reply::Readdir(listing, page.is_end() && is_whole));
    }
}

/// Writes the entries that fit; forgets the look-ups of others. Returns the length; `true` if all fit.
fn write<W: FrameSink>(
    frame: &mut W,
    completion: &Completion<'_>,
    cx: &Ctx,
    page: &DirPage,
    wants_handles: bool,
) -> (usize, bool) {
    let mut writer = ListingWriter::new(frame);
    let mut entries = page.iter();
    let mut push = |entry: &DirEntry<'_>| {
        let node = entry.entry.filter(|_| wants_handles).map(|entry| entry.node);
        let handle = node.and_then(|node| nodes::immediate_handle(completion.shared, cx, node));
        writer.push_with(entry, handle.as_ref().map(Into::into))
    };
    let mut remaining = entries.by_ref().skip_while(|entry| push(entry)).peekable();
    let is_whole = remaining.peek().is_none();
    for entry in remaining.filter_map(|entry| entry.entry) {
        completion.shared.file_system.forget(cx, &[(entry.node, 1)]);
    }
    (writer.len_bytes(), is_whole)
}
