//! Programs that work on a mount.

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

use tombolo_test_support::history::{Change, bytes};

use crate::Result;
use crate::disk::entries;
use crate::history::{History, WORKERS, old};
use crate::marks::Marks;

/// Creates the initial state.
pub fn make_old(dir: &Path) -> Result<()> {
    let old = old();
    for worker in 0..WORKERS {
        let dir = dir.join(worker.to_string());
        fs::create_dir_all(dir.join("sub"))?;
        for (name, file) in &old.names {
            fs::write(dir.join(name), &**old.files[file])?;
        }
    }
    Ok(())
}

/// Performs some operations of each worker, and adds a line to `times` for each: worker, number, and the
/// number of log entries before and after it.
pub fn perform(dir: &Path, log: &Path, times: &Path, numbers: Range<usize>) -> Result<()> {
    let times = Mutex::new(File::options().create(true).append(true).open(times)?);
    let one = |worker: usize| -> std::result::Result<(), String> {
        let said = |number: usize| {
            move |error: &dyn std::fmt::Display| format!("worker {worker}, operation {number}: {error}")
        };
        let log = File::open(log).map_err(|error| error.to_string())?;
        let dir = dir.join(worker.to_string());
        for (number, (action, is_durable)) in
            History::of(worker, numbers.end).actions.iter().enumerate().skip(numbers.start)
        {
            let said = said(number);
            let begun = entries(&log).map_err(|error| said(&error))?;
            act(&dir, number, action, *is_durable).map_err(|error| said(&error))?;
            let ended = entries(&log).map_err(|error| said(&error))?;
            let mut times = times.lock().map_err(|error| said(&error))?;
            writeln!(times, "{worker} {number} {begun} {ended}").map_err(|error| said(&error))?;
        }
        Ok(())
    };
    each_worker(one)
}

/// Performs some operations of each worker on a file system on `disk`, and marks on the disk when each has
/// ended. Each is made durable: on a disk's own file system no operation makes those on other files durable
/// too.
pub fn perform_in_guest(dir: &Path, disk: &Path, at: u64, count: usize) -> Result<()> {
    let one = |worker: usize| -> std::result::Result<(), String> {
        let said = |error: &dyn std::fmt::Display| format!("worker {worker}: {error}");
        let mut marks = Marks::open(disk, at, worker).map_err(|error| said(&error))?;
        let dir = dir.join(worker.to_string());
        for (number, (action, _)) in History::of(worker, count).actions.iter().enumerate() {
            act(&dir, number, action, true).map_err(|error| said(&error))?;
            marks.ended(worker, number).map_err(|error| said(&error))?;
        }
        Ok(())
    };
    each_worker(one)
}

/// Runs all workers concurrently.
fn each_worker(one: impl Fn(usize) -> std::result::Result<(), String> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let one = &one;
        let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || one(worker))).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| "a worker panicked".to_owned())?)
    })?;
    Ok(())
}

fn act(dir: &Path, number: usize, action: &Change, is_durable: bool) -> std::io::Result<()> {
    let at = |name: &str| dir.join(name);
    let change = |name: &String| File::options().write(true).open(at(name));
    let place = match action {
        Change::Put(name, len) => {
            let mut file = File::create(at("new"))?;
            file.write_all(&bytes(number, 0, *len))?;
            file.sync_all()?;
            fs::rename(at("new"), at(name))?;
            name
        }
        Change::Create(name) => {
            File::create_new(at(name))?;
            name
        }
        Change::Write(name, offset, len) => {
            let file = change(name)?;
            file.write_all_at(&bytes(number, *offset, *len), *offset as u64)?;
            return file.sync_data();
        }
        Change::Resize(name, len) => {
            let file = change(name)?;
            file.set_len(*len as u64)?;
            return file.sync_all();
        }
        Change::Rename(from, to) => {
            fs::rename(at(from), at(to))?;
            to
        }
        Change::Link(from, to) => {
            fs::hard_link(at(from), at(to))?;
            to
        }
        Change::Unlink(name) => {
            fs::remove_file(at(name))?;
            name
        }
        Change::Sync(name) => return File::open(at(name))?.sync_all(),
    };
    match (is_durable, at(place).parent()) {
        (true, Some(dir)) => File::open(dir)?.sync_all(),
        _ => Ok(()),
    }
}
