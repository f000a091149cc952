//! Processes and their descriptors: what each closes, also where no call says so.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// What a descriptor stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An open file of the tree.
    File,
    /// An open directory of the tree.
    Directory,
    /// A place in the tree, opened with `O_PATH`: nothing is open.
    Place,
}

/// One descriptor.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// What it stands for.
    pub kind: Kind,
    /// Where it was opened.
    pub path: String,
    /// Whether execve closes it.
    pub close_on_exec: bool,
}

/// The descriptors of one process, or of several that share them. Only those of the tree are kept.
pub type Table = HashMap<i32, Descriptor>;

/// One process or thread.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its descriptors.
    pub table: Rc<RefCell<Table>>,
    /// Its working directory.
    pub cwd: Rc<RefCell<String>>,
    /// On the mount this program has been told that there are no labels.
    pub has_no_labels: bool,
}

impl Process {
    /// The first process of a job.
    pub fn first(cwd: &str) -> Self {
        Self { table: Rc::default(), cwd: Rc::new(RefCell::new(cwd.to_owned())), has_no_labels: false }
    }

    /// A child, as the flags of clone(2) make it.
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

    /// What execve does to the descriptors. Gives those that it closes.
    pub fn exec(&mut self) -> Vec<Descriptor> {
        let own = self.table.borrow().clone();
        let (closed, kept): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(_, descriptor)| descriptor.close_on_exec);
        self.table = Rc::new(RefCell::new(kept.into_iter().collect()));
        self.has_no_labels = false;
        closed.into_iter().map(|(_, descriptor)| descriptor).collect()
    }

    /// What the end of the process closes: nothing while another shares its descriptors.
    pub fn exit(self) -> Vec<Descriptor> {
        Rc::try_unwrap(self.table)
            .map_or_else(|_| Vec::new(), |table| table.into_inner().into_values().collect())
    }
}
