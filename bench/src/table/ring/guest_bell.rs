//! Null request from a User Mode Linux guest to its host, of which both sleep: by a bell, and without a
//! doorbell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tombolo_shm::doorbell::Mode;

use super::guest::{Client, VARIANTS, serve};
use super::guest_client::{BELLED, RESTED, SLEEPING};
use super::{Plan, speed};
use crate::error::Result;
use crate::measure::go_on;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet, turns};

const COLUMNS: [(&str, u32); 2] = [("no doorbell", 0), ("bell", BELLED)];
/// Requests per turn, in a smoke test at most 20, manner, and busy loops beside, by row.
const ROWS: [(usize, u32, usize); 4] = [(2000, 0, 0), (100, RESTED, 0), (300, 0, 2), (60, RESTED, 2)];

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "ring-guest-bell")?;
    let mut report = sheet.report();
    let folder = plan.folder()?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let bell = folder.path().join("bell");
    let (server, memory) = serve(&shared, folder.path(), Mode::Adaptive, Some(&bell))?;
    let mut client = Client::guest(server.place(), &memory, folder.path(), Some(&bell))?;
    client.wait_until_ready()?;
    for (row, (count, how, loops)) in sheet.rows.iter().zip(ROWS) {
        for (column, bell) in turns(plan.rounds(), &COLUMNS) {
            go_on()?;
            let times = beside(loops, || client.turn(plan.scaled(count, 20), how | bell | SLEEPING))?;
            for (variant, ns) in VARIANTS.into_iter().zip(times) {
                report.add(row, variant, column, Unit::Nanoseconds, ns);
            }
        }
    }
    Ok(sheet.finish(report))
}

/// Runs `work` while this many threads compute.
fn beside<T>(loops: usize, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    })
}
