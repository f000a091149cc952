//! Environment of a case: a session, a directory of its own, a user, and short forms of operations.

use std::ops::Deref;
use std::sync::Arc;

use tombolo_core::fs::{
    Cookie, DirBudget, Entry, Export, File, FileType, LockOwner, NodeId, PermissionCheck,
};
use tombolo_core::{Ctx, Error, Interrupt, Result, Want};
use tombolo_test_support::{Session, budget};

use super::Skip;

/// A session's view of a case's own directory, as one user.
#[derive(Clone)]
pub struct World {
    /// The session, whose paths begin in the case's own directory, mode 0777.
    pub session: Session,
    /// The export, for cases that need a second session.
    pub export: Arc<dyn Export>,
    /// Party that checks permissions.
    pub checks: PermissionCheck,
    name: String,
}

impl Deref for World {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// Its inode number.
    pub fileid: u64,
    /// Type, if the listing contains it.
    pub file_type: Option<FileType>,
    /// Cookie with which the listing continues.
    pub cookie: Cookie,
    /// The node, in listings with attributes.
    pub entry: Option<Entry>,
}

impl World {
    /// Begins a session and creates its directory `name`.
    pub fn new(export: Arc<dyn Export>, checks: PermissionCheck, name: &str) -> Self {
        let mut session = Session::checked(&*export, checks);
        session.dir = session.mkdir_mode(name, 0o777).expect("the case's directory").entry.node;
        Self { session, export, checks, name: name.to_owned() }
    }

    /// Returns the directory's name in the root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the same directory in another session.
    pub fn other_session(&self) -> Self {
        self.through(self.export.clone())
    }

    /// Opens the same directory through another export of the tree, such as another client of a server.
    pub fn through(&self, export: Arc<dyn Export>) -> Self {
        let mut session = Session::checked(&*export, self.checks);
        session.dir = session.node(&self.name).expect("the case's directory");
        Self { session, export, ..self.clone() }
    }

    /// Returns the same session acting for another user.
    pub fn as_user(&self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        Self { session: self.session.as_user(uid, gid, groups), ..self.clone() }
    }

    /// Returns the same session requesting attributes from before and after each change.
    pub fn wanting_changes(&self) -> Self {
        let cx = Ctx { want: Want::CHANGE_ATTRS, ..self.cx.clone() };
        Self { session: self.session.with(cx), ..self.clone() }
    }

    /// Returns the same session with an interrupt that the case can raise.
    pub fn interruptible(&self) -> (Self, Interrupt) {
        let interrupt = Interrupt::new();
        let cx = Ctx { interrupt: interrupt.clone(), ..self.cx.clone() };
        (Self { session: self.session.with(cx), ..self.clone() }, interrupt)
    }

    /// Makes a file with contents, and closes it.
    pub fn file_with(&self, text: &str, bytes: &[u8]) -> NodeId {
        let file = self.file(text);
        self.write_all(file, 0, bytes);
        self.fs.flush(&self.cx, file, LockOwner(0)).wait().expect("closed");
        self.release(file);
        file.node
    }

    /// Reads one page of a listing.
    pub fn page(&self, file: File, cookie: Cookie, budget: DirBudget) -> Result<(Vec<Listed>, bool)> {
        let page = self.readdir(file, cookie, budget)?;
        let listed = page.iter().map(|entry| Listed {
            name: String::from_utf8_lossy(entry.name).into_owned(),
            fileid: entry.fileid,
            file_type: entry.file_type,
            cookie: entry.cookie,
            entry: entry.entry.copied(),
        });
        Ok((listed.collect(), page.is_end()))
    }

    /// Lists a directory, with `.` and `..`, in pages of `size_bytes`.
    pub fn list(&self, dir: NodeId, size_bytes: usize) -> Vec<Listed> {
        let file = self.open_dir(dir).expect("open directory");
        let listed = self.list_from(file, Cookie::START, size_bytes);
        self.release(file);
        listed
    }

    /// Lists the entries behind `cookie`, in pages of `size_bytes`.
    pub fn list_from(&self, file: File, cookie: Cookie, size_bytes: usize) -> Vec<Listed> {
        let mut listed: Vec<Listed> = Vec::new();
        loop {
            let cookie = listed.last().map_or(cookie, |last| last.cookie);
            let (page, end) = self.page(file, cookie, budget(size_bytes, false)).expect("readdir");
            assert!(end || !page.is_empty(), "a listing that makes no progress");
            listed.extend(page);
            if end {
                return listed;
            }
        }
    }
}

/// Converts "not supported" to a skip, for features that the host's file system may lack.
pub fn attempted<T>(result: Result<T>) -> std::result::Result<Result<T>, Skip> {
    match result {
        Err(Error::NotSupported | Error::NotImplemented) => {
            Err(Skip("the file system beneath does not support it".into()))
        }
        result => Ok(result),
    }
}

/// The same for operations that must succeed if they are supported.
pub fn supported<T>(result: Result<T>) -> std::result::Result<T, Skip> {
    attempted(result).map(|result| result.unwrap_or_else(|error| panic!("{error:?}")))
}

/// Fails the case unless the result is an error of this pattern.
#[macro_export]
macro_rules! refused {
    ($result:expr, $pattern:pat) => {
        match $result {
            Ok(_) => panic!("{} succeeded; it must fail with {}", stringify!($result), stringify!($pattern)),
            #[allow(unreachable_patterns, reason = "the pattern may be any error")]
            Err(error) => match error {
                $pattern => {}
                error => {
                    panic!("{} failed with {error:?}, not with {}", stringify!($result), stringify!($pattern))
                }
            },
        }
    };
}
