//! The names that a job has created, and the kernel's requests on a path walk.

use std::collections::{HashMap, HashSet, VecDeque};

/// The names below the root. There are none when the job begins.
#[derive(Debug)]
pub struct Tree {
    root: String,
    files: HashSet<String>,
    directories: HashSet<String>,
    links: HashMap<String, String>,
}

/// Outcome of a path walk.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Walked {
    /// Its end, if each directory on the way exists.
    pub path: Option<String>,
    /// Number of names looked up below the root.
    pub names: u64,
    /// Number of links followed below the root.
    pub links: u64,
    /// Number of search permissions needed below the root: for each name, including `.` and `..`.
    pub passes: u64,
}

/// The kernel's limit of links followed in one path.
const LINKS_MAX: u64 = 40;

impl Tree {
    /// Creates an empty tree at this absolute path.
    pub fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            files: HashSet::new(),
            directories: HashSet::new(),
            links: HashMap::new(),
        }
    }

    /// Returns `true` if a path is the root or below it.
    pub fn holds(&self, path: &str) -> bool {
        path.strip_prefix(&self.root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns `true` if a path below the root is a directory.
    pub fn is_directory(&self, path: &str) -> bool {
        path == self.root || self.directories.contains(path)
    }

    /// Walks `path` from `base`; follows a final link only with `follow`.
    pub fn walk(&self, base: &str, path: &str, follow: bool) -> Walked {
        let mut walked = Walked::default();
        let mut here = if path.starts_with('/') { String::new() } else { base.to_owned() };
        let mut rest: VecDeque<String> = path.split('/').map(str::to_owned).collect();
        let ends_in_directory = path.ends_with('/') || path.ends_with("/.");
        while let Some(name) = rest.pop_front() {
            let inside = self.holds(&here);
            if !name.is_empty() && inside {
                if !self.is_directory(&here) {
                    return walked;
                }
                walked.passes += 1;
            }
            match name.as_str() {
                "" | "." => continue,
                ".." => {
                    here.truncate(here.rfind('/').unwrap_or_default());
                    continue;
                }
                _ => {}
            }
            walked.names += u64::from(inside);
            let next = format!("{here}/{name}");
            let is_last = rest.iter().all(|name| name.is_empty() || name == ".");
            match self.links.get(&next) {
                Some(target) if !is_last || follow || ends_in_directory => {
                    walked.links += 1;
                    if walked.links > LINKS_MAX {
                        return walked;
                    }
                    if target.starts_with('/') {
                        here.clear();
                    }
                    target.rsplit('/').for_each(|name| rest.push_front(name.to_owned()));
                }
                _ => here = next,
            }
        }
        walked.path = Some(here);
        walked
    }

    /// Returns `true` if a path below the root is neither a directory nor a link.
    pub fn is_file(&self, path: &str) -> bool {
        self.files.contains(path)
    }

    /// Adds a file, or another name of one.
    pub fn make_file(&mut self, path: &str) {
        self.files.insert(path.to_owned());
    }

    /// Adds a directory.
    pub fn make_directory(&mut self, path: &str) {
        self.directories.insert(path.to_owned());
    }

    /// Adds a link.
    pub fn make_link(&mut self, path: &str, target: &str) {
        self.links.insert(path.to_owned(), target.to_owned());
    }

    /// Removes a name.
    pub fn remove(&mut self, path: &str) {
        self.files.remove(path);
        self.directories.remove(path);
        self.links.remove(path);
    }

    /// Moves a name, and with it all its descendants.
    pub fn rename(&mut self, from: &str, to: &str) {
        self.remove(to);
        let moved = |path: &str| {
            let rest = path.strip_prefix(from)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| format!("{to}{rest}"))
        };
        for names in [&mut self.files, &mut self.directories] {
            *names = names.drain().map(|path| moved(&path).unwrap_or(path)).collect();
        }
        let links = self.links.drain().map(|(path, target)| (moved(&path).unwrap_or(path), target));
        self.links = links.collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let mut tree = Tree::new("/mnt/t");
        tree.make_directory("/mnt/t/d");
        tree.make_directory("/mnt/t/d/e");
        tree.make_link("/mnt/t/l", "d/e");
        tree
    }

    fn walk(base: &str, path: &str, follow: bool) -> (Option<String>, u64, u64) {
        let Walked { path, names, links, .. } = tree().walk(base, path, follow);
        (path, names, links)
    }

    #[test]
    fn names_count_beneath_the_root_only() {
        assert_eq!(walk("/", "/mnt/t/d/e/x", true), (Some("/mnt/t/d/e/x".into()), 3, 0));
        assert_eq!(walk("/mnt/t/d", "./e//../x", true), (Some("/mnt/t/d/x".into()), 2, 0));
        assert_eq!(walk("/mnt/t/d", "../../other/x", true), (Some("/mnt/other/x".into()), 0, 0));
        assert_eq!(walk("/", "/mnt/tt/x", true), (Some("/mnt/tt/x".into()), 0, 0));
    }

    #[test]
    fn a_walk_ends_where_a_directory_is_missing() {
        assert_eq!(walk("/", "/mnt/t/no/such/file", true), (None, 1, 0));
        assert_eq!(walk("/", "/mnt/t/d/file", true), (Some("/mnt/t/d/file".into()), 2, 0));
    }

    #[test]
    fn links_are_followed_within_paths_and_optionally_last() {
        assert_eq!(walk("/", "/mnt/t/l/x", false), (Some("/mnt/t/d/e/x".into()), 4, 1));
        assert_eq!(walk("/", "/mnt/t/l", true), (Some("/mnt/t/d/e".into()), 3, 1));
        assert_eq!(walk("/", "/mnt/t/l", false), (Some("/mnt/t/l".into()), 1, 0));
    }

    #[test]
    fn every_step_passes_a_directory() {
        let passes = |base, path| tree().walk(base, path, true).passes;
        assert_eq!(passes("/", "/mnt/t"), 0);
        assert_eq!(passes("/", "/mnt/t/d/e"), 2);
        assert_eq!(passes("/mnt/t", "."), 1);
        assert_eq!(passes("/mnt/t", "d/../x"), 3);
    }

    #[test]
    fn entries_beneath_a_renamed_directory_move_along() {
        let mut tree = tree();
        tree.rename("/mnt/t/d", "/mnt/t/f");
        assert!(tree.is_directory("/mnt/t/f/e") && !tree.is_directory("/mnt/t/d"));
    }
}
