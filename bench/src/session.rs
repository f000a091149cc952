//! Session of the waist with a user that looks up and opens files, makes changes, or is notified of them.

use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tombolo_core::fs::{
    Client, Export, File, FileSystem, Mode as FileMode, Name, NodeId, Notices, OpenFlags, PermissionCheck,
    SetAttr, Write,
};
use tombolo_core::{Answer, Ctx, SessionId};
use tombolo_mem::Buffer;

use crate::error::{Error, OrWrong, Result, same};

/// Maximum size of the notices in one answer.
const NOTICES_BYTES: usize = 64 << 10;

/// Reason why nothing may be cached.
pub const UNSEEN: &str =
    "changes by the host are not watched: that requires root and a file system with fanotify support";

/// A session of the waist.
pub struct Session {
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
    /// Number of the last notice received.
    taken: AtomicU64,
}

impl Session {
    pub fn attached(export: &dyn Export) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let session = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let client = Client { session, label: "bench".to_owned(), checks: PermissionCheck::BackEnd };
        let fs = export.attach(&client).or_wrong("attach")?;
        Ok(Self { fs, cx: Ctx::root(session), taken: AtomicU64::new(0) })
    }

    /// Looks up a path from the root, and follows no symbolic links.
    pub fn find(&self, path: &Path) -> Result<NodeId> {
        let mut node = NodeId::ROOT;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let name = Name::new(name.as_encoded_bytes()).or_wrong("a name")?;
            node = self.fs.lookup(&self.cx, node, name).wait().or_wrong("lookup")?.node;
        }
        Ok(node)
    }

    #[inline]
    pub fn chmod(&self, node: NodeId, mode: u32) -> Result<()> {
        let set = SetAttr { mode: Some(FileMode::new(mode)), ..SetAttr::default() };
        self.fs.setattr(&self.cx, node, None, &set).wait().or_wrong("setattr").map(drop)
    }

    pub fn open(&self, path: &Path, flags: OpenFlags) -> Result<File> {
        let node = self.find(path)?;
        let open = self.fs.open(&self.cx, node, flags).wait().or_wrong("open")?.open;
        Ok(File { node, open })
    }

    pub fn write_byte(&self, file: File, offset: u64) -> Result<()> {
        let how = Write { offset, ..Write::default() };
        let written =
            self.fs.write(&self.cx, file, &how, Buffer::new(1).source(0..1)).wait().or_wrong("write")?;
        same("write", written.count, 1)
    }

    /// Waits for notices of changes by others. The first call subscribes and returns at once. Changes by
    /// other processes of the host may be missing: see [`Self::sees_all`].
    pub fn watch(&self) -> Result<()> {
        let notices = self.next()?.wait().or_wrong("changes")?;
        self.taken.store(notices.last, Ordering::Relaxed);
        Ok(())
    }

    /// Fails, with the reason, if changes by other processes of the server's host are not reported.
    pub fn sees_all(&self) -> Result<()> {
        match self.fs.changes().is_some_and(|changes| changes.is_complete()) {
            true => Ok(()),
            false => Err(absent(UNSEEN)),
        }
    }

    /// Looks at a node, so that its changes are counted.
    pub fn look(&self, node: NodeId) -> Result<()> {
        let versions = self.fs.versions().ok_or_else(|| absent("the server does not count changes"))?;
        versions.look(&self.cx, node).wait().or_wrong("look").map(drop)
    }

    /// Receives pending notices and subscribes again, without a thread.
    pub fn take_notices(&self) -> Result<()> {
        loop {
            let answer = match self.next()? {
                Answer::Done(answer) => answer,
                Answer::Later(mut later) => {
                    match later.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        Poll::Ready(answer) => answer,
                        Poll::Pending => return Ok(()),
                    }
                }
            };
            self.taken.store(answer.or_wrong("changes")?.last, Ordering::Relaxed);
        }
    }

    fn next(&self) -> Result<Answer<Notices>> {
        let changes = self.fs.changes().ok_or_else(|| absent("the server sends no change notifications"))?;
        Ok(changes.next(&self.cx, self.taken.load(Ordering::Relaxed), NOTICES_BYTES))
    }
}

pub fn absent(reason: &str) -> Error {
    Error::Absent(reason.to_owned())
}
