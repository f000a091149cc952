//! The same by system calls on the file itself.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::session::Operation;
use super::{at_once, rated, timed_by};
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Work};

pub struct Native {
    file: File,
    operation: Operation,
    memory: Vec<u8>,
}

impl Native {
    /// What comes closest to the operation: `statx`, `pread` or `pwrite`.
    pub fn new(path: &Path, operation: Operation, bytes: usize) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path).doing_to("open", path)?;
        // Not zeroes: memory that was never written is one page of the kernel's, whatever its length.
        Ok(Self { file, operation, memory: vec![b'x'; bytes] })
    }

    #[inline]
    fn call(&mut self) -> Result<()> {
        let whole = self.memory.len();
        let count = match self.operation {
            Operation::Read(_) | Operation::ReadInPlace(_) => self.file.read_at(&mut self.memory, 0),
            Operation::Write(_) | Operation::WriteInPlace(_) => self.file.write_at(&self.memory, 0),
            Operation::Null | Operation::Getattr => self.file.metadata().map(|found| {
                black_box(found);
                whole
            }),
        };
        let count = count.doing(|| format!("{:?} by a system call", self.operation))?;
        if count == whole {
            return Ok(());
        }
        Err(Error::Wrong { what: format!("{:?}", self.operation), answer: format!("{count} bytes") })
    }
}

impl Work for Native {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        timed_by(at_once(self.memory.len()), count, clock, || self.call())
    }

    fn bytes(&self) -> Option<u64> {
        rated(self.memory.len())
    }
}
