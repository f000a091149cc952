//! The same asked by libnfs: a program of its own drives it (`bench/peers/libnfs-driver.c`), as told in each turn.

use std::cell::RefCell;
use std::rc::Rc;

use super::Driver;
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Work};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drives {
    Getattr,
    /// READ of pieces of so many bytes.
    Read(u32),
    /// WRITE, UNSTABLE, and one COMMIT.
    Write(u32),
}

pub struct Driven {
    driver: Rc<RefCell<Driver>>,
    drives: Drives,
    outstanding: u32,
}

impl Driven {
    /// With so many calls outstanding.
    pub fn new(driver: &Rc<RefCell<Driver>>, drives: Drives, outstanding: u32) -> Self {
        Self { driver: Rc::clone(driver), drives, outstanding }
    }
}

impl Work for Driven {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let (outstanding, file) = (self.outstanding, Tree::LARGE_BYTES);
        let command = match self.drives {
            Drives::Getattr => format!("getattr {outstanding} {count}"),
            Drives::Read(bytes) => format!("read {outstanding} {count} {bytes} {file}"),
            Drives::Write(bytes) => format!("write {outstanding} {count} {bytes} {file}"),
        };
        let (took, laps) = self.driver.borrow_mut().run(&command)?;
        if laps.is_empty() {
            clock.record(took, count);
        }
        for lap in laps {
            clock.record(lap, 1);
        }
        Ok(())
    }

    fn bytes(&self) -> Option<u64> {
        match self.drives {
            Drives::Getattr => None,
            Drives::Read(bytes) | Drives::Write(bytes) => Some(u64::from(bytes)),
        }
    }

    fn caller(&self) -> Option<u32> {
        Some(self.driver.borrow().process())
    }

    fn per_second(&self) -> bool {
        self.outstanding > 1
    }
}
