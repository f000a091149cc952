//! Effects of the recorded calls on the directory: steps that refer to nodes, not paths, so that files opened
//! under another name are found.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Component, Path};

use crate::image::Image;
use crate::strace::{self, Call};

/// A file or directory, numbered in order of creation. 0 is the recorded directory.
pub(crate) type Node = usize;

/// All changes of a directory, in order.
#[derive(Debug)]
pub struct Log {
    pub(crate) steps: Vec<Step>,
    pub(crate) nodes: usize,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub what: What,
    /// The step that made it stable, if any.
    pub stable: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum What {
    /// A name leads to this node from now on.
    Name {
        dir: Node,
        name: OsString,
        node: Option<Node>,
        is_dir: bool,
    },
    /// Rename within a directory.
    Rename {
        dir: Node,
        from: OsString,
        to: OsString,
    },
    Write {
        node: Node,
        at: usize,
        bytes: Vec<u8>,
    },
    Truncate {
        node: Node,
        len: usize,
    },
    /// Zeroes, without a change of the length.
    Punch {
        node: Node,
        at: usize,
        len: usize,
    },
    /// Modification time of a file, as read or set by a program.
    Time {
        node: Node,
        time: (u64, u32),
    },
    Sync,
    Mark(String),
}

impl What {
    /// Returns the node that it changes.
    pub(crate) fn node(&self) -> Option<Node> {
        match self {
            Self::Name { dir, .. } | Self::Rename { dir, .. } => Some(*dir),
            Self::Write { node, .. }
            | Self::Truncate { node, .. }
            | Self::Punch { node, .. }
            | Self::Time { node, .. } => Some(*node),
            Self::Sync | Self::Mark(_) => None,
        }
    }
}

impl Log {
    /// Parses a trace. `root` was empty at its beginning; writes to `marks` are marks.
    pub(crate) fn read(trace: &str, root: &Path, marks: &Path) -> Result<Self, String> {
        let reader = std::cell::RefCell::new(Reader {
            root,
            marks,
            threads: strace::threads(trace),
            names: HashMap::new(),
            open: HashMap::new(),
            now: Image::default(),
            times: HashMap::new(),
            log: Self { steps: Vec::new(), nodes: 1 },
        });
        let begin = || reader.borrow().log.steps.len();
        strace::calls(trace, begin, |began, call| reader.borrow_mut().called(began, call))?;
        Ok(reader.into_inner().log)
    }

    /// Returns all marks.
    pub fn all_marks(&self) -> Vec<&str> {
        self.marks(self.steps.len())
    }

    /// Returns the marks before a step.
    pub(crate) fn marks(&self, before: usize) -> Vec<&str> {
        let marks = self.steps[..before].iter().filter_map(|step| match &step.what {
            What::Mark(text) => Some(&**text),
            _ => None,
        });
        marks.collect()
    }
}

struct Reader<'a> {
    root: &'a Path,
    marks: &'a Path,
    /// Creator of each additional thread of a process.
    threads: HashMap<&'a str, &'a str>,
    names: HashMap<(Node, OsString), Node>,
    /// Files of the processes' descriptors. Inherited or received ones are known by their paths.
    open: HashMap<(String, String), Open>,
    /// Present contents of the files.
    now: Image,
    /// Modification times as far as known, with `true` if all later changes are synced.
    times: HashMap<Node, (Option<(u64, u32)>, bool)>,
    log: Log,
}

#[derive(Clone, Copy)]
struct Open {
    node: Node,
    /// File position. Unknown, and for appending: the end.
    at: Option<usize>,
}

/// A name in a directory.
type Place = (Node, OsString);

impl Reader<'_> {
    fn called(&mut self, began: usize, call: &Call<'_>) -> Result<(), String> {
        match call.name {
            "open" => self.opened(call, &call.path(0, None)?, 1),
            "openat" | "openat2" => self.opened(call, &call.path(1, Some(0))?, 2),
            "mkdir" => self.made(&call.path(0, None)?),
            "mkdirat" => self.made(&call.path(1, Some(0))?),
            "unlink" | "rmdir" => self.removed(&call.path(0, None)?),
            "unlinkat" => self.removed(&call.path(1, Some(0))?),
            "link" => self.linked(&call.path(0, None)?, &call.path(1, None)?),
            "linkat" => self.linked(&call.path(1, Some(0))?, &call.path(3, Some(2))?),
            "rename" => self.renamed(&call.path(0, None)?, &call.path(1, None)?),
            "renameat" => self.renamed(&call.path(1, Some(0))?, &call.path(3, Some(2))?),
            "renameat2" if ["0", "RENAME_NOREPLACE"].contains(&call.argument(4)?) => {
                self.renamed(&call.path(1, Some(0))?, &call.path(3, Some(2))?)
            }
            "statx" => self.looked_at(call),
            "sync" => self.synced(began, |_| true),
            "execve" => {
                let process = self.process(call).to_owned();
                self.open.retain(|(owner, _), _| *owner != process);
                Ok(())
            }
            "close" => {
                if let Some((number, _)) = call.descriptor(0) {
                    self.open.remove(&(self.process(call).to_owned(), number.to_owned()));
                }
                Ok(())
            }
            "dup2" | "dup3" => {
                self.open.remove(&(self.process(call).to_owned(), call.result.to_string()));
                self.called_on_file(began, call)
            }
            _ => self.called_on_file(began, call),
        }
    }

    /// Returns the process of a thread, identified by its first thread.
    fn process<'t>(&'t self, call: &'t Call<'_>) -> &'t str {
        let mut thread = call.thread;
        while let Some(maker) = self.threads.get(thread) {
            thread = maker;
        }
        thread
    }

    fn called_on_file(&mut self, began: usize, call: &Call<'_>) -> Result<(), String> {
        let place = match call.name {
            "mmap" => 4,
            "copy_file_range" => 2,
            _ => 0,
        };
        let Some((number, path)) = call.descriptor(place) else {
            let refused = ["creat", "truncate", "symlink", "mknod", "io_uring_setup", "msync", "utimensat"];
            let is_refused =
                refused.iter().any(|name| call.name.starts_with(name)) || call.name.starts_with("renameat");
            return if is_refused { Err("an unknown call".into()) } else { Ok(()) };
        };
        if path == self.marks && call.name.contains("write") {
            let text = String::from_utf8(call.bytes(1)?).map_err(|error| error.to_string())?;
            self.step(What::Mark(text));
            return Ok(());
        }
        if !path.starts_with(self.root) || is_lost(&path) {
            return Ok(());
        }
        if call.name == "mmap" {
            let is_read = !call.has_flag(2, "PROT_WRITE") || call.has_flag(3, "MAP_PRIVATE");
            return if is_read { Ok(()) } else { Err("stores through a mapping are not recorded".into()) };
        }
        let key = (self.process(call).to_owned(), number.to_owned());
        let known = self.open.get(&key).copied();
        let by_name = || if call.is_nameless(place) { None } else { self.node_at(&path) };
        let Some(Open { node, at }) = known.or_else(|| Some(Open { node: by_name()?, at: None })) else {
            // The file is deleted.
            return if call.is_nameless(place) { Ok(()) } else { Err("an unknown descriptor".into()) };
        };
        let to_usize = |number: u64| usize::try_from(number).map_err(|error| error.to_string());
        let len = self.now.data(node).len();
        let mut goes_on = |from: usize, bytes: &[u8]| {
            let at = at.map(|_| from + bytes.len());
            self.open.insert(key.clone(), Open { node, at });
        };
        match call.name {
            "write" | "writev" => {
                let (at, bytes) = (at.unwrap_or(len), call.bytes(1)?);
                goes_on(at, &bytes);
                self.step(What::Write { node, at, bytes });
            }
            "copy_file_range" => {
                let (at, bytes) = (at.unwrap_or(len), self.copied(call, at.unwrap_or(len))?);
                self.open.insert(key, Open { node, at: Some(at + bytes.len()) });
                if !bytes.is_empty() {
                    self.step(What::Write { node, at, bytes });
                }
            }
            "pwrite64" | "pwritev" => {
                self.step(What::Write { node, at: to_usize(call.number(3)?)?, bytes: call.bytes(1)? });
            }
            "pwritev2" => {
                self.step(What::Write { node, at: to_usize(call.number(3)?)?, bytes: call.bytes(1)? });
                if call.argument(4)?.contains("SYNC") {
                    self.synced_itself();
                }
            }
            "ftruncate" => self.step(What::Truncate { node, len: to_usize(call.number(1)?)? }),
            "fallocate" if call.has_flag(1, "FALLOC_FL_KEEP_SIZE") => {
                if !call.argument(1)?.eq("FALLOC_FL_KEEP_SIZE") {
                    let (at, len) = (to_usize(call.number(2)?)?, to_usize(call.number(3)?)?);
                    self.step(What::Punch { node, at, len });
                }
            }
            // Times are not data (POSIX.1-2017, fdatasync()).
            "fdatasync" => {
                self.synced(began, |what| what.node() == Some(node) && !matches!(what, What::Time { .. }))?
            }
            "fsync" => {
                self.synced(began, |what| what.node() == Some(node))?;
                self.times.entry(node).or_default().1 = true;
            }
            "syncfs" => self.synced(began, |_| true)?,
            "utimensat" => {
                let time = self.set_time(call).ok_or("unknown times")?;
                self.times.insert(node, (Some(time), false));
                self.step(What::Time { node, time });
            }
            "lseek" => {
                self.open.insert(key, Open { node, at: Some(to_usize(call.result)?) });
            }
            // Locks and flags, without effect on the disk. Duplicated descriptors are known by their paths.
            "fcntl" | "dup" | "dup2" | "dup3" => {}
            // Queries only.
            "ioctl" if ["TCGETS", "_IOC(_IOC_READ"].contains(&call.argument(1)?) => {}
            _ => return Err("an unknown call".into()),
        }
        Ok(())
    }

    /// Returns the modification time in `utimensat(fd, NULL, [accessed, modified], 0)`.
    fn set_time(&self, call: &Call<'_>) -> Option<(u64, u32)> {
        call.arguments
            .get(2)?
            .starts_with('[')
            .then(|| call.time("}, {").or_else(|| call.time("UTIME_OMIT, ")))?
    }

    /// Returns the data copied from another file, at the same offset.
    fn copied(&self, call: &Call<'_>, at: usize) -> Result<Vec<u8>, String> {
        let (_, from) = call.descriptor(0).ok_or("no file")?;
        let data = match self.node_at(&from) {
            Some(node) => self.now.data(node).to_vec(),
            None => std::fs::read(from).map_err(|error| error.to_string())?,
        };
        let len = usize::try_from(call.result).map_err(|error| error.to_string())?;
        data.get(at..at + len).map(<[u8]>::to_vec).ok_or_else(|| "more than the file has".into())
    }

    fn looked_at(&mut self, call: &Call<'_>) -> Result<(), String> {
        let path = match call.argument(1)? {
            "\"\"" => call.descriptor(0).map(|(_, path)| path).filter(|_| !call.is_nameless(0)),
            _ => Some(call.path(1, Some(0))?),
        };
        let node = path.filter(|path| path.starts_with(self.root)).and_then(|path| self.node_at(&path));
        let (Some(node), Some(time)) = (node, call.time("stx_mtime=")) else { return Ok(()) };
        let (known, is_synced) = self.times.entry(node).or_default();
        if *known == Some(time) {
            return Ok(());
        }
        *known = Some(time);
        let is_synced = *is_synced;
        self.step(What::Time { node, time });
        if is_synced {
            self.synced_itself();
        }
        Ok(())
    }

    /// Returns the node that has this name now.
    fn node_at(&self, path: &Path) -> Option<Node> {
        if path == self.root { Some(0) } else { self.names.get(&self.place(path).ok()?).copied() }
    }

    fn opened(&mut self, call: &Call<'_>, path: &Path, flags: usize) -> Result<(), String> {
        if !path.starts_with(self.root) || is_lost(path) {
            return Ok(());
        }
        let refused = ["O_SYNC", "O_DSYNC", "O_TMPFILE", "O_DIRECT"];
        if let Some(flag) = refused.into_iter().find(|flag| call.has_flag(flags, flag)) {
            return Err(format!("unknown flag {flag}"));
        }
        let known = self.node_at(path);
        let node = match known {
            Some(node) => node,
            None if call.has_flag(flags, "O_CREAT") => self.new_node(path, false)?,
            None => return Err("an unknown file".into()),
        };
        if call.has_flag(flags, "O_TRUNC") && known.is_some() {
            self.step(What::Truncate { node, len: 0 });
        }
        let at = (!call.has_flag(flags, "O_APPEND")).then_some(0);
        self.open.insert((self.process(call).to_owned(), call.result.to_string()), Open { node, at });
        Ok(())
    }

    fn made(&mut self, path: &Path) -> Result<(), String> {
        if path.starts_with(self.root) {
            self.new_node(path, true)?;
        }
        Ok(())
    }

    fn new_node(&mut self, path: &Path, is_dir: bool) -> Result<Node, String> {
        let (place, node) = (self.place(path)?, self.log.nodes);
        self.log.nodes += 1;
        self.names.insert(place.clone(), node);
        self.step(What::Name { dir: place.0, name: place.1, node: Some(node), is_dir });
        Ok(node)
    }

    fn removed(&mut self, path: &Path) -> Result<(), String> {
        if path.starts_with(self.root) && !is_lost(path) {
            let (dir, name) = self.place(path)?;
            self.names.remove(&(dir, name.clone()));
            self.step(What::Name { dir, name, node: None, is_dir: false });
        }
        Ok(())
    }

    fn linked(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        if !from.starts_with(self.root) && !to.starts_with(self.root) {
            return Ok(());
        }
        let node = self.node_at(from).ok_or("an unknown file")?;
        let (dir, name) = self.place(to)?;
        self.names.insert((dir, name.clone()), node);
        self.step(What::Name { dir, name, node: Some(node), is_dir: false });
        Ok(())
    }

    fn renamed(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        if !from.starts_with(self.root) && !to.starts_with(self.root) {
            return Ok(());
        }
        let (from, to) = (self.place(from)?, self.place(to)?);
        let node = *self.names.get(&from).ok_or("an unknown file")?;
        // A rename between two names of one file has no effect (rename(2)).
        if self.names.get(&to) == Some(&node) {
            return Ok(());
        }
        self.names.remove(&from);
        if from.0 != to.0 {
            return Err("a rename to another directory is not supported".into());
        }
        self.names.insert(to.clone(), node);
        self.step(What::Rename { dir: from.0, from: from.1, to: to.1 });
        Ok(())
    }

    /// Marks as stable, when a sync ends, what was done before it began.
    fn synced(&mut self, began: usize, covers: impl Fn(&What) -> bool) -> Result<(), String> {
        let number = self.log.steps.len();
        for step in &mut self.log.steps[..began] {
            if step.stable.is_none() && step.what.node().is_some() && covers(&step.what) {
                step.stable = Some(number);
            }
        }
        self.step(What::Sync);
        Ok(())
    }

    /// Marks only the last write as stable, for RWF_DSYNC.
    fn synced_itself(&mut self) {
        let number = self.log.steps.len();
        if let Some(step) = self.log.steps.last_mut() {
            step.stable = Some(number);
        }
        self.step(What::Sync);
    }

    fn place(&self, path: &Path) -> Result<Place, String> {
        let below = path.strip_prefix(self.root).map_err(|error| error.to_string())?;
        let (mut dir, mut components) = (0, below.components().peekable());
        while let Some(Component::Normal(name)) = components.next() {
            if components.peek().is_none() {
                return Ok((dir, name.to_owned()));
            }
            dir = *self.names.get(&(dir, name.to_owned())).ok_or("an unknown directory")?;
        }
        Err(format!("unknown path {}", path.display()))
    }

    fn step(&mut self, what: What) {
        if let What::Write { node, .. } | What::Truncate { node, .. } | What::Punch { node, .. } = what {
            self.times.entry(node).or_default().1 = false;
        }
        self.now.apply(&what);
        self.log.steps.push(Step { what, stable: None });
    }
}

/// Returns `true` for files that SQLite recreates after a crash.
pub(crate) fn is_lost(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"-shm")
}
