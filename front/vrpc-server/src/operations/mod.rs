//! Dispatch of requests to the file system.

mod control;
mod data;
mod groups;
mod listing;
mod names;
mod nodes;

use tombolo_core::fs::File;
use tombolo_wire_vrpc::{Reply, Request};

use crate::exchange::Exchange;

/// Starts a request; the reply is sent at once or later.
pub(crate) fn dispatch(exchange: Exchange<'_>, request: &Request<'_>) {
    let (fs, cx) = (exchange.fs(), exchange.cx);
    match *request {
        Request::Null => exchange.done(),
        Request::Profile => control::profile(exchange),
        Request::Caller { uid, gid, groups } => control::caller(exchange, uid, gid, groups),
        Request::Interrupt { id } => control::interrupt(exchange, id),
        Request::Forget { forgets } => control::forget(exchange, forgets),

        Request::Lookup { parent, name } => nodes::answer(exchange, fs.lookup(cx, parent, name)),
        Request::Getattr { node, open } => {
            let file = open.map(|open| File { node, open });
            exchange.answer(fs.getattr(cx, node, file), Reply::Attr);
        }
        Request::Setattr { node, open, ref set } => {
            let file = open.map(|open| File { node, open });
            exchange.answer(fs.setattr(cx, node, file, set), |(attr, change)| Reply::Setattr(attr, change));
        }
        Request::Access { node, mask } => exchange.answer(fs.access(cx, node, mask), |()| Reply::Done),
        Request::Readlink { node, destination } => names::readlink(exchange, node, &destination),
        Request::Create { parent, name, ref how } => {
            nodes::answer(exchange, fs.create(cx, parent, name, how));
        }
        Request::CreateUnnamed { parent, ref how } => {
            nodes::answer(exchange, fs.create_unnamed(cx, parent, how));
        }
        Request::Mkdir { parent, name, mode } => nodes::answer(exchange, fs.mkdir(cx, parent, name, mode)),
        Request::Symlink { parent, name, target } => names::symlink(exchange, parent, name, &target),
        Request::Mknod { parent, name, file_type, mode, rdev } => {
            nodes::answer(exchange, fs.mknod(cx, parent, name, file_type, mode, rdev));
        }
        Request::Link { node, parent, name } => nodes::answer(exchange, fs.link(cx, node, parent, name)),
        Request::Unlink { parent, name } => exchange.answer(fs.unlink(cx, parent, name), Reply::Change),
        Request::Rmdir { parent, name } => exchange.answer(fs.rmdir(cx, parent, name), Reply::Change),
        Request::Rename { from_parent, from, to_parent, to, flags } => {
            exchange.answer(fs.rename(cx, from_parent, from, to_parent, to, flags), Reply::Renamed);
        }

        Request::Open { node, flags } => {
            exchange.close(fs.open(cx, node, flags), move |completion, opened| {
                let is_prompt = completion.is_prompt(File { node, open: opened.open });
                completion.send(&Reply::Opened(opened, is_prompt));
            });
        }
        Request::Release { file } => control::release(exchange, file),
        Request::Flush { file, owner } => exchange.answer(fs.flush(cx, file, owner), |()| Reply::Done),
        Request::Fsync { file, what } => exchange.answer(fs.fsync(cx, file, what), |()| Reply::Done),
        Request::Read { file, offset, destination } => data::read(exchange, file, offset, &destination),
        Request::Write { file, how, data } => data::write(exchange, file, how, &data),
        Request::Readdir { file, cookie, budget, destination } => {
            listing::readdir(exchange, file, cookie, &budget, &destination);
        }
        Request::Statfs { node } => exchange.answer(fs.statfs(cx, node), Reply::StatFs),
        Request::Syncfs => exchange.answer(fs.syncfs(cx), |()| Reply::Done),
        _ => groups::dispatch(exchange, request),
    }
}
