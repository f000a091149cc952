//! Expected requests of a job: per class of operation the system calls themselves, and every difference with
//! its cause.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A class of operations: system calls on one side, operations of the waist on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Its name in the report.
    pub name: &'static str,
    /// The waist's operations, by their names on the control socket.
    pub operations: &'static [&'static str],
}

macro_rules! classes {
    ($($(#[$doc:meta])* $id:ident = $name:literal: [$($operation:literal),+];)+) => {
        $($(#[$doc])* pub const $id: Class = Class { name: $name, operations: &[$($operation),+] };)+

        /// All classes, in the order of the report.
        pub const CLASSES: &[Class] = &[$($id),+];
    };
}

classes! {
    /// Path components of a file; no system call requests one alone.
    LOOKUP = "lookup": ["lookup"];
    /// stat(2) and similar calls.
    GETATTR = "getattr": ["getattr"];
    /// chmod, chown, utimensat, truncate.
    SETATTR = "setattr": ["setattr"];
    /// access(2).
    ACCESS = "access": ["access"];
    /// readlink(2).
    READLINK = "readlink": ["readlink"];
    /// open, creat, opendir.
    OPEN = "open": ["open", "create", "create_unnamed"];
    /// The last close of an opening.
    RELEASE = "release": ["release"];
    /// close(2) of a file.
    FLUSH = "flush": ["flush"];
    /// read(2) and similar calls.
    READ = "read": ["read"];
    /// write(2) and similar calls.
    WRITE = "write": ["write"];
    /// fsync, fdatasync, msync.
    FSYNC = "fsync": ["fsync"];
    /// getdents64.
    READDIR = "readdir": ["readdir"];
    /// mkdir.
    MKDIR = "mkdir": ["mkdir"];
    /// rmdir.
    RMDIR = "rmdir": ["rmdir"];
    /// unlink.
    UNLINK = "unlink": ["unlink"];
    /// rename.
    RENAME = "rename": ["rename"];
    /// link.
    LINK = "link": ["link"];
    /// symlink.
    SYMLINK = "symlink": ["symlink"];
    /// mknod.
    MKNOD = "mknod": ["mknod"];
    /// statfs.
    STATFS = "statfs": ["statfs"];
    /// Extended attributes.
    XATTR = "xattr": ["getxattr", "setxattr", "listxattr", "removexattr"];
    /// flock, and fcntl's locks.
    LOCK = "lock": ["lock", "unlock", "test_lock"];
    /// fallocate.
    ALLOCATE = "allocate": ["allocate"];
    /// lseek to data and holes.
    SEEK = "seek": ["seek"];
    /// copy_file_range.
    COPY = "copy": ["copy"];
}

/// A cause for which the server receives more or fewer requests than there are calls of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// The affected class.
    pub class: Class,
    /// Its name, as in `docs/protocols/fuse.md`.
    pub name: &'static str,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $id:ident = $class:ident, $name:literal;)+) => {
        $($(#[$doc])* pub const $id: Cause = Cause { class: $class, name: $name };)+

        /// All expected differences.
        #[cfg(test)]
        pub const CAUSES: &[Cause] = &[$($id),+];
    };
}

causes! {
    /// No name is cached, so each use of each name in a path is a look-up.
    NAMES = LOOKUP, "names in paths";
    /// stat, chmod, open… of a missing file end with the look-up.
    STAT_FAILED = GETATTR, "failed at a look-up";
    /// lseek(SEEK_END) fetches the size.
    SEEK_END = GETATTR, "lseek to the end";
    /// The kernel checks a file's mode before it executes it or grants execution.
    EXEC_MODE = GETATTR, "execute permission";
    /// A kernel that checks permissions fetches owner and mode each time.
    CHECKS = GETATTR, "permission checks";
    /// As [`STAT_FAILED`].
    SETATTR_FAILED = SETATTR, "failed at a look-up";
    /// As [`STAT_FAILED`].
    ACCESS_FAILED = ACCESS, "failed at a look-up";
    /// A kernel that checks permissions answers by itself.
    CHECKED = ACCESS, "checked by the kernel";
    /// chdir(2) checks access.
    CHDIR = ACCESS, "chdir";
    /// As [`STAT_FAILED`].
    READLINK_FAILED = READLINK, "failed at a look-up";
    /// A link in a path is read in order to follow it.
    FOLLOWED = READLINK, "links in paths";
    /// As [`STAT_FAILED`].
    OPEN_FAILED = OPEN, "failed at a look-up";
    /// `O_PATH` opens nothing.
    PLACE = OPEN, "O_PATH";
    /// execve opens the program.
    EXEC_OPEN = OPEN, "execve";
    /// Every opening ends once.
    ENDS = RELEASE, "openings that ended";
    /// exec, exit and dup2 close descriptors without a call of close.
    IMPLICIT = FLUSH, "closed by exec, exit, dup2";
    /// A read larger than a request.
    READ_SPLIT = READ, "calls of over 1 MiB";
    /// execve reads the head of the program.
    EXEC_READ = READ, "execve";
    /// The kernel decides when to read pages of mapped files.
    PAGES = READ, "pages of mappings";
    /// A write larger than a request.
    WRITE_SPLIT = WRITE, "calls of over 1 MiB";
    /// A reply has at most 64 KiB, and entries with attributes are larger than those of getdents64.
    PIECES = READDIR, "smaller pieces";
    /// Operations that remove the capabilities of a file first query whether it has any.
    CAPABILITY = XATTR, "security.capability";
    /// `ls` requests no more labels once told that the file system has none. The calls saved are no look-ups
    /// and no permission checks either.
    LABEL = XATTR, "security.selinux, after which nobody asks";
    /// A kernel that checks permissions of another user's files fetches their access ACL too.
    ACL = XATTR, "access ACLs of others' files";
    /// At the end of the file the kernel knows that there is nothing to copy.
    COPY_END = COPY, "at the end of the file";
    /// As [`STAT_FAILED`].
    MKDIR_FAILED = MKDIR, "failed at a look-up";
    /// As [`STAT_FAILED`].
    RMDIR_FAILED = RMDIR, "failed at a look-up";
    /// As [`STAT_FAILED`].
    UNLINK_FAILED = UNLINK, "failed at a look-up";
    /// As [`STAT_FAILED`].
    RENAME_FAILED = RENAME, "failed at a look-up";
    /// As [`STAT_FAILED`].
    LINK_FAILED = LINK, "failed at a look-up";
    /// As [`STAT_FAILED`].
    SYMLINK_FAILED = SYMLINK, "failed at a look-up";
}

/// Counts of a job.
#[derive(Debug, Default)]
pub struct Tally {
    calls: BTreeMap<Class, u64>,
    causes: BTreeMap<Cause, RangeInclusive<i64>>,
}

impl Tally {
    /// Counts a system call of this class.
    pub fn call(&mut self, class: Class) {
        *self.calls.entry(class).or_default() += 1;
    }

    /// Adds `count` operations for this cause; negative for fewer.
    pub fn add(&mut self, cause: Cause, count: i64) {
        self.add_between(cause, count, count);
    }

    /// Adds between `least` and `most` operations for this cause.
    pub fn add_between(&mut self, cause: Cause, least: i64, most: i64) {
        if (least, most) == (0, 0) {
            return;
        }
        let sum = self.causes.entry(cause).or_insert(0..=0);
        *sum = sum.start() + least..=sum.end() + most;
    }

    /// Returns the number of system calls of this class.
    pub fn calls(&self, class: Class) -> u64 {
        self.calls.get(&class).copied().unwrap_or_default()
    }

    /// Returns the differences of this class.
    pub fn differences(&self, class: Class) -> impl Iterator<Item = (&Cause, &RangeInclusive<i64>)> {
        self.causes.iter().filter(move |(cause, _)| cause.class == class)
    }

    /// Returns how many operations of this class the server must have received.
    pub fn expected(&self, class: Class) -> RangeInclusive<i64> {
        let calls = self.calls(class).cast_signed();
        self.differences(class)
            .fold(calls..=calls, |sum, (_, count)| sum.start() + count.start()..=sum.end() + count.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_is_documented() {
        let document = include_str!("../../../docs/protocols/fuse.md");
        for cause in CAUSES {
            assert!(document.contains(&format!("| {} | {} |", cause.class.name, cause.name)), "{cause:?}");
        }
    }

    #[test]
    fn expected_is_calls_and_differences() {
        let mut tally = Tally::default();
        (0..5).for_each(|_| tally.call(READ));
        tally.add(EXEC_READ, 2);
        tally.add_between(PAGES, 0, 3);
        assert_eq!(tally.expected(READ), 7..=10);
        assert_eq!(tally.expected(WRITE), 0..=0);
    }
}
