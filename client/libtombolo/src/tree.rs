//! Attached exports, on behalf of one user.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{Attr, Client, Export, FileSystem, Mode, PermissionCheck};
use tombolo_core::{Ctx, Identity, Interrupt, RequestId, Result, SessionId};

use crate::node::Node;

/// A file system of the waist as a program uses it: with an identity, a umask and an interrupt.
///
/// A clone is another reference to the same session, which ends with its last tree, node and file.
#[derive(Clone)]
pub struct Tree {
    session: Arc<Session>,
    interrupt: Interrupt,
}

struct Session {
    fs: Arc<dyn FileSystem>,
    id: SessionId,
    identity: Identity,
    umask: Mode,
    realm: String,
    requests: AtomicU64,
}

/// The user and the realm of a tree.
#[derive(Clone, Debug)]
pub struct User {
    /// Identity of all operations.
    pub identity: Identity,
    /// Mode bits to be removed from whatever is created.
    pub umask: Mode,
    /// Scope in which file numbers identify a file: the same for all trees of one server or one machine. It
    /// serves to recognise hard links, and the copy of a file onto itself or of a directory into itself.
    pub realm: String,
}

impl Tree {
    /// Attaches to an export, whose back end checks permissions for the user.
    pub fn attach(export: &dyn Export, user: User) -> Result<Self> {
        Self::attach_checked(export, user, PermissionCheck::BackEnd)
    }

    /// Attaches to files of this host as this process's own user: the kernel checks permissions, and no
    /// thread has to change its identity.
    pub fn attach_own(export: &dyn Export, user: User) -> Result<Self> {
        Self::attach_checked(export, user, PermissionCheck::Caller)
    }

    fn attach_checked(export: &dyn Export, user: User, checks: PermissionCheck) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let client = Client { session: id, label: user.realm.clone(), checks };
        Ok(Self::of(export.attach(&client)?, id, user))
    }

    /// Creates a tree from an attached session and its number.
    pub fn of(fs: Arc<dyn FileSystem>, id: SessionId, user: User) -> Self {
        let User { identity, umask, realm } = user;
        let session = Session { fs, id, identity, umask, realm, requests: AtomicU64::new(0) };
        Self { session: Arc::new(session), interrupt: Interrupt::default() }
    }

    /// Returns the same session with operations that end early when `interrupt` is raised, including those on
    /// nodes and files found through the returned tree.
    pub fn interruptible(&self, interrupt: Interrupt) -> Self {
        Self { session: self.session.clone(), interrupt }
    }

    /// Returns the root directory.
    pub fn root(&self) -> Node {
        Node::root(self.clone())
    }

    /// Returns the session's file system, for operations that this library does not wrap.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.session.fs
    }

    /// Returns the identity under which the tree's operations run.
    pub fn identity(&self) -> &Identity {
        &self.session.identity
    }

    /// Returns the mode bits to be removed from whatever is created in the tree.
    pub fn umask(&self) -> Mode {
        self.session.umask
    }

    /// Returns the realm, see [`User::realm`].
    pub fn realm(&self) -> &str {
        &self.session.realm
    }

    /// Returns `true` if this tree and `other` are of one session, so that both accept each other's nodes.
    pub fn is_same_session(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }

    pub(crate) fn cx(&self) -> Ctx {
        Ctx {
            request: RequestId(self.session.requests.fetch_add(1, Ordering::Relaxed)),
            identity: self.session.identity.clone(),
            interrupt: self.interrupt.clone(),
            ..Ctx::root(self.session.id)
        }
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tree({} of {})", self.session.id.0, self.session.realm)
    }
}

pub(crate) fn is_same_file(a: (&Tree, &Attr), b: (&Tree, &Attr)) -> bool {
    a.0.realm() == b.0.realm() && (a.1.fsid, a.1.fileid) == (b.1.fsid, b.1.fileid)
}
