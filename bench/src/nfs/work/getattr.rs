//! GETATTR: nearly all of it is the way there and back.

use super::super::Wait;
use super::super::client::{Call, Connection, Mounted, getattr};
use crate::error::Result;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// GETATTR of one file, with so many outstanding on one connection.
pub struct Getattr {
    connection: Connection,
    call: Call,
    outstanding: u32,
}

impl Getattr {
    /// Of `path`, relative to the export.
    pub fn new(server: &Nfs, path: &str, wait: Wait, outstanding: u32) -> Result<Self> {
        let mut mounted = Mounted::new(server, wait)?;
        let file = mounted.walk(path)?;
        Ok(Self { connection: mounted.into_connection(), call: getattr(&file), outstanding })
    }

    pub fn call_bytes(&self) -> usize {
        self.call.bytes()
    }
}

impl Work for Getattr {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let one_by_one = self.outstanding == 1;
        clock.start();
        self.connection.repeat(
            &mut self.call,
            self.outstanding,
            count,
            |_, _| {},
            || {
                if one_by_one {
                    clock.lap();
                }
            },
        )?;
        if !one_by_one {
            clock.lap_of(count);
        }
        Ok(())
    }

    fn per_second(&self) -> bool {
        self.outstanding > 1
    }
}
