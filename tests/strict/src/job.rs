//! From the system calls of a job to what its kernel asks the server for.

use std::collections::{BTreeSet, HashMap};

use crate::ledger::{self as l, Cause, Class, Ledger};
use crate::process::{Descriptor, Kind, Process};
use crate::trace::{Call, Event, Pid, descriptor, integer, unquoted};
use crate::tree::Tree;

/// The most that one READ or WRITE carries.
const REQUEST_BYTES_MAX: i64 = 1 << 20;
/// The kernel's page.
const PAGE_BYTES: i64 = 4096;
/// A piece of a listing has at least so many entries, unless it is the last.
const PIECE_ENTRIES_MIN: u64 = 16;
/// A program's pages come in at most so many reads.
const PROGRAM_READS_MAX: i64 = 256;

/// Calls about what a path names, whose path begins from a descriptor.
const TAKE_A_BASE: &[&str] = &[
    "newfstatat",
    "statx",
    "faccessat",
    "faccessat2",
    "readlinkat",
    "fchmodat",
    "fchmodat2",
    "fchownat",
    "futimesat",
    "utimensat",
];

/// A job as its trace tells it.
#[derive(Debug)]
pub struct Job {
    tree: Tree,
    kernel_checks: bool,
    /// Whether files belong to other users than root, as which the job runs.
    has_foreign: bool,
    processes: HashMap<Pid, Process>,
    /// Events of children whose parents' clone has not returned yet.
    unborn: HashMap<Pid, Vec<Event>>,
    ledger: Ledger,
    unknown: BTreeSet<String>,
}

impl Job {
    /// A job in the directory `root`, started in `cwd`; both absolute and free of links. Does the kernel of the mount check
    /// permissions, as it does for `allow_other` and in guests?
    pub fn new(root: &str, cwd: &str, kernel_checks: bool) -> Self {
        let mut job = Self {
            tree: Tree::new(root),
            kernel_checks,
            has_foreign: false,
            processes: HashMap::new(),
            unborn: HashMap::new(),
            ledger: Ledger::default(),
            unknown: BTreeSet::new(),
        };
        job.processes.insert(0, Process::first(cwd));
        job
    }

    /// Takes the events of the whole trace.
    pub fn run(&mut self, events: Vec<(Pid, Event)>) {
        if let (Some((first, _)), Some(process)) = (events.first(), self.processes.remove(&0)) {
            self.processes.insert(*first, process);
        }
        for (pid, event) in events {
            self.take(pid, event);
        }
    }

    /// What was counted.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Calls on files of the tree whose meaning is not known here. A comparison with any of them proves nothing.
    pub fn unknown(&self) -> &BTreeSet<String> {
        &self.unknown
    }

    fn take(&mut self, pid: Pid, event: Event) {
        if !self.processes.contains_key(&pid) {
            self.unborn.entry(pid).or_default().push(event);
            return;
        }
        match event {
            Event::Exit => {
                let closed = self.processes.remove(&pid).map(Process::exit).unwrap_or_default();
                self.close_implicitly(&closed);
            }
            Event::Call(call) => self.call(pid, &call),
        }
    }

    fn call(&mut self, pid: Pid, call: &Call) {
        match call.name.as_str() {
            "clone" | "clone3" | "fork" | "vfork" => self.fork(pid, call),
            "execve" | "execveat" => self.exec(pid, call),
            "chdir" => self.chdir(pid, call),
            "fchdir" => self.fchdir(pid, call),
            "open" | "openat" | "openat2" | "creat" => self.open(pid, call),
            "close" | "close_range" | "dup" | "dup2" | "dup3" | "fcntl" => self.descriptors(pid, call),
            "stat" | "lstat" | "newfstatat" | "statx" | "access" | "faccessat" | "faccessat2"
            | "readlink" | "readlinkat" | "chmod" | "fchmodat" | "fchmodat2" | "chown" | "lchown"
            | "fchownat" | "utime" | "utimes" | "futimesat" | "utimensat" | "truncate" | "statfs"
            | "getxattr" | "lgetxattr" | "setxattr" | "lsetxattr" | "listxattr" | "llistxattr"
            | "removexattr" | "lremovexattr" => self.on_path(pid, call),
            "mkdir" | "mkdirat" | "rmdir" | "unlink" | "unlinkat" | "symlink" | "symlinkat" | "mknod"
            | "mknodat" => {
                self.on_name(pid, call);
            }
            "rename" | "renameat" | "renameat2" | "link" | "linkat" => self.on_two_names(pid, call),
            _ => self.on_descriptor(call),
        }
    }

    fn fork(&mut self, pid: Pid, call: &Call) {
        let (Ok(child), Some(parent)) = (&call.result, self.processes.get(&pid)) else { return };
        let Ok(child) = Pid::try_from(*child) else { return };
        let process = parent.child(&call.args.join(","));
        self.processes.insert(child, process);
        for event in self.unborn.remove(&child).unwrap_or_default() {
            self.take(child, event);
        }
    }

    fn exec(&mut self, pid: Pid, call: &Call) {
        let path = call.args.first().and_then(|arg| unquoted(arg));
        let place = path.and_then(|path| self.walk(&self.cwd(pid), &path, true));
        if call.result.is_err() {
            return;
        }
        let closed = self.processes.get_mut(&pid).map(Process::exec).unwrap_or_default();
        self.close_implicitly(&closed);
        if place.is_some() {
            self.ledger.add(l::EXEC_OPEN, 1);
            self.ledger.add(l::ENDS, 1);
            self.ledger.add(l::EXEC_MODE, 1);
            // May it be dumped, that is, read?
            self.check(1);
            self.ledger.add(l::EXEC_READ, 2);
            self.ledger.add_between(l::PAGES, 1, PROGRAM_READS_MAX);
        }
    }

    fn chdir(&mut self, pid: Pid, call: &Call) {
        let Some(path) = call.args.first().and_then(|arg| unquoted(arg)) else { return };
        let inside = self.walk(&self.cwd(pid), &path, true).is_some();
        if call.result.is_ok() {
            let to = self.tree.walk(&self.cwd(pid), &path, true).path.unwrap_or_default();
            self.set_cwd(pid, to);
            self.enter(inside);
        }
    }

    fn fchdir(&mut self, pid: Pid, call: &Call) {
        let Some((_, Some(path))) = call.args.first().and_then(|arg| descriptor(arg)) else { return };
        if call.result.is_ok() {
            self.enter(self.tree.holds(path));
            self.set_cwd(pid, path.to_owned());
        }
    }

    fn enter(&mut self, inside: bool) {
        match (inside, self.kernel_checks) {
            (true, true) => self.check(1),
            (true, false) => self.ledger.add(l::CHDIR, 1),
            (false, _) => {}
        }
    }

    /// Permission checks for which the kernel asks, if it is the one to check.
    fn check(&mut self, count: u64) {
        if self.kernel_checks {
            self.ledger.add(l::CHECKS, count.cast_signed());
            if self.has_foreign {
                self.ledger.add_between(l::ACL, 0, count.cast_signed());
            }
        }
    }

    fn open(&mut self, pid: Pid, call: &Call) {
        let at = call.name.starts_with("openat");
        let Some((base, path)) = self.path(pid, call, 0, at) else { return };
        let flags = call.args.get(1 + usize::from(at)).map_or("", String::as_str);
        let creates = call.name == "creat" || flags.contains("O_CREAT");
        let stops_at_link = flags.contains("O_NOFOLLOW") || creates && flags.contains("O_EXCL");
        let Some(place) = self.walk(&base, &path, !stops_at_link) else { return };
        self.ledger.call(l::OPEN);
        let Ok(number) = call.result else { return self.ledger.add(l::OPEN_FAILED, -1) };
        let kind = match flags {
            flags if flags.contains("O_PATH") => Kind::Place,
            flags if self.tree.is_directory(&place) && !flags.contains("O_TMPFILE") => Kind::Directory,
            _ => Kind::File,
        };
        match kind {
            Kind::Place => self.ledger.add(l::PLACE, -1),
            Kind::File | Kind::Directory => {
                self.ledger.add(l::ENDS, 1);
                self.check(1);
            }
        }
        if kind == Kind::File && !self.tree.is_file(&place) {
            // The directory must let it be made.
            self.check(1);
            if !flags.contains("O_TMPFILE") {
                self.tree.make_file(&place);
            }
        } else if kind == Kind::File && flags.contains("O_TRUNC") {
            self.ledger.add(l::CAPABILITY, 1);
        }
        let opened = Descriptor { kind, path: place, close_on_exec: flags.contains("O_CLOEXEC") };
        self.put(pid, number, opened);
    }

    /// Calls that make, mark and close descriptors.
    fn descriptors(&mut self, pid: Pid, call: &Call) {
        let Some(old) = call.args.first().and_then(|arg| descriptor(arg)).map(|(number, _)| number) else {
            return;
        };
        let Ok(result) = call.result else { return };
        let flags = call.args.get(1).map_or("", String::as_str);
        match call.name.as_str() {
            "close" => {
                if self.remove(pid, old).is_some_and(|old| old.kind == Kind::File) {
                    self.ledger.call(l::FLUSH);
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

    /// Calls about what a path names.
    fn on_path(&mut self, pid: Pid, call: &Call) {
        let name = call.name.as_str();
        let at = TAKE_A_BASE.contains(&name);
        let (class, failed) = class_of(name);
        let follow = !(name.starts_with('l') && name != "listxattr"
            || name.starts_with("readlink")
            || call.args.iter().any(|arg| arg.contains("AT_SYMLINK_NOFOLLOW")));
        let Some((base, path)) = self.path(pid, call, 0, at) else {
            // Without a path it is about the descriptor.
            if at && let Some((_, Some(place))) = call.args.first().and_then(|arg| descriptor(arg)) {
                self.on_place(class, call, place);
            }
            return;
        };
        if path.is_empty() {
            return self.on_place(class, call, &base);
        }
        let Some(place) = self.walk(&base, &path, follow) else { return };
        self.ledger.call(class);
        match (&call.result, failed) {
            (Err(error), Some(failed)) if is_told_by_look_up(error) => return self.ledger.add(failed, -1),
            _ => {}
        }
        if class == l::ACCESS && self.kernel_checks {
            self.ledger.add(l::CHECKED, -1);
            self.check(1);
        } else if class == l::ACCESS
            && self.tree.is_file(&place)
            && call.args.iter().any(|arg| arg.contains("X_OK"))
        {
            self.ledger.add(l::EXEC_MODE, 1);
        }
        if name == "truncate" {
            self.check(1);
        }
        self.drop_capability(call, &place);
    }

    /// A call about what needs no walk.
    fn on_place(&mut self, class: Class, call: &Call, place: &str) {
        if self.tree.holds(place) {
            self.ledger.call(class);
            self.drop_capability(call, place);
        }
    }

    /// chown and truncate take capabilities from a file, if it has any.
    fn drop_capability(&mut self, call: &Call, place: &str) {
        let chowns = call.name.contains("chown");
        let owner = call.args.get(if call.name == "fchownat" { 2 } else { 1 });
        self.has_foreign |= chowns && owner.is_some_and(|owner| !matches!(owner.as_str(), "0" | "-1"));
        let drops = chowns || call.name.contains("truncate");
        if drops && call.result.is_ok() && !self.tree.is_directory(place) {
            self.ledger.add(l::CAPABILITY, 1);
        }
    }

    /// Calls that make or remove a name.
    fn on_name(&mut self, pid: Pid, call: &Call) {
        let name = call.name.as_str();
        let is_symlink = name.starts_with("symlink");
        let found = self.path(pid, call, usize::from(is_symlink), name.ends_with("at"));
        let Some((base, path)) = found else { return };
        let Some(place) = self.walk(&base, &path, false) else { return };
        let removes_directory = name == "rmdir" || call.args.iter().any(|arg| arg.contains("AT_REMOVEDIR"));
        let (class, failed) = match name {
            "mkdir" | "mkdirat" => (l::MKDIR, Some(l::MKDIR_FAILED)),
            "symlink" | "symlinkat" => (l::SYMLINK, Some(l::SYMLINK_FAILED)),
            "mknod" | "mknodat" => (l::MKNOD, None),
            _ if removes_directory => (l::RMDIR, Some(l::RMDIR_FAILED)),
            _ => (l::UNLINK, Some(l::UNLINK_FAILED)),
        };
        self.ledger.call(class);
        match (&call.result, failed) {
            (Err(error), Some(failed)) if is_told_by_look_up(error) => return self.ledger.add(failed, -1),
            _ => self.check(1),
        }
        match (&call.result, class) {
            (Err(_), _) => {}
            (Ok(_), l::MKDIR) => self.tree.make_directory(&place),
            (Ok(_), l::SYMLINK) => {
                let target = call.args.first().and_then(|arg| unquoted(arg)).unwrap_or_default();
                self.tree.make_link(&place, &target);
            }
            (Ok(_), l::RMDIR | l::UNLINK) => self.tree.remove(&place),
            (Ok(_), _) => self.tree.make_file(&place),
        }
    }

    fn on_two_names(&mut self, pid: Pid, call: &Call) {
        let at = call.name.contains("at");
        let second = 1 + usize::from(at);
        let (Some(from), Some(to)) = (self.path(pid, call, 0, at), self.path(pid, call, second, at)) else {
            return;
        };
        let follow = call.args.iter().any(|arg| arg.contains("AT_SYMLINK_FOLLOW"));
        let from = self.walk(&from.0, &from.1, follow);
        let to = self.walk(&to.0, &to.1, false);
        let (Some(from), Some(to)) = (from, to) else { return };
        let renames = call.name.starts_with("rename");
        let (class, failed) = if renames { (l::RENAME, l::RENAME_FAILED) } else { (l::LINK, l::LINK_FAILED) };
        self.ledger.call(class);
        match &call.result {
            Err(error) if is_told_by_look_up(error) => return self.ledger.add(failed, -1),
            _ if renames => self.check(2),
            // With protected_hardlinks, which is a choice of the machine, whether the file could be written anyway.
            _ => {
                self.check(1);
                self.ledger.add_between(l::CHECKS, 0, i64::from(self.kernel_checks));
            }
        }
        match call.result {
            Ok(_) if renames => {
                let parent = |path: &str| path.rsplit_once('/').map(|(parent, _)| parent.to_owned());
                // A directory's `..` changes.
                self.check(u64::from(self.tree.is_directory(&from) && parent(&from) != parent(&to)));
                self.tree.rename(&from, &to);
            }
            Ok(_) => self.tree.make_file(&to),
            Err(_) => {}
        }
    }

    /// Calls about what is open.
    fn on_descriptor(&mut self, call: &Call) {
        let first = call.args.first().and_then(|arg| descriptor(arg));
        let is_inside = |found: Option<(i32, Option<&str>)>| {
            found.is_some_and(|(_, path)| path.is_some_and(|path| self.tree.holds(path)))
        };
        let number = |index: usize| call.args.get(index).and_then(|arg| integer(arg)).unwrap_or_default();
        if call.name == "mmap" {
            if is_inside(call.args.get(4).and_then(|arg| descriptor(arg))) && call.result.is_ok() {
                self.ledger.add_between(l::PAGES, 0, (number(1) + PAGE_BYTES - 1) / PAGE_BYTES);
            }
            return;
        }
        if !is_inside(first) {
            return;
        }
        match call.name.as_str() {
            "fstat" => self.ledger.call(l::GETATTR),
            "fchmod" => self.ledger.call(l::SETATTR),
            "fchown" | "ftruncate" => {
                self.ledger.call(l::SETATTR);
                self.drop_capability(call, first.and_then(|(_, path)| path).unwrap_or_default());
            }
            "fstatfs" => self.ledger.call(l::STATFS),
            "fgetxattr" | "fsetxattr" | "flistxattr" | "fremovexattr" => self.ledger.call(l::XATTR),
            "fsync" | "fdatasync" => self.ledger.call(l::FSYNC),
            "flock" | "fcntl" => self.ledger.call(l::LOCK),
            "fallocate" => self.ledger.call(l::ALLOCATE),
            "copy_file_range" if is_inside(call.args.get(2).and_then(|arg| descriptor(arg))) => {
                self.ledger.call(l::COPY);
                match call.result {
                    Ok(0) => self.ledger.add(l::COPY_END, -1),
                    _ => self.ledger.add(l::CAPABILITY, 1),
                }
            }
            // Between two file systems the kernel refuses by itself.
            "copy_file_range" => {}
            "getdents64" => {
                self.ledger.call(l::READDIR);
                self.ledger.add_between(l::PIECES, 0, (call.entries / PIECE_ENTRIES_MIN).cast_signed());
            }
            "read" | "pread64" => self.transfer(l::READ, l::READ_SPLIT, number(2), call),
            "write" | "pwrite64" => self.transfer(l::WRITE, l::WRITE_SPLIT, number(2), call),
            "lseek" => match call.args.get(2).map(String::as_str) {
                Some("SEEK_END") => self.ledger.add(l::SEEK_END, 1),
                Some("SEEK_DATA" | "SEEK_HOLE") => self.ledger.call(l::SEEK),
                _ => {}
            },
            // The kernel's own affair, or answered by the session without the waist.
            "fadvise64" | "ioctl" | "poll" | "ppoll" | "select" | "pselect6" | "munmap" => {}
            name => {
                self.unknown.insert(name.to_owned());
            }
        }
    }

    /// A read or write: one request for each MiB that it asks for, until one comes back short.
    fn transfer(&mut self, class: Class, split: Cause, asked: i64, call: &Call) {
        let Ok(done) = call.result else { return };
        if asked == 0 {
            return;
        }
        self.ledger.call(class);
        let whole = done / REQUEST_BYTES_MAX;
        let all = done == asked && done % REQUEST_BYTES_MAX == 0;
        self.ledger.add(split, if all { whole - 1 } else { whole });
    }

    /// The directory that the path at `index` begins from, and the path. With `at`, a descriptor stands before it.
    fn path(&self, pid: Pid, call: &Call, index: usize, at: bool) -> Option<(String, String)> {
        let (base, path) = if at {
            (call.args.get(index)?.as_str(), call.args.get(index + 1)?)
        } else {
            ("AT_FDCWD", call.args.get(index)?)
        };
        let path = unquoted(path)?;
        let base = match base {
            base if base.starts_with("AT_FDCWD") => self.cwd(pid),
            base => descriptor(base)?.1?.to_owned(),
        };
        // The way through /proc leads to the file itself, without a look-up.
        if let Some(number) = path.strip_prefix("/proc/self/fd/")
            && let Some(place) = number.parse().ok().and_then(|number| self.find(pid, number))
        {
            return Some((place.path, String::new()));
        }
        Some((base, path))
    }

    /// Goes along a path, counts what that asks for, and says where it led beneath the root.
    fn walk(&mut self, base: &str, path: &str, follow: bool) -> Option<String> {
        let walked = self.tree.walk(base, path, follow);
        self.ledger.add(l::NAMES, walked.names.cast_signed());
        self.ledger.add(l::FOLLOWED, walked.links.cast_signed());
        self.check(walked.passes);
        walked.path.filter(|path| self.tree.holds(path))
    }

    fn cwd(&self, pid: Pid) -> String {
        self.processes.get(&pid).map(|process| process.cwd.borrow().clone()).unwrap_or_default()
    }

    fn set_cwd(&self, pid: Pid, path: String) {
        if let Some(process) = self.processes.get(&pid) {
            *process.cwd.borrow_mut() = path;
        }
    }

    fn find(&self, pid: Pid, number: i32) -> Option<Descriptor> {
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

    fn close_implicitly(&mut self, closed: &[Descriptor]) {
        let files = closed.iter().filter(|descriptor| descriptor.kind == Kind::File).count();
        self.ledger.add(l::IMPLICIT, i64::try_from(files).unwrap_or(i64::MAX));
    }
}

/// The class of a call about a path, and the cause that takes it away again when a look-up alone tells that it fails.
fn class_of(name: &str) -> (Class, Option<Cause>) {
    match name {
        "stat" | "lstat" | "newfstatat" | "statx" => (l::GETATTR, Some(l::STAT_FAILED)),
        "access" | "faccessat" | "faccessat2" => (l::ACCESS, Some(l::ACCESS_FAILED)),
        "readlink" | "readlinkat" => (l::READLINK, Some(l::READLINK_FAILED)),
        "statfs" => (l::STATFS, None),
        name if name.ends_with("xattr") => (l::XATTR, None),
        _ => (l::SETATTR, Some(l::SETATTR_FAILED)),
    }
}

/// Whether the kernel knows of this failure before it asks for the operation itself.
fn is_told_by_look_up(error: &str) -> bool {
    matches!(
        error,
        "ENOENT" | "ENOTDIR" | "EISDIR" | "EEXIST" | "ELOOP" | "EINVAL" | "ENAMETOOLONG" | "EXDEV" | "EBUSY"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::events;

    fn expected(trace: &str, class: Class) -> std::ops::RangeInclusive<i64> {
        let mut job = Job::new("/t", "/", false);
        job.run(events(trace));
        assert!(job.unknown().is_empty(), "{:?}", job.unknown());
        job.ledger().expected(class)
    }

    const SHARED_DESCRIPTOR: &str = r#"1 openat(AT_FDCWD</>, "/t/a", O_WRONLY|O_CREAT, 0644) = 3</t/a>
1 openat(AT_FDCWD</>, "/t/b", O_WRONLY|O_CREAT|O_CLOEXEC, 0644) = 4</t/b>
1 vfork( <unfinished ...>
2 dup2(3</t/a>, 1</dev/null>) = 1</t/a>
2 execve("/bin/true", ["true"], 0x0 /* 1 vars */) = 0
2 +++ exited with 0 +++
1 <... vfork resumed>) = 2
1 close(3</t/a>) = 0
1 +++ exited with 0 +++
"#;

    #[test]
    fn every_copy_of_a_descriptor_is_closed_once() {
        // The child's: 4 by exec, 1 and 3 by its end. The parent's: 3 by close, 4 by its end.
        assert_eq!(expected(SHARED_DESCRIPTOR, l::FLUSH), 5..=5);
        assert_eq!(expected(SHARED_DESCRIPTOR, l::RELEASE), 2..=2);
        assert_eq!(expected(SHARED_DESCRIPTOR, l::OPEN), 2..=2);
        assert_eq!(expected(SHARED_DESCRIPTOR, l::LOOKUP), 2..=2);
    }

    #[test]
    fn attributes_known_from_a_lookup_are_not_asked_again() {
        let trace = "1 mkdir(\"/t/d\", 0777) = 0\n1 chdir(\"/t/d\") = 0\n1 stat(\"x/y\", 0x1) = -1 ENOENT (No)\n\
                     1 stat(\"../d\", {st_mode=S_IFDIR|0755}) = 0\n1 mkdir(\"/t/d\", 0777) = -1 EEXIST (File exists)\n";
        assert_eq!(expected(trace, l::LOOKUP), 5..=5);
        assert_eq!(expected(trace, l::GETATTR), 1..=1);
        assert_eq!(expected(trace, l::MKDIR), 1..=1);
    }

    #[test]
    fn a_big_read_is_several_requests() {
        let read = |asked: i64, got: i64| format!("1 read(3</t/a>, \"\"..., {asked}) = {got}\n");
        assert_eq!(expected(&read(4096, 4096), l::READ), 1..=1);
        assert_eq!(expected(&read(4096, 0), l::READ), 1..=1);
        assert_eq!(expected(&read(3 << 20, 3 << 20), l::READ), 3..=3);
        assert_eq!(expected(&read(3 << 20, (2 << 20) + 1), l::READ), 3..=3);
        assert_eq!(expected(&read(3 << 20, 1 << 20), l::READ), 2..=2);
    }

    #[test]
    fn a_call_that_is_not_known_is_named() {
        let mut job = Job::new("/t", "/", false);
        job.run(events(
            "1 sendfile(3</t/a>, 1</t/b>, NULL, 5) = 5\n1 sendfile(3</u/a>, 1</u/b>, NULL, 5) = 5\n",
        ));
        assert_eq!(job.unknown().iter().collect::<Vec<_>>(), ["sendfile"]);
    }
}
