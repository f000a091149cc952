//! Operations of the waist as values, for layers that count, delay or fail them.

macro_rules! ops {
    ($($op:ident = $name:literal),+ $(,)?) => {
        /// An operation of the waist.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[allow(missing_docs, reason = "each is the method of the same name in the waist")]
        pub enum Op {
            $($op,)+
        }

        impl Op {
            /// All operations, in the order of their numbers.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$op),+];

            /// Returns the name used in tables and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$op => $name,)+
                }
            }
        }
    };
}

ops! {
    Lookup = "lookup",
    Forget = "forget",
    Getattr = "getattr",
    Setattr = "setattr",
    Access = "access",
    Readlink = "readlink",
    Create = "create",
    CreateUnnamed = "create_unnamed",
    Mkdir = "mkdir",
    Symlink = "symlink",
    Mknod = "mknod",
    Link = "link",
    Unlink = "unlink",
    Rmdir = "rmdir",
    Rename = "rename",
    Open = "open",
    Release = "release",
    Flush = "flush",
    Fsync = "fsync",
    Read = "read",
    Write = "write",
    Readdir = "readdir",
    Statfs = "statfs",
    Syncfs = "syncfs",
    Getxattr = "getxattr",
    Setxattr = "setxattr",
    Listxattr = "listxattr",
    Removexattr = "removexattr",
    TestLock = "test_lock",
    Lock = "lock",
    Unlock = "unlock",
    HandleOf = "handle_of",
    Resolve = "resolve",
    Parent = "parent",
    Allocate = "allocate",
    Seek = "seek",
    Copy = "copy",
}

impl Op {
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
