//! An attached export, on behalf of one user.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::fs::{Attr, Client, Export, FileSystem, Mode, PermissionCheck};
use tombolo_core::{Ctx, Identity, Interrupt, RequestId, Result, SessionId, Want};

use crate::node::Node;

/// A file system of the waist as a program uses it: with an identity, a umask and an interrupt.
///
/// A clone is another reference to the same session, which ends with the last tree, node and file of it.
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

/// The user of a tree, and what the tree is called.
#[derive(Clone, Debug)]
pub struct User {
    /// The identity that operations are made as.
    pub identity: Identity,
    /// Taken off the mode of what is made.
    pub umask: Mode,
    /// Where file numbers mean the same file: the same for all trees of one server or one machine. A copy of
    /// a directory into itself is recognised by it.
    pub realm: String,
}

impl Tree {
    /// Attaches to an export.
    pub fn attach(export: &dyn Export, user: User) -> Result<Self> {
        Self::attach_checked(export, user, PermissionCheck::BackEnd)
    }

    /// Attaches to files of this host that this process uses in the name of the user that it runs as: the
    /// kernel checks, and no thread has to act as another user.
    pub fn attach_own(export: &dyn Export, user: User) -> Result<Self> {
        Self::attach_checked(export, user, PermissionCheck::Caller)
    }

    fn attach_checked(export: &dyn Export, user: User, checks: PermissionCheck) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = SessionId(NEXT.fetch_add(1, Ordering::Relaxed));
        let client = Client { session: id, label: user.realm.clone(), checks };
        Ok(Self::of(export.attach(&client)?, id, user))
    }

    /// A session that is attached already, with its number.
    pub fn of(fs: Arc<dyn FileSystem>, id: SessionId, user: User) -> Self {
        let User { identity, umask, realm } = user;
        let session = Session { fs, id, identity, umask, realm, requests: AtomicU64::new(0) };
        Self { session: Arc::new(session), interrupt: Interrupt::default() }
    }

    /// The same session, whose operations end early when `interrupt` is raised; also those on nodes and files
    /// that are found through what this returns.
    pub fn interruptible(&self, interrupt: Interrupt) -> Self {
        Self { session: self.session.clone(), interrupt }
    }

    /// The directory at the top.
    pub fn root(&self) -> Node {
        Node::root(self.clone())
    }

    /// The file system.
    pub fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.session.fs
    }

    /// On whose behalf its operations run.
    pub fn identity(&self) -> &Identity {
        &self.session.identity
    }

    /// What is taken off the mode of what is made.
    pub fn umask(&self) -> Mode {
        self.session.umask
    }

    /// See [`User::realm`].
    pub fn realm(&self) -> &str {
        &self.session.realm
    }

    /// Whether both are references to one session, so that nodes of one may be used with those of the other.
    pub fn is_same_session(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }

    pub(crate) fn cx(&self) -> Ctx {
        Ctx {
            session: self.session.id,
            request: RequestId(self.session.requests.fetch_add(1, Ordering::Relaxed)),
            key: None,
            identity: self.session.identity.clone(),
            deadline: None,
            interrupt: self.interrupt.clone(),
            want: Want::empty(),
            fetched_since: None,
            found: None,
            opens_unchecked: false,
            lists_subdirectories: false,
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
