//! The operations of the FSVA paper's Table 6.2, each alone: through the waist, through virtio-fs, and by
//! system calls.

mod calls;
mod virtio;
mod waist;

pub use calls::Calls;
pub use virtio::Virtio;
pub use waist::Waist;

use crate::error::Result;
use crate::measure::{Clock, Work};

/// One operation of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are called what they are")]
pub enum Operation {
    Create,
    Getattr,
    Lookup,
    Mkdir,
    Open,
    Permission,
    Read,
    Release,
    Rename,
    Rmdir,
    Setattr,
    Unlink,
    Write,
}

impl Operation {
    /// All of them, in the paper's order.
    pub const ALL: [Operation; 13] = [
        Operation::Create,
        Operation::Getattr,
        Operation::Lookup,
        Operation::Mkdir,
        Operation::Open,
        Operation::Permission,
        Operation::Read,
        Operation::Release,
        Operation::Rename,
        Operation::Rmdir,
        Operation::Setattr,
        Operation::Unlink,
        Operation::Write,
    ];

    /// As the paper prints it.
    pub fn label(self) -> &'static str {
        match self {
            Operation::Create => "create",
            Operation::Getattr => "getattr",
            Operation::Lookup => "lookup",
            Operation::Mkdir => "mkdir",
            Operation::Open => "open",
            Operation::Permission => "permission",
            Operation::Read => "read (4 KB)",
            Operation::Release => "release",
            Operation::Rename => "rename",
            Operation::Rmdir => "rmdir",
            Operation::Setattr => "setattr",
            Operation::Unlink => "unlink",
            Operation::Write => "write (4 KB)",
        }
    }
}

/// A way to a file system.
pub trait Vfs {
    /// Does the operation once, timed, and undoes it, untimed.
    fn cycle(&mut self, operation: Operation, clock: &mut Clock) -> Result<()>;

    /// Ends a turn, untimed: gives back what the cycles left.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}

/// One operation over one way, to be repeated.
pub struct Cycles<V> {
    vfs: V,
    operation: Operation,
}

impl<V: Vfs> Cycles<V> {
    /// Of this operation.
    pub fn new(vfs: V, operation: Operation) -> Self {
        Self { vfs, operation }
    }
}

impl<V: Vfs> Work for Cycles<V> {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        for _ in 0..count {
            self.vfs.cycle(self.operation, clock)?;
        }
        self.vfs.settle()
    }
}
