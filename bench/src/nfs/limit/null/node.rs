//! Fictitious nodes, described by their handles alone.

use tombolo_wire_nfs3::{Fattr3, FileHandle, FileHandleBuf, FileType3, NfsTime3, SpecData3};

/// Prefix of names of files whose size is the number after it, all zeros. Every other file is empty.
pub const READ_PREFIX: &str = "read-";
const EPOCH: NfsTime3 = NfsTime3 { seconds: 0, nseconds: 0 };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    directory: bool,
    pub size: u64,
}

impl Node {
    pub const ROOT: Self = Self { directory: true, size: 0 };

    pub fn named(name: &[u8]) -> Self {
        let number = name.strip_prefix(READ_PREFIX.as_bytes()).and_then(|number| str::from_utf8(number).ok());
        let size = number.and_then(|number| number.parse().ok()).unwrap_or_default();
        Self { directory: false, size }
    }

    /// Returns the node of a handle; an empty file for a foreign one.
    pub fn of(handle: FileHandle<'_>) -> Self {
        let kind = handle.as_bytes().split_last_chunk();
        match kind {
            Some((b"null dir", size)) => Self { directory: true, size: u64::from_be_bytes(*size) },
            Some((_, size)) => Self { directory: false, size: u64::from_be_bytes(*size) },
            None => Self { directory: false, size: 0 },
        }
    }

    pub fn handle(self) -> Option<FileHandleBuf> {
        let kind = if self.directory { b"null dir" } else { b"nullfile" };
        let bytes = [*kind, self.size.to_be_bytes()].concat();
        FileHandle::new(&bytes).map(FileHandle::to_owned)
    }

    pub fn attributes(self) -> Fattr3 {
        Fattr3 {
            file_type: if self.directory { FileType3::Directory } else { FileType3::Regular },
            mode: if self.directory { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            size: self.size,
            used: self.size,
            rdev: SpecData3 { major: 0, minor: 0 },
            fsid: 1,
            fileid: if self.directory { 1 } else { 2 + self.size },
            atime: EPOCH,
            mtime: EPOCH,
            ctime: EPOCH,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_encoded_in_its_handle() {
        for node in [Node::ROOT, Node::named(b"read-4096"), Node::named(b"other"), Node::named(b"read-x")] {
            assert_eq!(Node::of(node.handle().unwrap().as_handle()), node);
        }
        assert_eq!(Node::named(b"read-4096").attributes().size, 4096);
        assert_eq!(Node::named(b"other").attributes().file_type, FileType3::Regular);
        assert_eq!(Node::ROOT.attributes().file_type, FileType3::Directory);
    }
}
