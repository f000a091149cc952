//! `tombolo-power-loss`: helper of the scripts `tests/power-loss/run` and `tests/power-loss/disk`.
//!
//! - [`disk`]: the log of all writes to a disk, and the disks that a power loss may leave.
//! - [`work`]: programs that work on a mount and record, for each operation, the length of that log at its
//!   beginning and end.
//! - [`marks`]: the same for programs that work in a guest, on the logged disk itself.
//! - [`check`]: required state after a power loss.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "this is what the shell reads")]

mod check;
mod disk;
mod history;
mod marks;
mod work;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: tombolo-power-loss old DIR
       tombolo-power-loss blank DISK AT
       tombolo-power-loss work DIR LOG TIMES FROM TO
       tombolo-power-loss work-in-guest DIR DISK AT COUNT
       tombolo-power-loss times LOG
       tombolo-power-loss choices LOG FROM TO COUNT
       tombolo-power-loss image LOG CUT SEED DISK
       tombolo-power-loss check DIR TIMES CUT
       tombolo-power-loss check-in-guest DIR TIMES CUT

old      creates the initial state.
blank    initialises the blocks for marks, at byte AT of DISK.
work     performs the operations FROM to TO of each worker in DIR, and adds their beginnings and ends to TIMES, in entries of LOG.
work-in-guest  performs COUNT operations of each worker in DIR, makes each durable, and marks their ends at AT of DISK.
times    prints the lines that work would have added to TIMES, from the marks in LOG.
choices  prints COUNT power losses between two entries of LOG: each as CUT and SEED.
image    applies to DISK, in its state before LOG, what a power loss at CUT leaves.
check    fails unless DIR has everything that was answered before CUT.
check-in-guest  the same for work-in-guest.";

/// Result with the cause of a failure.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["old", dir] => work::make_old(Path::new(dir)),
        ["work", dir, log, times, from, to] => {
            work::perform(Path::new(dir), Path::new(log), Path::new(times), from.parse()?..to.parse()?)
        }
        ["blank", disk, at] => {
            let disk = File::options().write(true).open(disk)?;
            Ok(disk.write_all_at(&marks::blank(), at.parse()?)?)
        }
        ["work-in-guest", dir, disk, at, count] => {
            work::perform_in_guest(Path::new(dir), Path::new(disk), at.parse()?, count.parse()?)
        }
        ["times", log] => {
            let log = disk::Log::open(Path::new(log))?;
            for line in marks::times(log.beginnings()?.into_iter())? {
                println!("{line}");
            }
            Ok(())
        }
        ["choices", log, from, to, count] => {
            let log = disk::Log::open(Path::new(log))?;
            for (cut, seed) in log.choices(from.parse()?..to.parse()?, count.parse()?) {
                println!("{cut} {seed}");
            }
            Ok(())
        }
        ["image", log, cut, seed, disk] => {
            disk::Log::open(Path::new(log))?.lose_power(cut.parse()?, seed.parse()?, Path::new(disk))
        }
        ["check", dir, times, cut] => check::check(Path::new(dir), Path::new(times), cut.parse()?, false),
        ["check-in-guest", dir, times, cut] => {
            check::check(Path::new(dir), Path::new(times), cut.parse()?, true)
        }
        _ => Err(USAGE.into()),
    }
}
