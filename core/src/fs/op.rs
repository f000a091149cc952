//! Operations of the waist as values, for layers that count, delay or fail them.

/// An operation of the waist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the method of the same name in the waist")]
pub enum Op {
    Lookup,
    Forget,
    Getattr,
    Setattr,
    Access,
    Readlink,
    Create,
    CreateUnnamed,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Open,
    Release,
    Flush,
    Fsync,
    Read,
    Write,
    Readdir,
    Statfs,
    Syncfs,
    Getxattr,
    Setxattr,
    Listxattr,
    Removexattr,
    TestLock,
    Lock,
    Unlock,
    HandleOf,
    Resolve,
    Parent,
    Allocate,
    Seek,
    Copy,
}

impl Op {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 37] = [
        Self::Lookup,
        Self::Forget,
        Self::Getattr,
        Self::Setattr,
        Self::Access,
        Self::Readlink,
        Self::Create,
        Self::CreateUnnamed,
        Self::Mkdir,
        Self::Symlink,
        Self::Mknod,
        Self::Link,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
        Self::Open,
        Self::Release,
        Self::Flush,
        Self::Fsync,
        Self::Read,
        Self::Write,
        Self::Readdir,
        Self::Statfs,
        Self::Syncfs,
        Self::Getxattr,
        Self::Setxattr,
        Self::Listxattr,
        Self::Removexattr,
        Self::TestLock,
        Self::Lock,
        Self::Unlock,
        Self::HandleOf,
        Self::Resolve,
        Self::Parent,
        Self::Allocate,
        Self::Seek,
        Self::Copy,
    ];

    /// Returns the name used in tables and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Forget => "forget",
            Self::Getattr => "getattr",
            Self::Setattr => "setattr",
            Self::Access => "access",
            Self::Readlink => "readlink",
            Self::Create => "create",
            Self::CreateUnnamed => "create_unnamed",
            Self::Mkdir => "mkdir",
            Self::Symlink => "symlink",
            Self::Mknod => "mknod",
            Self::Link => "link",
            Self::Unlink => "unlink",
            Self::Rmdir => "rmdir",
            Self::Rename => "rename",
            Self::Open => "open",
            Self::Release => "release",
            Self::Flush => "flush",
            Self::Fsync => "fsync",
            Self::Read => "read",
            Self::Write => "write",
            Self::Readdir => "readdir",
            Self::Statfs => "statfs",
            Self::Syncfs => "syncfs",
            Self::Getxattr => "getxattr",
            Self::Setxattr => "setxattr",
            Self::Listxattr => "listxattr",
            Self::Removexattr => "removexattr",
            Self::TestLock => "test_lock",
            Self::Lock => "lock",
            Self::Unlock => "unlock",
            Self::HandleOf => "handle_of",
            Self::Resolve => "resolve",
            Self::Parent => "parent",
            Self::Allocate => "allocate",
            Self::Seek => "seek",
            Self::Copy => "copy",
        }
    }

    /// Returns the operation whose [`name`](Self::name) this is; `None` for unknown names.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Returns `true` for operations whose purpose is a change. A layer that refuses changes must also
    /// examine `open`, which may truncate, and `access`, which may check for write access.
    pub const fn mutates(self) -> bool {
        matches!(
            self,
            Self::Setattr
                | Self::Create
                | Self::CreateUnnamed
                | Self::Mkdir
                | Self::Symlink
                | Self::Mknod
                | Self::Link
                | Self::Unlink
                | Self::Rmdir
                | Self::Rename
                | Self::Write
                | Self::Setxattr
                | Self::Removexattr
                | Self::Allocate
                | Self::Copy
        )
    }

    /// Returns the position in [`Op::ALL`], for tables with an entry for each operation.
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_unique_indices_and_names() {
        for (index, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op.index(), index);
            assert_eq!(Op::from_name(op.name()), Some(op));
        }
        assert_eq!(Op::from_name("reboot"), None);
    }
}
