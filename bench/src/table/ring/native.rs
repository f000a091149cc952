//! The same operations by system calls on the file itself.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::session::Operation;
use super::{at_once, rated, timed_by};
use crate::error::{Doing, Result, same};
use crate::measure::{Clock, Work};

/// Returns the closest system call: `statx`, `pread` or `pwrite`.
pub fn native(path: &Path, operation: Operation) -> Result<Work<'static>> {
    let file = File::options().read(true).write(true).open(path).doing_to("open", path)?;
    let whole = operation.bytes();
    // Not zeroes: unwritten memory is a single page of the kernel, whatever its length.
    let mut memory = vec![b'x'; whole];
    let mut call = move || {
        let count = match operation {
            Operation::Read(_) | Operation::ReadInPlace(_) => file.read_at(&mut memory, 0),
            Operation::Write(_) | Operation::WriteInPlace(_) => file.write_at(&memory, 0),
            Operation::Null | Operation::Getattr => file.metadata().map(|found| {
                black_box(found);
                whole
            }),
        };
        let count = count.doing(|| format!("{operation:?} by a system call"))?;
        same("a system call", count, whole)
    };
    let run = move |count, clock: &mut Clock| timed_by(at_once(whole), count, clock, &mut call);
    Ok(Work::new(run).bytes(rated(whole)))
}
