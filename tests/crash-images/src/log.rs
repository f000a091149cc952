//! What recorded calls have done to the directory: steps that name nodes, not paths, so that what was open under another name is found.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Component, Path};

use crate::strace::{self, Call};

/// A file or directory, by the order in which they were made. 0 is the recorded directory.
pub(crate) type Node = usize;

/// All that was done to a directory, in the order in which it was done.
#[derive(Debug)]
pub struct Log {
    pub(crate) steps: Vec<Step>,
    pub(crate) nodes: usize,
}

#[derive(Debug)]
pub(crate) struct Step {
    pub what: What,
    /// The step that made it stable, if one has.
    pub stable: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum What {
    /// What a name leads to from now on.
    Name {
        dir: Node,
        name: OsString,
        node: Option<Node>,
        is_dir: bool,
    },
    /// One name in place of another, of the same directory.
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
    /// Zeros, without a change of the length.
    Punch {
        node: Node,
        at: usize,
        len: usize,
    },
    Sync,
    Mark(String),
}

impl What {
    /// The node that it changes.
    pub(crate) fn node(&self) -> Option<Node> {
        match self {
            Self::Name { dir, .. } | Self::Rename { dir, .. } => Some(*dir),
            Self::Write { node, .. } | Self::Truncate { node, .. } | Self::Punch { node, .. } => Some(*node),
            Self::Sync | Self::Mark(_) => None,
        }
    }
}

impl Log {
    /// Reads a trace. `root` was empty at its beginning; what is written to `marks` are marks.
    pub(crate) fn read(trace: &str, root: &Path, marks: &Path) -> Result<Self, String> {
        let reader = std::cell::RefCell::new(Reader {
            root,
            marks,
            names: HashMap::new(),
            open: HashMap::new(),
            log: Self { steps: Vec::new(), nodes: 1 },
        });
        let begin = || reader.borrow().log.steps.len();
        strace::calls(trace, begin, |began, call| reader.borrow_mut().called(began, call))?;
        Ok(reader.into_inner().log)
    }

    /// The marks before a step.
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
    names: HashMap<(Node, OsString), Node>,
    /// What descriptors lead to, and where they stand.
    open: HashMap<String, (Node, usize)>,
    log: Log,
}

/// A name in a directory.
type Place = (Node, OsString);

impl Reader<'_> {
    fn called(&mut self, began: usize, call: &Call<'_>) -> Result<(), String> {
        match call.name {
            "open" => self.opened(call, &call.path(0, None)?, 1),
            "openat" => self.opened(call, &call.path(1, Some(0))?, 2),
            "mkdir" => self.made(&call.path(0, None)?),
            "mkdirat" => self.made(&call.path(1, Some(0))?),
            "unlink" | "rmdir" => self.removed(&call.path(0, None)?),
            "unlinkat" => self.removed(&call.path(1, Some(0))?),
            "rename" => self.renamed(&call.path(0, None)?, &call.path(1, None)?),
            "renameat" => self.renamed(&call.path(1, Some(0))?, &call.path(3, Some(2))?),
            "renameat2" if call.argument(4)? == "0" => {
                self.renamed(&call.path(1, Some(0))?, &call.path(3, Some(2))?)
            }
            "sync" => self.synced(began, |_| true),
            _ => self.called_on_file(began, call),
        }
    }

    fn called_on_file(&mut self, began: usize, call: &Call<'_>) -> Result<(), String> {
        let is_mapped = call.name == "mmap";
        let Some((number, path)) = call.descriptor(if is_mapped { 4 } else { 0 }) else {
            let refused =
                ["openat2", "creat", "truncate", "link", "symlink", "mknod", "io_uring_setup", "msync"];
            let is_refused =
                refused.iter().any(|name| call.name.starts_with(name)) || call.name.starts_with("renameat");
            return if is_refused { Err("a call that is not known".into()) } else { Ok(()) };
        };
        if path == self.marks && call.name.contains("write") {
            let text = String::from_utf8(call.bytes(1)?).map_err(|error| error.to_string())?;
            self.step(What::Mark(text));
            return Ok(());
        }
        if !path.starts_with(self.root) || is_lost(&path) {
            return Ok(());
        }
        if is_mapped {
            let is_read = !call.has_flag(2, "PROT_WRITE") || call.has_flag(3, "MAP_PRIVATE");
            return if is_read { Ok(()) } else { Err("stores through a mapping are not seen".into()) };
        }
        let (node, at) = *self.open.get(number).ok_or("a descriptor that is not known")?;
        let to_usize = |number: u64| usize::try_from(number).map_err(|error| error.to_string());
        match call.name {
            "write" | "writev" => {
                let bytes = call.bytes(1)?;
                self.open.insert(number.to_owned(), (node, at + bytes.len()));
                self.step(What::Write { node, at, bytes });
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
            "fsync" | "fdatasync" => self.synced(began, |each| each == node)?,
            "syncfs" => self.synced(began, |_| true)?,
            "lseek" => drop(self.open.insert(number.to_owned(), (node, to_usize(call.result)?))),
            // Locks and flags: nothing of the disk.
            "fcntl" if !call.argument(1)?.starts_with("F_DUPFD") => {}
            _ => return Err("a call that is not known".into()),
        }
        Ok(())
    }

    fn opened(&mut self, call: &Call<'_>, path: &Path, flags: usize) -> Result<(), String> {
        if !path.starts_with(self.root) || is_lost(path) {
            return Ok(());
        }
        let refused = ["O_SYNC", "O_DSYNC", "O_APPEND", "O_TMPFILE", "O_DIRECT"];
        if let Some(flag) = refused.into_iter().find(|flag| call.has_flag(flags, flag)) {
            return Err(format!("{flag} is not known"));
        }
        let known = if path == self.root { Some(0) } else { self.names.get(&self.place(path)?).copied() };
        let node = match known {
            Some(node) => node,
            None if call.has_flag(flags, "O_CREAT") => self.new_node(path, false)?,
            None => return Err("a file that is not known".into()),
        };
        if call.has_flag(flags, "O_TRUNC") && known.is_some() {
            self.step(What::Truncate { node, len: 0 });
        }
        self.open.insert(call.result.to_string(), (node, 0));
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

    fn renamed(&mut self, from: &Path, to: &Path) -> Result<(), String> {
        if !from.starts_with(self.root) && !to.starts_with(self.root) {
            return Ok(());
        }
        let (from, to) = (self.place(from)?, self.place(to)?);
        let node = self.names.remove(&from).ok_or("a file that is not known")?;
        if from.0 != to.0 {
            return Err("a rename to another directory is not known".into());
        }
        self.names.insert(to.clone(), node);
        self.step(What::Rename { dir: from.0, from: from.1, to: to.1 });
        Ok(())
    }

    /// What was done before the sync began is stable when it ends.
    fn synced(&mut self, began: usize, covers: impl Fn(Node) -> bool) -> Result<(), String> {
        let number = self.log.steps.len();
        for step in &mut self.log.steps[..began] {
            if step.stable.is_none() && step.what.node().is_some_and(&covers) {
                step.stable = Some(number);
            }
        }
        self.step(What::Sync);
        Ok(())
    }

    /// A write with RWF_DSYNC makes nothing stable but itself.
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
            dir = *self.names.get(&(dir, name.to_owned())).ok_or("a directory that is not known")?;
        }
        Err(format!("{} is not known", path.display()))
    }

    fn step(&mut self, what: What) {
        self.log.steps.push(Step { what, stable: None });
    }
}

/// What SQLite makes anew after a crash.
pub(crate) fn is_lost(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"-shm")
}
