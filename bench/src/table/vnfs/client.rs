//! A session of the waist with a user, who changes things, or wants to be told of changes.

use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use libtombolo::{CacheOptions, CachedTree, Tree, User};
use tombolo_back_vrpc_client::{Socket, VrpcExport};
use tombolo_core::fs::{
    Client as Attaching, Export, File, FileSystem, Mode as FileMode, Name, NodeId, Notices, OpenFlags,
    PermissionCheck, SetAttr, Write,
};
use tombolo_core::{Answer, Ctx, Identity, Result as FsResult, SessionId};
use tombolo_host_links::connect::ConnectOptions;
use tombolo_mem::Buffer;
use tombolo_shm::doorbell::Mode;
use tombolo_shm::link::Incarnation;

use crate::error::{Doing, Error, Result, wrong};
use crate::peer::Shm;

/// What is asked for at a time of what has changed.
const NOTICES_BYTES: usize = 64 << 10;

/// Why nothing may be believed.
const UNSEEN: &str =
    "what the host changes is not seen: that takes root, and a file system that can be watched";

pub struct Client {
    pub fs: Arc<dyn FileSystem>,
    pub cx: Ctx,
    /// The last notice that was taken.
    taken: AtomicU64,
}

impl Client {
    /// Over a link of its own.
    pub fn linked(server: &Shm) -> Result<Self> {
        Self::attached(&export(server)?)
    }

    pub fn attached(export: &dyn Export) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let session = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let attaching = Attaching { session, label: "bench".to_owned(), checks: PermissionCheck::BackEnd };
        let fs = export.attach(&attaching).map_err(|error| wrong("attach", &error))?;
        Ok(Self { fs, cx: Ctx::root(session), taken: AtomicU64::new(0) })
    }

    /// What a path from the root leads to, without links in it.
    pub fn find(&self, path: &Path) -> Result<NodeId> {
        let mut node = NodeId::ROOT;
        for component in path.components() {
            let Component::Normal(name) = component else { continue };
            let name = Name::new(name.as_encoded_bytes()).map_err(|error| wrong("a name", &error))?;
            node = told("lookup", self.fs.lookup(&self.cx, node, name).wait())?.node;
        }
        Ok(node)
    }

    #[inline]
    pub fn chmod(&self, node: NodeId, mode: u32) -> Result<()> {
        let set = SetAttr { mode: Some(FileMode::new(mode)), ..SetAttr::default() };
        told("setattr", self.fs.setattr(&self.cx, node, None, &set).wait()).map(drop)
    }

    /// To write to, and kept open.
    pub fn writer(&self, path: &Path) -> Result<Writer<'_>> {
        let node = self.find(path)?;
        let open = told("open", self.fs.open(&self.cx, node, OpenFlags::WRITE).wait())?.open;
        Ok(Writer { client: self, file: File { node, open }, byte: Buffer::new(1) })
    }

    /// From when this returns it is told of what others change. It is not told of what happens beside the
    /// server unless [`Self::sees_all`].
    pub fn watch(&self) -> Result<()> {
        let notices = told("changes", self.next()?.wait())?;
        self.taken.store(notices.last, Ordering::Relaxed);
        Ok(())
    }

    /// An error, with the reason, where changes by other processes of the server's host are not seen.
    pub fn sees_all(&self) -> Result<()> {
        match self.fs.changes().is_some_and(|changes| changes.is_complete()) {
            true => Ok(()),
            false => Err(absent(UNSEEN)),
        }
    }

    /// Looks at a node so that its changes are counted.
    pub fn look(&self, node: NodeId) -> Result<()> {
        let versions = self.fs.versions().ok_or_else(|| absent("changes are not counted here"))?;
        told("look", versions.look(&self.cx, node).wait()).map(drop)
    }

    /// Takes what it was told, and waits for more, without a thread.
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
            self.taken.store(told("changes", answer)?.last, Ordering::Relaxed);
        }
    }

    fn next(&self) -> Result<Answer<Notices>> {
        let changes = self.fs.changes().ok_or_else(|| absent("sessions here are told of no changes"))?;
        Ok(changes.next(&self.cx, self.taken.load(Ordering::Relaxed), NOTICES_BYTES))
    }
}

/// An opening to write through. It is given back with the session.
pub struct Writer<'a> {
    client: &'a Client,
    file: File,
    byte: Buffer,
}

impl Writer<'_> {
    /// Writes a byte there.
    #[inline]
    pub fn write(&self, offset: u64) -> Result<()> {
        let Self { client, file, byte } = self;
        let how = Write { offset, ..Write::default() };
        let written = told("write", client.fs.write(&client.cx, *file, &how, byte.source(0..1)).wait())?;
        match written.count {
            1 => Ok(()),
            count => Err(Error::Wrong { what: "write".to_owned(), answer: format!("{count} bytes") }),
        }
    }
}

/// What a server offers at its socket.
fn export(server: &Shm) -> Result<VrpcExport> {
    // Each session is given another incarnation.
    let options = ConnectOptions::new(server.export(), "bench", Incarnation([1; 16]));
    let options = options.map_err(|error| wrong("a link", &error))?;
    let socket = Socket::new(server.socket(), options, Mode::default());
    Ok(VrpcExport::new(socket.doing(|| "watch links".to_owned())?))
}

/// The same as the library has it.
pub fn tree(server: &Shm) -> Result<Tree> {
    let user = User { identity: Identity::ROOT, umask: FileMode::new(0o022), realm: "bench".to_owned() };
    Tree::attach(&export(server)?, user).map_err(|error| wrong("attach", &error))
}

/// A tree that remembers; an error, with the reason, where it could remember nothing.
pub fn cached(server: &Shm) -> Result<CachedTree> {
    let cached = CachedTree::new(tree(server)?, CacheOptions::default());
    cached.stat(b"/").wait().map_err(|error| wrong("stat", &error))?;
    if cached.is_empty() { Err(absent(UNSEEN)) } else { Ok(cached) }
}

fn absent(reason: &str) -> Error {
    Error::Absent(reason.to_owned())
}

#[inline]
fn told<T>(what: &str, answer: FsResult<T>) -> Result<T> {
    answer.map_err(|error| wrong(what, &error))
}
