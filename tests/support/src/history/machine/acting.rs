//! Performance of actions: the calls of each, and its result as text.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use tombolo_core::fs::{
    Cookie, Create, Device, DirBudget, DirPage, Exclusive, File, Lock, LockFamily, LockKind, LockOwner,
    LockRange, Mode, NewMode, OpenFlags, SetAttr, SetTime, SyncScope, Timestamp, Write,
};
use tombolo_core::{Ctx, Identity, Result};
use tombolo_mem::{Buffer, Source};

use super::super::step::{Action, OWNERS};
use super::{Machine, SILLY};
use crate::place::name;
use crate::session::{READ_WRITE, Session, budget, xattr_name};

impl Machine {
    pub(super) async fn act(&mut self, action: &Action) -> Result<String> {
        use Action as A;
        let Session { fs, cx, .. } = self.session.clone();
        match *action {
            A::Lookup(at) => {
                let entry = fs.lookup(&cx, self.known(at.dir), name(at.name)).resolve().await?;
                Ok(self.met(entry))
            }
            A::Forget(node) => {
                self.forget(self.known(node));
                Ok("forgotten".into())
            }
            A::Getattr(node) => {
                let node = self.known(node);
                let attr = fs.getattr(&cx, node, None).resolve().await?;
                Ok(self.shown(node, &attr))
            }
            A::Chmod(node, mode) => {
                self.set(node, SetAttr { mode: Some(Mode::new(mode)), ..SetAttr::default() }).await
            }
            A::Chown(node, uid, gid) => self.set(node, SetAttr { uid, gid, ..SetAttr::default() }).await,
            A::SetMtime(node, secs) => {
                let mtime = Some(SetTime::At(Timestamp { secs, nanos: 5 }));
                self.set(node, SetAttr { mtime, ..SetAttr::default() }).await
            }
            A::Resize(node, size) => {
                let guard_ctime = match self.is_guarded {
                    true => Some(fs.getattr(&cx, self.known(node), None).resolve().await?.ctime),
                    false => None,
                };
                self.set(node, SetAttr { size: Some(size), guard_ctime, ..SetAttr::default() }).await
            }
            A::Access(node, mask) => {
                fs.access(&cx, self.known(node), mask).resolve().await.map(|()| "yes".into())
            }
            A::Readlink(node) => {
                let target = fs.readlink(&cx, self.known(node)).resolve().await?;
                Ok(target.escape_ascii().to_string())
            }
            A::Create(at, mode, flags, exclusive) => {
                let how = Create { mode: with_umask(mode), flags, exclusive };
                let created = fs.create(&cx, self.known(at.dir), name(at.name), &how).resolve().await?;
                self.has_opened(created.entry.node, created.open, flags);
                Ok(self.met(created.entry))
            }
            A::CreateUnnamed(dir) => {
                let how = Create { mode: with_umask(0o666), flags: READ_WRITE, exclusive: Exclusive::No };
                let created = fs.create_unnamed(&cx, self.known(dir), &how).resolve().await?;
                self.has_opened(created.entry.node, created.open, READ_WRITE);
                Ok(self.met(created.entry))
            }
            A::Mkdir(at, mode) => {
                let made = fs.mkdir(&cx, self.known(at.dir), name(at.name), with_umask(mode));
                Ok(self.met(made.resolve().await?.entry))
            }
            A::Symlink(at) => {
                let made = fs.symlink(&cx, self.known(at.dir), name(at.name), b"some/where");
                Ok(self.met(made.resolve().await?.entry))
            }
            A::Mknod(at, file_type) => {
                let (dir, rdev) = (self.known(at.dir), Device { major: 1, minor: 3 });
                let made = fs.mknod(&cx, dir, name(at.name), file_type, with_umask(0o666), rdev);
                Ok(self.met(made.resolve().await?.entry))
            }
            A::Link(node, at) => {
                let made = fs.link(&cx, self.known(node), self.known(at.dir), name(at.name));
                Ok(self.met(made.resolve().await?.entry))
            }
            A::Unlink(at) => done(fs.unlink(&cx, self.known(at.dir), name(at.name)).resolve().await),
            A::Rmdir(at) => done(fs.rmdir(&cx, self.known(at.dir), name(at.name)).resolve().await),
            A::Rename(from, to, flags) => {
                let (from_dir, to_dir) = (self.known(from.dir), self.known(to.dir));
                let renamed = fs.rename(&cx, from_dir, name(from.name), to_dir, name(to.name), flags);
                done(renamed.resolve().await)
            }
            A::Open(node, flags) => {
                let node = self.known(node);
                let opened = fs.open(&cx, node, flags).resolve().await?;
                self.has_opened(node, opened.open, flags);
                Ok("opened".into())
            }
            _ => self.act_on_opening(action).await,
        }
    }

    async fn act_on_opening(&mut self, action: &Action) -> Result<String> {
        use Action as A;
        let Session { fs, cx, .. } = self.session.clone();
        match *action {
            A::Release(open, is_flushed) => {
                let file = self.opened(open);
                let same =
                    |other: &&mut Option<(File, OpenFlags)>| other.is_some_and(|(other, _)| other == file);
                self.opens.iter_mut().filter(same).for_each(|other| *other = None);
                // Kernels flush for each process that closes before they release.
                for owner in OWNERS.filter(|_| is_flushed) {
                    fs.flush(&cx, file, LockOwner(owner)).resolve().await?;
                }
                fs.release(&cx, file);
                Ok("released".into())
            }
            A::OpenGetattr(open) => {
                let file = self.opened(open);
                let attr = fs.getattr(&cx, file.node, Some(file)).resolve().await?;
                Ok(self.shown(file.node, &attr))
            }
            A::Read(open, offset, len) => {
                let buffer = Buffer::new(len);
                let done = fs.read(&cx, self.opened(open), offset, buffer.sink(0..len)).resolve().await?;
                assert!(done.eof || done.count == len, "a short read that is not the end");
                Ok(format!("{:?}", buffer.source(0..done.count).to_vec(len)))
            }
            A::Write(open, offset, len, (kill_privileges, retainable), fill) => {
                let how = Write { offset, kill_privileges, retainable, ..Write::default() };
                let count = self.write(self.opened(open), how, noise(fill, len)).await?;
                Ok(format!("{count} bytes"))
            }
            A::WriteSeveral(open, offset, len, count) => {
                let at = |piece: usize| offset + (piece * (len + 7)) as u64;
                let how = |piece| Write { offset: at(piece), retainable: true, ..Write::default() };
                let begin = |piece| {
                    let source = Source::from(noise(at(piece), len));
                    fs.write(&cx, self.opened(open), &how(piece), source).resolve()
                };
                let written = together((0..count).rev().map(begin).map(Box::pin).collect()).await;
                let written = written.into_iter().collect::<Result<Vec<_>>>()?;
                Ok(format!("{:?} bytes", written.iter().map(|written| written.count).collect::<Vec<_>>()))
            }
            A::OpenResize(open, size) => {
                let file = self.opened(open);
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                let (attr, _) = fs.setattr(&cx, file.node, Some(file), &set).resolve().await?;
                Ok(self.shown(file.node, &attr))
            }
            A::Fsync(open) => done(fs.fsync(&cx, self.opened(open), SyncScope::All).resolve().await),
            A::Flush(open, owner) => done(fs.flush(&cx, self.opened(open), LockOwner(owner)).resolve().await),
            A::List(open, size_bytes, plus) => self.list(self.opened(open), budget(size_bytes, plus)).await,
            A::Allocate(open, offset, len, mode) => {
                let ranges = fs.ranges().expect("ranges");
                done(ranges.allocate(&cx, self.opened(open), offset, len, mode).resolve().await)
            }
            A::Copy(from, from_offset, to, to_offset, len) => {
                let (from, to) = (self.opened(from), self.opened(to));
                let ranges = fs.ranges().expect("ranges");
                let copied = ranges.copy(&cx, from, from_offset, to, to_offset, len).resolve().await?;
                Ok(format!("{copied} bytes"))
            }
            A::Lock(open, owner, is_write, start, last) => {
                let kind = if is_write { LockKind::Write } else { LockKind::Read };
                let (range, owner) = (LockRange { start, last }, LockOwner(owner));
                let lock = Lock { family: LockFamily::Posix, kind, range, owner, pid: 1 };
                let locks = fs.locks().expect("locks");
                done(locks.lock(&cx, self.opened(open), &lock, false).resolve().await)
            }
            A::Unlock(open, owner, start, last) => {
                let (range, owner) = (LockRange { start, last }, LockOwner(owner));
                let locks = fs.locks().expect("locks");
                done(locks.unlock(&cx, self.opened(open), LockFamily::Posix, range, owner).resolve().await)
            }
            _ => self.act_on_xattrs(action).await,
        }
    }

    async fn act_on_xattrs(&self, action: &Action) -> Result<String> {
        use Action as A;
        let (xattrs, cx) = (self.session.xattrs(), &self.session.cx);
        match *action {
            A::SetXattr(node, text, len, how) => {
                let (node, value) = (self.known(node), vec![b'v'; len]);
                done(xattrs.set(cx, node, xattr_name(text), &value, how, false).resolve().await)
            }
            A::GetXattr(node, text) => {
                let value = xattrs.get(cx, self.known(node), xattr_name(text), 1000).resolve().await?;
                Ok(format!("{value:?}"))
            }
            A::ListXattrs(node) => {
                let names = xattrs.list(cx, self.known(node), 1000).resolve().await?;
                let names = names.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
                Ok(format!("{:?}", names.collect::<BTreeSet<_>>()))
            }
            A::RemoveXattr(node, text) => {
                done(xattrs.remove(cx, self.known(node), xattr_name(text)).resolve().await)
            }
            _ => Ok("nothing".into()),
        }
    }

    /// Writes the rest of a step's data, of which `done` bytes were written; `false` if it writes no more.
    pub fn write_rest(&self, action: &Action, done: usize) -> bool {
        let Action::Write(open, offset, len, _, fill) = *action else { return false };
        if (1..len).contains(&done) {
            let rest = &noise(fill, len)[done..];
            self.session.write_all(self.opened(open), offset + done as u64, rest);
        }
        (1..len).contains(&done)
    }

    /// Writes memory that is overwritten after the answer unless it may be retained.
    async fn write(&self, file: File, how: Write, bytes: Vec<u8>) -> Result<usize> {
        let mut buffer = Buffer::new(bytes.len());
        buffer.as_mut_slice().expect("unused memory").copy_from_slice(&bytes);
        let source = buffer.source(0..bytes.len());
        let written = self.session.fs.write(&self.session.cx, file, &how, source).resolve().await?;
        if !how.retainable {
            buffer.sink(0..bytes.len()).write_at(0, &vec![0xee; bytes.len()]);
        }
        self.lent.lock().expect("no panic").push(buffer);
        Ok(written.count)
    }

    /// Lists a directory, whose names must lead to the listed numbers, types and attributes.
    async fn list(&mut self, file: File, budget: DirBudget) -> Result<String> {
        let Session { fs, cx, .. } = self.session.clone();
        let root = Ctx { identity: Identity::ROOT, ..cx.clone() };
        let (mut listed, mut cookie) = (BTreeMap::new(), Cookie::START);
        loop {
            let page = fs.readdir(&cx, file, cookie, DirPage::new(budget)).resolve().await?;
            for entry in page.iter() {
                cookie = entry.cookie;
                entry.entry.iter().for_each(|entry| fs.forget(&cx, &[(entry.node, 1)]));
                let text = String::from_utf8_lossy(entry.name).into_owned();
                let attr = entry.entry.map(|entry| self.shown(entry.node, &entry.attr));
                if ![".", ".."].contains(&&*text) && !text.starts_with(SILLY) {
                    let before = listed.insert(text, (entry.fileid, entry.file_type, attr));
                    assert!(before.is_none(), "{} is listed twice", entry.name.escape_ascii());
                }
            }
            if page.is_end() {
                break;
            }
            assert!(!page.is_empty(), "an empty page that is not the last");
        }
        let mut lines = String::new();
        for (text, (fileid, file_type, attr)) in listed {
            let entry = fs.lookup(&root, file.node, name(&text)).resolve().await?;
            let shown = self.shown(entry.node, &entry.attr);
            assert_eq!(fileid, entry.attr.fileid, "{text}: number");
            assert!(
                file_type.is_none_or(|file_type| file_type == entry.attr.file_type),
                "{text}: {file_type:?}"
            );
            assert!(attr.as_ref().is_none_or(|attr| *attr == shown), "{text} is listed as {attr:?}: {shown}");
            fs.forget(&root, &[(entry.node, 1)]);
            lines += &format!("{text}: {shown}\n");
        }
        Ok(lines)
    }
}

fn with_umask(mode: u32) -> NewMode {
    NewMode { mode: Mode::new(mode), umask: Mode::new(0o022) }
}

/// Returns pseudo-random bytes.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

/// Discards a value in which file systems differ.
fn done<T>(result: Result<T>) -> Result<String> {
    result.map(|_| "done".into())
}

/// Polls all futures concurrently; returns their results.
async fn together<F: Future>(mut futures: Vec<Pin<Box<F>>>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results).filter(|(_, result)| result.is_none()) {
            if let Poll::Ready(ready) = future.as_mut().poll(context) {
                *result = Some(ready);
            }
        }
        if results.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    results.into_iter().flatten().collect()
}
