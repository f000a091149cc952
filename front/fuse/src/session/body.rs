//! Replies before encoding.

use super::Session;
use super::slot::Slot;
use tombolo_core::Interrupt;
use tombolo_core::fs::{Attr, DirPage, Entry, File, FileType, NodeId, OpenId, StatFs};
use tombolo_wire_fuse::dirent::DirentWriter;
use tombolo_wire_fuse::layout::attr::EntryOut;
use tombolo_wire_fuse::layout::open::OpenOutFlags;
use tombolo_wire_fuse::reply::{self, LockConflict, Reply};
use tombolo_wire_fuse::{BackingId, FileHandle, Unique, attr};

/// The reply to one request.
#[derive(Debug)]
pub(super) enum Body {
    Empty,
    /// Success, with a change of this node's attributes that the kernel does not expect.
    AttrChanged(NodeId),
    Entry(Entry),
    /// A negative entry, which the kernel may cache.
    NoEntry,
    Attr(Attr),
    /// Attributes in statx format.
    Statx(Attr),
    /// An open file, and the backing file from which the kernel reads its data, if any.
    Open(File, OpenOutFlags, Option<BackingId>),
    /// An open file whose attributes the kernel must look up again first (ESTALE).
    RetryOpen(File),
    Created(Entry, OpenId, OpenOutFlags),
    /// Number of bytes written to the reply space.
    Data(usize),
    Page {
        page: DirPage,
        plus: bool,
    },
    /// A link's target, an extended attribute's value, or the names of all extended attributes.
    Bytes(Vec<u8>),
    /// The length of an extended attribute's value, or of the names of all.
    Size(usize),
    Written(u32),
    /// Number of bytes copied, as 64 bits.
    Copied(u64),
    Offset(u64),
    StatFs(StatFs),
    /// The conflicting lock, if any.
    Lock(Option<LockConflict>),
    Init(Box<tombolo_wire_fuse::layout::init::InitOut>),
    /// The request gets no reply.
    Silent,
}

impl Body {
    /// Encodes the reply into the slot.
    pub(super) fn encode<'s>(&self, slot: &'s mut Slot, session: &Session, unique: Unique) -> &'s [u8] {
        if let Body::Page { page, plus } = self {
            let body = slot.reply.get_mut(reply::HEADER_BYTES..).unwrap_or_default();
            let bytes = pack(page, *plus, body, session);
            return Reply::new(&mut slot.reply, unique).with_written(bytes).finish();
        }
        let out = Reply::new(&mut slot.reply, unique);
        match self {
            Body::Empty
            | Body::AttrChanged(_)
            | Body::RetryOpen(_)
            | Body::Silent
            | Body::Data(_)
            | Body::Page { .. } => out,
            Body::Entry(entry) => out.with(&entry_out(entry, session)),
            Body::NoEntry => out.with(&reply::no_entry(session.absence().unwrap_or_default())),
            Body::Attr(attr) => out.with(&reply::attr(attr::to_wire(attr), session.lifetimes_of(attr).attr)),
            Body::Statx(attr) => {
                out.with(&reply::statx(attr::to_statx(attr), session.lifetimes_of(attr).attr))
            }
            Body::Open(file, flags, None) => out.with(&reply::open(FileHandle(file.open.0), *flags)),
            Body::Open(file, flags, Some(backing)) => {
                out.with(&reply::open_backed(FileHandle(file.open.0), *flags, *backing))
            }
            Body::Created(entry, open, flags) => {
                out.with(&entry_out(entry, session)).with(&reply::open(FileHandle(open.0), *flags))
            }
            Body::Bytes(bytes) => out.with(bytes.as_slice()),
            Body::Size(bytes) => out.with(&reply::xattr_size(u32::try_from(*bytes).unwrap_or(u32::MAX))),
            Body::Written(bytes) => out.with(&reply::write(*bytes)),
            Body::Copied(bytes) => out.with(&reply::copied(*bytes)),
            Body::Offset(offset) => out.with(&reply::offset(*offset)),
            Body::StatFs(stat) => out.with(&attr::statfs(stat)),
            Body::Lock(blocker) => out.with(&reply::lk(blocker.as_ref())),
            Body::Init(out_init) => out.with(out_init.as_ref()),
        }
        .finish()
    }

    /// Releases the references of a reply that did not reach the requester.
    pub(super) fn undo(&self, session: &Session) {
        let ctx = session.ctx_root(Interrupt::default());
        let file_system = session.file_system();
        match self {
            Body::Entry(entry) => session.return_look_up(entry.node),
            Body::Open(file, ..) | Body::RetryOpen(file) => {
                if let (Body::Open(..), Some(passthrough)) = (self, session.passthrough()) {
                    passthrough.released(file.node);
                }
                session.callers.closed(file.open);
                file_system.release(&ctx, *file);
            }
            Body::Created(entry, open, _) => {
                session.callers.closed(*open);
                file_system.release(&ctx, File { node: entry.node, open: *open });
                session.return_look_up(entry.node);
            }
            Body::Page { page, .. } => {
                page.iter()
                    .filter_map(|line| line.entry)
                    .for_each(|entry| session.return_look_up(entry.node));
            }
            _ => {}
        }
    }
}

fn entry_out(entry: &Entry, session: &Session) -> EntryOut {
    let Entry { node, attr } = entry;
    let keep = session.lifetimes_of(attr);
    // The kernel treats the root as another node if its generation differs from the kernel's initial one.
    let generation = if *node == NodeId::ROOT { 0 } else { attr.generation };
    reply::entry(wire_node(*node), generation, attr::to_wire(attr), keep)
}

/// Encodes a page, whose budget matches `body`; returns the number of bytes used.
fn pack(page: &DirPage, plus: bool, body: &mut [u8], session: &Session) -> usize {
    let mut writer = DirentWriter::new(body);
    for entry in page.iter() {
        let kind = attr::dirent_kind(entry.file_type.or(entry.entry.map(|entry| entry.attr.file_type)));
        let fits = if plus {
            let out = entry.entry.map(|entry| entry_out(entry, session));
            writer.push_plus(entry.name, entry.fileid, entry.cookie.0, kind, out)
        } else {
            writer.push(entry.name, entry.fileid, entry.cookie.0, kind)
        };
        if !fits {
            break;
        }
    }
    writer.len()
}

pub(super) fn wire_node(node: NodeId) -> tombolo_wire_fuse::NodeId {
    tombolo_wire_fuse::NodeId(node.0)
}

/// Returns `true` if the file system has the data of files of this type. The requester's kernel itself opens
/// devices, pipes and sockets.
pub(super) fn has_data(file_type: FileType) -> bool {
    file_type == FileType::Regular
}
