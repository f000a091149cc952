//! A layer that behaves well but for one thing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tombolo_core::fs::{
    Attr, Change, Cookie, Create, Created, DirEntry, DirPage, Exclusive, File, FileSystem, Name, NewMode,
    NodeId, OpenFlags, Opened, ReadDone, RenameFlags, Renamed, SetAttr, Write, Written,
};
use tombolo_core::{Answer, Ctx, Identity};
use tombolo_mem::{Sink, Source};
use tombolo_test_support::budget;

use super::bug::Bug;

pub struct Session {
    inner: Arc<dyn FileSystem>,
    bug: Option<Bug>,
    remembered: Mutex<HashMap<NodeId, Attr>>,
}

impl Session {
    pub fn new(inner: Arc<dyn FileSystem>, bug: Option<Bug>) -> Self {
        Self { inner, bug, remembered: Mutex::default() }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    fn flags(&self, flags: OpenFlags) -> OpenFlags {
        if self.has(Bug::AppendIgnored) { flags.difference(OpenFlags::APPEND) } else { flags }
    }

    fn how(&self, how: &Create) -> Create {
        let exclusive = match how.exclusive {
            Exclusive::Verifier(_) if self.has(Bug::VerifierIgnored) => Exclusive::No,
            exclusive => exclusive,
        };
        let mode = if self.has(Bug::UmaskIgnored) { NewMode::settled(how.mode.mode) } else { how.mode };
        Create { mode, flags: self.flags(how.flags), exclusive }
    }

    /// Makes something.
    fn make<T>(&self, cx: &Ctx, call: impl FnOnce(&dyn FileSystem, &Ctx) -> Answer<T>) -> Answer<T> {
        let identity = if self.has(Bug::OwnerForgotten) { Identity::ROOT } else { cx.identity.clone() };
        call(&*self.inner, &Ctx { identity, ..cx.clone() })
    }

    /// Lists the whole directory and skips as many entries as the cookie says.
    fn list_by_index(&self, cx: &Ctx, file: File, cookie: Cookie, mut page: DirPage) -> Answer<DirPage> {
        let whole = DirPage::new(budget(16 << 20, page.wants_entries()));
        let all = match self.inner.readdir(cx, file, Cookie::START, whole).wait() {
            Ok(all) => all,
            Err(error) => return Answer::err(error),
        };
        for (index, entry) in all.iter().enumerate().skip(cookie.0 as usize) {
            if !page.push(DirEntry { cookie: Cookie(index as u64 + 1), ..entry }) {
                return Answer::ok(page);
            }
        }
        page.set_end();
        Answer::ok(page)
    }
}

impl FileSystem for Session {
    tombolo_core::forward!(to self.inner;
        profile lookup access readlink link rmdir flush fsync statfs syncfs
        xattrs locks persistent_handles ranges changes versions
    );
    tombolo_core::forward!(with self.make; create_unnamed mkdir symlink mknod);

    fn forget(&self, cx: &Ctx, look_ups: &[(NodeId, u64)]) {
        if self.has(Bug::ForgetDropsAll) {
            look_ups.iter().for_each(|&(node, _)| self.inner.forget(cx, &[(node, u64::MAX)]));
        } else if !self.has(Bug::ForgetIgnored) {
            self.inner.forget(cx, look_ups);
        }
    }

    fn getattr(&self, cx: &Ctx, node: NodeId, file: Option<File>) -> Answer<Attr> {
        if !self.has(Bug::StaleAttributes) {
            return self.inner.getattr(cx, node, file);
        }
        let mut remembered = self.remembered.lock().expect("no panic while locked");
        if let Some(attr) = remembered.get(&node) {
            return Answer::ok(*attr);
        }
        let result = self.inner.getattr(cx, node, file).wait();
        if let Ok(attr) = &result {
            remembered.insert(node, *attr);
        }
        Answer::Done(result)
    }

    fn setattr(&self, cx: &Ctx, node: NodeId, file: Option<File>, set: &SetAttr) -> Answer<(Attr, Change)> {
        let mut set = *set;
        if self.has(Bug::GuardIgnored) {
            set.guard_ctime = None;
        }
        self.inner.setattr(cx, node, file, &set)
    }

    fn create(&self, cx: &Ctx, parent: NodeId, name: Name<'_>, how: &Create) -> Answer<Created> {
        self.make(cx, |fs, cx| fs.create(cx, parent, name, &self.how(how)))
    }

    fn unlink(&self, cx: &Ctx, parent: NodeId, name: Name<'_>) -> Answer<Change> {
        if self.has(Bug::UnlinkLosesData)
            && let Ok(entry) = self.inner.lookup(cx, parent, name).wait()
        {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            // Fails for nodes without data.
            let _ = self.inner.setattr(cx, entry.node, None, &set).wait();
        }
        self.inner.unlink(cx, parent, name)
    }

    fn rename(
        &self,
        cx: &Ctx,
        from_parent: NodeId,
        from: Name<'_>,
        to_parent: NodeId,
        to: Name<'_>,
        mut flags: RenameFlags,
    ) -> Answer<Renamed> {
        if self.has(Bug::ExchangeOneWay) {
            flags.remove(RenameFlags::EXCHANGE);
        }
        if self.has(Bug::NoReplaceIgnored) {
            flags.remove(RenameFlags::NO_REPLACE);
        }
        self.inner.rename(cx, from_parent, from, to_parent, to, flags)
    }

    fn open(&self, cx: &Ctx, node: NodeId, flags: OpenFlags) -> Answer<Opened> {
        self.inner.open(cx, node, self.flags(flags))
    }

    fn release(&self, cx: &Ctx, file: File) {
        if !self.has(Bug::ReleaseForgotten) {
            self.inner.release(cx, file);
        }
    }

    fn read(&self, cx: &Ctx, file: File, offset: u64, into: Sink) -> Answer<ReadDone> {
        let faulty = self.has(Bug::EofTooEarly);
        self.inner.read(cx, file, offset, into).map(move |done| ReadDone { eof: done.eof || faulty, ..done })
    }

    fn write(&self, cx: &Ctx, file: File, how: &Write, mut from: Source) -> Answer<Written> {
        let mut how = *how;
        how.kill_privileges &= !self.has(Bug::PrivilegesKept);
        let asked = from.len();
        let faulty = self.has(Bug::TornWrite) && asked > 4096 && !how.offset.is_multiple_of(4096);
        if faulty {
            from.truncate(asked - 1);
        }
        let written = self.inner.write(cx, file, &how, from);
        written.map(move |written| Written { count: written.count + usize::from(faulty), ..written })
    }

    fn readdir(&self, cx: &Ctx, file: File, cookie: Cookie, page: DirPage) -> Answer<DirPage> {
        if self.has(Bug::CookieByIndex) {
            return self.list_by_index(cx, file, cookie, page);
        }
        self.inner.readdir(cx, file, cookie, page)
    }
}
