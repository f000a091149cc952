//! What a job's system calls make the kernel ask for: per class of operation the calls themselves, and every
//! difference with its cause.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A class of operations: system calls on one side, operations of the waist on the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class {
    /// Its name, in the report.
    pub name: &'static str,
    /// The waist's operations, as the control socket names them.
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
    /// Names on the way to a file; no system call asks for one alone.
    LOOKUP = "lookup": ["lookup"];
    /// stat(2) and its kin.
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
    /// read(2) and its kin.
    READ = "read": ["read"];
    /// write(2) and its kin.
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

/// A cause of differences: why the server sees more, or less, than the calls of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cause {
    /// The class that it changes.
    pub class: Class,
    /// Its name, as in `docs/protocols/fuse.md`.
    pub name: &'static str,
}

macro_rules! causes {
    ($($(#[$doc:meta])* $id:ident = $class:ident, $name:literal;)+) => {
        $($(#[$doc])* pub const $id: Cause = Cause { class: $class, name: $name };)+

        /// Every difference that is expected. There are no others.
        #[cfg(test)]
        pub const CAUSES: &[Cause] = &[$($id),+];
    };
}

causes! {
    /// No name is kept, so each use of each name in a path is a look-up.
    NAMES = LOOKUP, "names in paths";
    /// stat, chmod, open… of what is not there end with the look-up.
    STAT_FAILED = GETATTR, "failed at a look-up";
    /// lseek(SEEK_END) asks where the end is.
    SEEK_END = GETATTR, "lseek to the end";
    /// The kernel looks at a file's mode before it runs it, or says that it may be run.
    EXEC_MODE = GETATTR, "execute permission";
    /// Where the kernel checks permissions, it asks for owner and mode each time.
    CHECKS = GETATTR, "permission checks";
    /// As [`STAT_FAILED`].
    SETATTR_FAILED = SETATTR, "failed at a look-up";
    /// As [`STAT_FAILED`].
    ACCESS_FAILED = ACCESS, "failed at a look-up";
    /// Where the kernel checks permissions, it knows.
    CHECKED = ACCESS, "checked by the kernel";
    /// chdir(2) asks whether it may.
    CHDIR = ACCESS, "chdir";
    /// As [`STAT_FAILED`].
    READLINK_FAILED = READLINK, "failed at a look-up";
    /// A link in a path is read, to be followed.
    FOLLOWED = READLINK, "links in paths";
    /// As [`STAT_FAILED`].
    OPEN_FAILED = OPEN, "failed at a look-up";
    /// `O_PATH` opens nothing.
    PLACE = OPEN, "O_PATH";
    /// execve opens the program.
    EXEC_OPEN = OPEN, "execve";
    /// Every opening ends once.
    ENDS = RELEASE, "openings that ended";
    /// What exec, exit and dup2 close, no call closes.
    IMPLICIT = FLUSH, "closed by exec, exit, dup2";
    /// A read of more than a request holds.
    READ_SPLIT = READ, "calls of over 1 MiB";
    /// execve reads the head of the program.
    EXEC_READ = READ, "execve";
    /// Pages of mapped files are read as the kernel likes.
    PAGES = READ, "pages of mappings";
    /// A write of more than a request holds.
    WRITE_SPLIT = WRITE, "calls of over 1 MiB";
    /// A listing with attributes, and one that is made at once, comes in smaller pieces than the program asks
    /// for.
    PIECES = READDIR, "smaller pieces";
    /// What takes capabilities from a program asks first whether it has any.
    CAPABILITY = XATTR, "security.capability";
    /// `ls` asks for no more labels once it was told that the file system has none. The calls that it spares
    /// are no look-ups and no permission checks either.
    LABEL = XATTR, "security.selinux, after which nobody asks";
    /// Where the kernel checks permissions of files that are not the caller's, it asks for their access ACL
    /// too.
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

/// What was counted.
#[derive(Debug, Default)]
pub struct Tally {
    calls: BTreeMap<Class, u64>,
    causes: BTreeMap<Cause, RangeInclusive<i64>>,
}

impl Tally {
    /// A system call of this class.
    pub fn call(&mut self, class: Class) {
        *self.calls.entry(class).or_default() += 1;
    }

    /// So many operations more, or less, by this cause.
    pub fn add(&mut self, cause: Cause, count: i64) {
        self.add_between(cause, count, count);
    }

    /// Between so many operations more and so many, by this cause.
    pub fn add_between(&mut self, cause: Cause, least: i64, most: i64) {
        if (least, most) == (0, 0) {
            return;
        }
        let sum = self.causes.entry(cause).or_insert(0..=0);
        *sum = sum.start() + least..=sum.end() + most;
    }

    /// System calls of this class.
    pub fn calls(&self, class: Class) -> u64 {
        self.calls.get(&class).copied().unwrap_or_default()
    }

    /// The differences of this class.
    pub fn differences(&self, class: Class) -> impl Iterator<Item = (&Cause, &RangeInclusive<i64>)> {
        self.causes.iter().filter(move |(cause, _)| cause.class == class)
    }

    /// How many operations of this class the server must have seen.
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
