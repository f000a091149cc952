//! GETATTR, dominated by the round trip.

use super::super::Wait;
use super::super::client::{Mounted, getattr as getattr_of};
use crate::error::Result;
use crate::measure::{Clock, Work};
use crate::peer::Nfs;

/// Calls GETATTR for the file `path`, relative to the export, with this many outstanding on one connection;
/// returns the size of a call too.
pub fn getattr(server: &Nfs, path: &str, wait: Wait, outstanding: u32) -> Result<(Work<'static>, usize)> {
    let mut mounted = Mounted::new(server, wait)?;
    let mut call = getattr_of(&mounted.walk(path)?);
    let (mut connection, call_bytes) = (mounted.into_connection(), call.bytes());
    let one_by_one = outstanding == 1;
    let run = move |count, clock: &mut Clock| {
        clock.start();
        let lap = || {
            if one_by_one {
                clock.lap();
            }
        };
        connection.repeat(&mut call, outstanding, count, |_, _| {}, lap)?;
        if !one_by_one {
            clock.lap_of(count);
        }
        Ok(())
    };
    Ok((Work::new(run).per_second(!one_by_one), call_bytes))
}
