//! Dispatch of the waist's operations, which are answered immediately or by a future.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tombolo_core::fs::{
    AccessMask, Attr, Change, CompressedReads, Cookie, Create, Created, Device, Digests, DirPage, Entry,
    File, FileSystem, FileType, Leases, Lending, LockOwner, Made, Name, NewMode, NodeId, OpenFlags, Opened,
    PersistentHandles, Profile, ReadDone, RenameFlags, Renamed, SetAttr, StatFs, SyncScope, Write, Written,
};
use tombolo_core::{Answer, Ctx, Error, or_answer};
use tombolo_mem::{Sink, Source};

use super::Session;
use super::view::View;
use crate::openings::Opening;

/// A session behind the waist.
#[derive(Debug)]
pub(crate) struct NfsFileSystem(Arc<Session>);

impl NfsFileSystem {
    pub(crate) fn new(session: Session) -> Self {
        Self(Arc::new(session))
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.0
    }

    fn view(&self, cx: &Ctx) -> View {
        View::new(&self.0, cx)
    }
}

/// Refusal of changes to a read-only export.
macro_rules! unless_read_only {
    ($self:ident) => {
        if $self.0.profile.read_only {
            return Answer::err(Error::ReadOnly);
        }
    };
}

/// Changes that a [`View`] performs later, with copies of borrowed arguments, unless the export is read-only.
macro_rules! changes {
    ($($method:ident($($argument:ident: $kind:ty $(= $owned:expr)?),+) -> $answer:ty;)+) => {
        $(fn $method(&self, cx: &Ctx, $($argument: $kind),+) -> Answer<$answer> {
            unless_read_only!(self);
            $($(let $argument = $owned;)?)+
            Answer::later(self.view(cx).$method($($argument),+))
        })+
    };
}

/// Groups of methods that the server's side program implements.
macro_rules! of_side_program {
    ($($group:ident: $kind:ident),+) => {
        $(fn $group(&self) -> Option<&dyn $kind> {
            self.0.has_side_program.load(Relaxed).then_some(self as &dyn $kind)
        })+
    };
}

impl FileSystem for NfsFileSystem {
    fn profile(&self) -> Profile {
        self.0.profile
    }

    fn lookup(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Entry> {
        let (view, name) = (self.view(cx), name.to_owned());
        // `known_entry` counts a look-up, so it is called only if its result is returned.
        let known = if cx.fetched_since.is_none() { view.known_entry(parent, &name) } else { None };
        match known {
            Some(known) => known.into(),
            None => Answer::later(view.lookup(parent, name)),
        }
    }

    fn forget(&self, _: &Ctx, look_ups: &[(NodeId, u64)]) {
        self.0.nodes.forget(look_ups);
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        let view = self.view(cx);
        let node = or_answer!(view.through(node, file));
        if !node.data.has_unanswered_writes()
            && let Some(attr) = node.believed(view.now()).or_else(|| node.fetched_since(cx.fetched_since?))
        {
            return Answer::ok(attr);
        }
        Answer::later(view.getattr(node))
    }

    fn access(&self, cx: &Ctx, node: NodeId, mask: AccessMask) -> Answer<()> {
        if self.0.profile.read_only && mask.contains(AccessMask::WRITE) {
            return Answer::err(Error::ReadOnly);
        }
        Answer::later(self.view(cx).access(node, mask))
    }

    fn readlink(&self, cx: &Ctx, node: NodeId) -> Answer<Vec<u8>> {
        Answer::later(self.view(cx).readlink(node))
    }

    /// Refuses: NFS version 3 has no files without a name.
    fn create_unnamed(&self, _: &Ctx, _: NodeId, _: &Create) -> Answer<Created> {
        Answer::err(Error::NotSupported)
    }

    changes! {
        setattr(node: NodeId, file: Option<File>, set: &SetAttr = *set) -> (Attr, Change);
        create(parent: NodeId, name: Name<'_> = name.to_owned(), how: &Create = *how) -> Created;
        mkdir(parent: NodeId, name: Name<'_> = name.to_owned(), mode: NewMode = mode.masked()) -> Made;
        symlink(parent: NodeId, name: Name<'_> = name.to_owned(), target: &[u8] = target.to_vec()) -> Made;
        mknod(parent: NodeId, name: Name<'_> = name.to_owned(), file_type: FileType,
            mode: NewMode = mode.masked(), rdev: Device) -> Made;
        link(node: NodeId, parent: NodeId, name: Name<'_> = name.to_owned()) -> Made;
        unlink(parent: NodeId, name: Name<'_> = name.to_owned()) -> Change;
        rmdir(parent: NodeId, name: Name<'_> = name.to_owned()) -> Change;
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        flags: RenameFlags,
    ) -> Answer<Renamed> {
        unless_read_only!(self);
        let (from, to) = ((from_parent, from.to_owned()), (to_parent, to.to_owned()));
        Answer::later(self.view(cx).rename(from, to, flags))
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        if flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE) {
            unless_read_only!(self);
        }
        let view = self.view(cx);
        match cx.opens_unchecked
            && !flags.intersects(OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::TRUNCATE)
        {
            true => view.open_unasked(node, flags).into(),
            false => Answer::later(view.open(node, flags)),
        }
    }

    fn release(&self, cx: &Ctx, file: File) {
        self.view(cx).release(file);
    }

    fn flush(&self, cx: &Ctx, file: File, _: LockOwner) -> Answer<()> {
        // A close after reading does not commit the writes of others.
        self.make_stable(cx, file, |opening| {
            opening.flags.contains(OpenFlags::WRITE) && opening.node.has_writes_of_others()
        })
    }

    fn fsync(&self, cx: &Ctx, file: File, what: SyncScope) -> Answer<()> {
        self.make_stable(cx, file, |opening| {
            what == SyncScope::AllWriters || opening.node.has_writes_of_others()
        })
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        self.view(cx).read(file, offset, into)
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, from: Source) -> Answer<Written> {
        self.view(cx).write(file, how, from)
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        Answer::later(self.view(cx).readdir(file, cookie, page))
    }

    fn statfs(&self, cx: &Ctx, node: NodeId) -> Answer<StatFs> {
        Answer::later(self.view(cx).statfs(node))
    }

    fn syncfs(&self, cx: &Ctx) -> Answer<()> {
        Answer::later(self.view(cx).commit_all())
    }

    fn persistent_handles(&self) -> Option<&dyn PersistentHandles> {
        Some(self)
    }

    of_side_program!(digests: Digests, packing: CompressedReads, leases: Leases, lending: Lending);
}

impl NfsFileSystem {
    /// Makes all writes of this session to a file stable; also those of other clients, if `of_others` returns
    /// `true`. Changes of directories are already stable when answered (RFC 1813 §4.7).
    fn make_stable(&self, cx: &Ctx, file: File, of_others: impl FnOnce(&Opening) -> bool) -> Answer<()> {
        let view = self.view(cx);
        let opening = or_answer!(view.session.openings.of(file));
        let of_others = of_others(&opening);
        if opening.node.file_type != FileType::Regular || (opening.node.data.is_clean() && !of_others) {
            return Answer::ok(());
        }
        Answer::later(async move {
            view.commit(&opening.node).await?;
            if of_others {
                view.commit_of_others(&opening.node).await?;
                opening.node.set_writes_of_others(false);
            }
            Ok(())
        })
    }
}

/// Ends the session: files unlinked while open are removed at the server, and unflushed data are flushed, in
/// the background.
impl Drop for NfsFileSystem {
    fn drop(&mut self) {
        let view = View::ending(&self.0);
        for opening in self.0.openings.end_all() {
            opening.read_ahead.stop();
            opening.node.closed();
        }
        for node in self.0.nodes.all().into_iter().filter(|node| node.file_type == FileType::Regular) {
            let view = view.clone();
            if node.is_silly() {
                view.remove_silly_in_background(node);
            } else if node.data.is_dirty() {
                view.background(|view| async move { view.commit_in_background(&node).await });
            }
        }
    }
}
