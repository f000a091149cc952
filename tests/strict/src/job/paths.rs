//! Calls with a path.

use super::Job;
use crate::tally::{self as l, Cause, Class};
use crate::trace::{Call, Pid, descriptor, unquoted};

/// Calls whose path is relative to a descriptor.
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

impl Job {
    /// Handles calls on what a path names.
    pub(super) fn on_path(&mut self, pid: Pid, call: &Call) {
        let name = call.name.as_str();
        let at = TAKE_A_BASE.contains(&name);
        let (class, failed) = class_of(name);
        let follow = !(name.starts_with('l') && name != "listxattr"
            || name.starts_with("readlink")
            || call.args.iter().any(|arg| arg.contains("AT_SYMLINK_NOFOLLOW")));
        let Some((base, path)) = self.path(pid, call, 0, at) else {
            // Without a path the call is on the descriptor.
            if at && let Some((_, Some(place))) = call.args.first().and_then(|arg| descriptor(arg)) {
                self.on_place(class, call, place);
            }
            return;
        };
        if path.is_empty() {
            return self.on_place(class, call, &base);
        }
        if is_missing_label(call) && self.is_inside(&base, &path, follow) && self.tell_of_no_labels(pid) {
            self.tally.call(class);
            self.tally.add(l::LABEL, -1);
            return;
        }
        let Some(place) = self.walk(&base, &path, follow) else { return };
        self.tally.call(class);
        match (&call.result, failed) {
            (Err(error), Some(failed)) if is_told_by_look_up(error) => return self.tally.add(failed, -1),
            _ => {}
        }
        if class == l::ACCESS && self.kernel_checks {
            self.tally.add(l::CHECKED, -1);
            self.check(1);
        } else if class == l::ACCESS
            && self.tree.is_file(&place)
            && call.args.iter().any(|arg| arg.contains("X_OK"))
        {
            self.tally.add(l::EXEC_MODE, 1);
        }
        if name == "truncate" {
            self.check(1);
        }
        self.drop_capability(call, &place);
    }

    /// Records that the program knows of missing labels; returns `true` if it knew already.
    fn tell_of_no_labels(&mut self, pid: Pid) -> bool {
        self.processes
            .get_mut(&pid)
            .is_some_and(|process| std::mem::replace(&mut process.has_no_labels, true))
    }

    fn is_inside(&self, base: &str, path: &str, follow: bool) -> bool {
        self.tree.walk(base, path, follow).path.is_some_and(|place| self.tree.holds(&place))
    }

    /// Counts a call that needs no path walk.
    fn on_place(&mut self, class: Class, call: &Call, place: &str) {
        if self.tree.holds(place) {
            self.tally.call(class);
            self.drop_capability(call, place);
        }
    }

    /// Counts the removal of capabilities by chown and truncate.
    pub(super) fn drop_capability(&mut self, call: &Call, place: &str) {
        let chowns = call.name.contains("chown");
        let owner = call.args.get(if call.name == "fchownat" { 2 } else { 1 });
        self.has_foreign |= chowns && owner.is_some_and(|owner| !matches!(owner.as_str(), "0" | "-1"));
        let drops = chowns || call.name.contains("truncate");
        if drops && call.result.is_ok() && !self.tree.is_directory(place) {
            self.tally.add(l::CAPABILITY, 1);
        }
    }

    /// Handles calls that create or remove a name.
    pub(super) fn on_name(&mut self, pid: Pid, call: &Call) {
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
        self.tally.call(class);
        match (&call.result, failed) {
            (Err(error), Some(failed)) if is_told_by_look_up(error) => return self.tally.add(failed, -1),
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

    pub(super) fn on_two_names(&mut self, pid: Pid, call: &Call) {
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
        self.tally.call(class);
        match &call.result {
            Err(error) if is_told_by_look_up(error) => return self.tally.add(failed, -1),
            _ if renames => self.check(2),
            // With protected_hardlinks, a setting of the machine, also permission to write the file.
            _ => {
                self.check(1);
                self.tally.add_between(l::CHECKS, 0, i64::from(self.kernel_checks));
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

    /// Returns the base directory of the path at `index`, and the path. With `at`, a descriptor precedes it.
    pub(super) fn path(&self, pid: Pid, call: &Call, index: usize, at: bool) -> Option<(String, String)> {
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
        // A path through /proc leads to the file without a look-up.
        if let Some(number) = path.strip_prefix("/proc/self/fd/")
            && let Some(place) = number.parse().ok().and_then(|number| self.find(pid, number))
        {
            return Some((place.path, String::new()));
        }
        Some((base, path))
    }

    /// Walks a path, counts its requests, and returns where it leads below the root.
    pub(super) fn walk(&mut self, base: &str, path: &str, follow: bool) -> Option<String> {
        let walked = self.tree.walk(base, path, follow);
        self.tally.add(l::NAMES, walked.names.cast_signed());
        self.tally.add(l::FOLLOWED, walked.links.cast_signed());
        self.check(walked.passes);
        walked.path.filter(|path| self.tree.holds(path))
    }
}

/// Returns the class of a call with a path, and the cause that discounts it when its look-up fails.
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

/// Returns `true` for a missing label: ENODATA natively, EOPNOTSUPP on the mount.
fn is_missing_label(call: &Call) -> bool {
    let is_get = matches!(call.name.as_str(), "getxattr" | "lgetxattr");
    let is_label =
        call.args.get(1).and_then(|arg| unquoted(arg)).is_some_and(|name| name == "security.selinux");
    is_get && is_label && matches!(&call.result, Err(error) if error == "ENODATA")
}

/// Returns `true` if the kernel detects this error before it requests the operation itself.
fn is_told_by_look_up(error: &str) -> bool {
    matches!(
        error,
        "ENOENT" | "ENOTDIR" | "EISDIR" | "EEXIST" | "ELOOP" | "EINVAL" | "ENAMETOOLONG" | "EXDEV" | "EBUSY"
    )
}
