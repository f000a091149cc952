//! Translation of a job's system calls into its kernel's requests to the server.

mod descriptors;
mod paths;

use std::collections::{BTreeSet, HashMap};

use crate::process::Process;
use crate::tally::{self as l, Tally};
use crate::trace::{Call, Event, Pid, descriptor, unquoted};
use crate::tree::Tree;

/// Maximum number of reads for the pages of a program.
const PROGRAM_READS_MAX: i64 = 256;

/// A job, reconstructed from its trace.
#[derive(Debug)]
pub struct Job {
    tree: Tree,
    kernel_checks: bool,
    /// `true` if files belong to users other than root, as whom the job runs.
    has_foreign: bool,
    processes: HashMap<Pid, Process>,
    /// Events of children whose parents' clone has not returned yet.
    unborn: HashMap<Pid, Vec<Event>>,
    tally: Tally,
    unknown: BTreeSet<String>,
}

impl Job {
    /// Creates a job in the directory `root`, started in `cwd`; both absolute and free of links.
    /// `kernel_checks`: the mount's kernel checks permissions, as for `allow_other` and in guests.
    pub fn new(root: &str, cwd: &str, kernel_checks: bool) -> Self {
        let mut job = Self {
            tree: Tree::new(root),
            kernel_checks,
            has_foreign: false,
            processes: HashMap::new(),
            unborn: HashMap::new(),
            tally: Tally::default(),
            unknown: BTreeSet::new(),
        };
        job.processes.insert(0, Process::first(cwd));
        job
    }

    /// Processes the events of the whole trace.
    pub fn run(&mut self, events: Vec<(Pid, Event)>) {
        if let (Some((first, _)), Some(process)) = (events.first(), self.processes.remove(&0)) {
            self.processes.insert(*first, process);
        }
        for (pid, event) in events {
            self.take(pid, event);
        }
    }

    /// Returns the counts.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns unknown calls on files of the tree. With any of them the comparison proves nothing.
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
            self.tally.add(l::EXEC_OPEN, 1);
            self.tally.add(l::ENDS, 1);
            self.tally.add(l::EXEC_MODE, 1);
            // Permission to dump, that is, to read.
            self.check(1);
            self.tally.add(l::EXEC_READ, 2);
            self.tally.add_between(l::PAGES, 1, PROGRAM_READS_MAX);
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
            (true, false) => self.tally.add(l::CHDIR, 1),
            (false, _) => {}
        }
    }

    /// Counts permission checks for which the kernel fetches attributes, if it checks.
    fn check(&mut self, count: u64) {
        if self.kernel_checks {
            self.tally.add(l::CHECKS, count.cast_signed());
            if self.has_foreign {
                self.tally.add_between(l::ACL, 0, count.cast_signed());
            }
        }
    }

    fn cwd(&self, pid: Pid) -> String {
        self.processes.get(&pid).map(|process| process.cwd.borrow().clone()).unwrap_or_default()
    }

    fn set_cwd(&self, pid: Pid, path: String) {
        if let Some(process) = self.processes.get(&pid) {
            *process.cwd.borrow_mut() = path;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Class;
    use crate::trace::events;

    fn expected(trace: &str, class: Class) -> std::ops::RangeInclusive<i64> {
        let mut job = Job::new("/t", "/", false);
        job.run(events(trace));
        assert!(job.unknown().is_empty(), "{:?}", job.unknown());
        job.tally().expected(class)
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
    fn attributes_from_a_look_up_are_not_requested_again() {
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
    fn program_without_labels_queries_only_once() {
        let get = |path: &str| {
            format!("1 lgetxattr(\"{path}\", \"security.selinux\", 0x1, 255) = -1 ENODATA (No)\n")
        };
        let ls = format!("{}{}{}", get("/u/a"), get("/t/a"), get("/t/b"));
        assert_eq!(expected(&ls, l::XATTR), 1..=1);
        assert_eq!(expected(&ls, l::LOOKUP), 1..=1);
        let twice = format!("{ls}1 execve(\"/bin/ls\", [\"ls\"], 0x0 /* 1 vars */) = 0\n{ls}");
        assert_eq!(expected(&twice, l::XATTR), 2..=2);
    }

    #[test]
    fn unknown_call_is_reported() {
        let mut job = Job::new("/t", "/", false);
        job.run(events(
            "1 sendfile(3</t/a>, 1</t/b>, NULL, 5) = 5\n1 sendfile(3</u/a>, 1</u/b>, NULL, 5) = 5\n",
        ));
        assert_eq!(job.unknown().iter().collect::<Vec<_>>(), ["sendfile"]);
    }
}
