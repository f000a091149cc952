//! Processes and their descriptors, including implicit closes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// The kind of object behind a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An open file of the tree.
    File,
    /// An open directory of the tree.
    Directory,
    /// A path in the tree, opened with `O_PATH`: no opening at the server.
    Place,
}

/// One descriptor.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Kind of its object.
    pub kind: Kind,
    /// Path at which it was opened.
    pub path: String,
    /// `true` if execve closes it.
    pub close_on_exec: bool,
}

/// The descriptors of one process, or of several that share them. Includes only those of the tree.
pub type Table = HashMap<i32, Descriptor>;

/// One process or thread.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its descriptors.
    pub table: Rc<RefCell<Table>>,
    /// Its working directory.
    pub cwd: Rc<RefCell<String>>,
    /// `true` if this program has learnt on the mount that there are no labels.
    pub has_no_labels: bool,
}

impl Process {
    /// Creates the first process of a job.
    pub fn first(cwd: &str) -> Self {
        Self { table: Rc::default(), cwd: Rc::new(RefCell::new(cwd.to_owned())), has_no_labels: false }
    }

    /// Creates a child, according to the flags of clone(2).
    pub fn child(&self, flags: &str) -> Self {
        let mut child = self.clone();
        if !flags.contains("CLONE_FILES") {
            child.table = Rc::new(RefCell::new(self.table.borrow().clone()));
        }
        if !flags.contains("CLONE_FS") {
            child.cwd = Rc::new(RefCell::new(self.cwd.borrow().clone()));
        }
        child
    }

    /// Applies execve to the descriptors and returns those that it closes.
    pub fn exec(&mut self) -> Vec<Descriptor> {
        let own = self.table.borrow().clone();
        let (closed, kept): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(_, descriptor)| descriptor.close_on_exec);
        self.table = Rc::new(RefCell::new(kept.into_iter().collect()));
        self.has_no_labels = false;
        closed.into_iter().map(|(_, descriptor)| descriptor).collect()
    }

    /// Returns the descriptors closed by the end of the process: none while another process shares them.
    pub fn exit(self) -> Vec<Descriptor> {
        Rc::try_unwrap(self.table)
            .map_or_else(|_| Vec::new(), |table| table.into_inner().into_values().collect())
    }
}
