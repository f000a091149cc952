//! The same operations by libnfs, driven by a separate program (`bench/peers/libnfs-driver.c`) turn by turn.

use std::cell::RefCell;
use std::rc::Rc;

use super::Driver;
use crate::files::Tree;
use crate::measure::{Clock, Work};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drives {
    Getattr,
    /// READ in pieces of this size.
    Read(u32),
    /// Unstable WRITE in pieces of this size, and one COMMIT.
    Write(u32),
}

/// Returns the operation with this many calls outstanding.
pub fn driven(driver: &Rc<RefCell<Driver>>, drives: Drives, outstanding: u32) -> Work<'static> {
    let (driver, caller) = (Rc::clone(driver), driver.borrow().process());
    let file = Tree::LARGE_BYTES;
    let run = move |count, clock: &mut Clock| {
        let command = match drives {
            Drives::Getattr => format!("getattr {outstanding} {count}"),
            Drives::Read(bytes) => format!("read {outstanding} {count} {bytes} {file}"),
            Drives::Write(bytes) => format!("write {outstanding} {count} {bytes} {file}"),
        };
        let (took, laps) = driver.borrow_mut().run(&command)?;
        if laps.is_empty() {
            clock.record(took, count);
        }
        for lap in laps {
            clock.record(lap, 1);
        }
        Ok(())
    };
    let bytes = match drives {
        Drives::Getattr => None,
        Drives::Read(bytes) | Drives::Write(bytes) => Some(u64::from(bytes)),
    };
    Work::new(run).bytes(bytes).caller(caller).per_second(outstanding > 1)
}
