//! Calls that create, use and close descriptors.

use super::Job;
use crate::process::{Descriptor, Kind};
use crate::tally::{self as l, Cause, Class};
use crate::trace::{Call, Pid, descriptor, integer};

/// Maximum size of one READ or WRITE.
const REQUEST_BYTES_MAX: i64 = 1 << 20;
/// Page size of the kernel.
const PAGE_BYTES: i64 = 4096;
/// Minimum number of entries in a piece of a listing, except the last.
const PIECE_ENTRIES_MIN: u64 = 16;

impl Job {
    pub(super) fn open(&mut self, pid: Pid, call: &Call) {
        let at = call.name.starts_with("openat");
        let Some((base, path)) = self.path(pid, call, 0, at) else { return };
        let flags = call.args.get(1 + usize::from(at)).map_or("", String::as_str);
        let creates = call.name == "creat" || flags.contains("O_CREAT");
        let stops_at_link = flags.contains("O_NOFOLLOW") || creates && flags.contains("O_EXCL");
        let Some(place) = self.walk(&base, &path, !stops_at_link) else { return };
        self.tally.call(l::OPEN);
        let Ok(number) = call.result else { return self.tally.add(l::OPEN_FAILED, -1) };
        let kind = match flags {
            flags if flags.contains("O_PATH") => Kind::Place,
            flags if self.tree.is_directory(&place) && !flags.contains("O_TMPFILE") => Kind::Directory,
            _ => Kind::File,
        };
        match kind {
            Kind::Place => self.tally.add(l::PLACE, -1),
            Kind::File | Kind::Directory => {
                self.tally.add(l::ENDS, 1);
                self.check(1);
            }
        }
        if kind == Kind::File && !self.tree.is_file(&place) {
            // The directory must permit the creation.
            self.check(1);
            if !flags.contains("O_TMPFILE") {
                self.tree.make_file(&place);
            }
        } else if kind == Kind::File && flags.contains("O_TRUNC") {
            self.tally.add(l::CAPABILITY, 1);
        }
        let opened = Descriptor { kind, path: place, close_on_exec: flags.contains("O_CLOEXEC") };
        self.put(pid, number, opened);
    }

    /// Handles calls that create, mark and close descriptors.
    pub(super) fn descriptors(&mut self, pid: Pid, call: &Call) {
        let Some(old) = call.args.first().and_then(|arg| descriptor(arg)).map(|(number, _)| number) else {
            return;
        };
        let Ok(result) = call.result else { return };
        let flags = call.args.get(1).map_or("", String::as_str);
        match call.name.as_str() {
            "close" => {
                if self.remove(pid, old).is_some_and(|old| old.kind == Kind::File) {
                    self.tally.call(l::FLUSH);
                }
            }
            "close_range" => self.close_range(pid, call),
            "fcntl" if flags == "F_SETFD" => {
                let closes = call.args.get(2).is_some_and(|flags| flags.contains("FD_CLOEXEC"));
                if let Some(process) = self.processes.get(&pid)
                    && let Some(descriptor) = process.table.borrow_mut().get_mut(&old)
                {
                    descriptor.close_on_exec = closes;
                }
            }
            "fcntl" if flags.contains("LK") => self.on_descriptor(call),
            "fcntl" if !flags.starts_with("F_DUPFD") => {}
            _ => {
                let copy = self.find(pid, old);
                let closes = flags == "F_DUPFD_CLOEXEC" || call.args.iter().any(|arg| arg == "O_CLOEXEC");
                let replaces = call.name.starts_with("dup") && result != i64::from(old);
                match copy {
                    Some(copy) => self.put(pid, result, Descriptor { close_on_exec: closes, ..copy }),
                    None if replaces => {
                        let gone = i32::try_from(result).ok().and_then(|number| self.remove(pid, number));
                        self.close_implicitly(gone.as_slice());
                    }
                    None => {}
                }
            }
        }
    }

    fn close_range(&mut self, pid: Pid, call: &Call) {
        let bound = |index: usize| call.args.get(index).and_then(|arg| integer(arg)).unwrap_or_default();
        let (first, last) = (bound(0), bound(1));
        let Some(process) = self.processes.get(&pid) else { return };
        let numbers: Vec<i32> = process.table.borrow().keys().copied().collect();
        let within = numbers.into_iter().filter(|number| (first..=last).contains(&i64::from(*number)));
        for number in within {
            if call.args.iter().any(|arg| arg.contains("CLOSE_RANGE_CLOEXEC")) {
                if let Some(process) = self.processes.get(&pid)
                    && let Some(descriptor) = process.table.borrow_mut().get_mut(&number)
                {
                    descriptor.close_on_exec = true;
                }
            } else {
                let gone = self.remove(pid, number);
                self.close_implicitly(gone.as_slice());
            }
        }
    }

    /// Handles calls on open files.
    pub(super) fn on_descriptor(&mut self, call: &Call) {
        let first = call.args.first().and_then(|arg| descriptor(arg));
        let is_inside = |found: Option<(i32, Option<&str>)>| {
            found.is_some_and(|(_, path)| path.is_some_and(|path| self.tree.holds(path)))
        };
        let number = |index: usize| call.args.get(index).and_then(|arg| integer(arg)).unwrap_or_default();
        if call.name == "mmap" {
            if is_inside(call.args.get(4).and_then(|arg| descriptor(arg))) && call.result.is_ok() {
                self.tally.add_between(l::PAGES, 0, (number(1) + PAGE_BYTES - 1) / PAGE_BYTES);
            }
            return;
        }
        if !is_inside(first) {
            return;
        }
        match call.name.as_str() {
            "fstat" => self.tally.call(l::GETATTR),
            "fchmod" => self.tally.call(l::SETATTR),
            "fchown" | "ftruncate" => {
                self.tally.call(l::SETATTR);
                self.drop_capability(call, first.and_then(|(_, path)| path).unwrap_or_default());
            }
            "fstatfs" => self.tally.call(l::STATFS),
            "fgetxattr" | "fsetxattr" | "flistxattr" | "fremovexattr" => self.tally.call(l::XATTR),
            "fsync" | "fdatasync" => self.tally.call(l::FSYNC),
            "flock" | "fcntl" => self.tally.call(l::LOCK),
            "fallocate" => self.tally.call(l::ALLOCATE),
            "copy_file_range" if is_inside(call.args.get(2).and_then(|arg| descriptor(arg))) => {
                self.tally.call(l::COPY);
                match call.result {
                    Ok(0) => self.tally.add(l::COPY_END, -1),
                    _ => self.tally.add(l::CAPABILITY, 1),
                }
            }
            // Between two file systems the kernel itself refuses.
            "copy_file_range" => {}
            "getdents64" => {
                self.tally.call(l::READDIR);
                self.tally.add_between(l::PIECES, 0, (call.entries / PIECE_ENTRIES_MIN).cast_signed());
            }
            "read" | "pread64" => self.transfer(l::READ, l::READ_SPLIT, number(2), call),
            "write" | "pwrite64" => self.transfer(l::WRITE, l::WRITE_SPLIT, number(2), call),
            "lseek" => match call.args.get(2).map(String::as_str) {
                Some("SEEK_END") => self.tally.add(l::SEEK_END, 1),
                Some("SEEK_DATA" | "SEEK_HOLE") => self.tally.call(l::SEEK),
                _ => {}
            },
            // Handled by the kernel, or by the session without the waist.
            "fadvise64" | "ioctl" | "poll" | "ppoll" | "select" | "pselect6" | "munmap" => {}
            name => {
                self.unknown.insert(name.to_owned());
            }
        }
    }

    /// Counts a read or write: one request per MiB, until a short one.
    fn transfer(&mut self, class: Class, split: Cause, asked: i64, call: &Call) {
        let Ok(done) = call.result else { return };
        if asked == 0 {
            return;
        }
        self.tally.call(class);
        let whole = done / REQUEST_BYTES_MAX;
        let all = done == asked && done % REQUEST_BYTES_MAX == 0;
        self.tally.add(split, if all { whole - 1 } else { whole });
    }

    pub(super) fn find(&self, pid: Pid, number: i32) -> Option<Descriptor> {
        self.processes.get(&pid)?.table.borrow().get(&number).cloned()
    }

    fn remove(&self, pid: Pid, number: i32) -> Option<Descriptor> {
        self.processes.get(&pid)?.table.borrow_mut().remove(&number)
    }

    fn put(&mut self, pid: Pid, number: i64, descriptor: Descriptor) {
        let (Some(process), Ok(number)) = (self.processes.get(&pid), i32::try_from(number)) else { return };
        let gone = process.table.borrow_mut().insert(number, descriptor);
        self.close_implicitly(gone.as_slice());
    }

    pub(super) fn close_implicitly(&mut self, closed: &[Descriptor]) {
        let files = closed.iter().filter(|descriptor| descriptor.kind == Kind::File).count();
        self.tally.add(l::IMPLICIT, i64::try_from(files).unwrap_or(i64::MAX));
    }
}
