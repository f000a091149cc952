//! Required state after a power loss: for each worker everything up to its last durable operation that had
//! ended, as of one moment since then; of data being written at that time the old or the new, byte by byte.
//! Where a file has grown, a file system may have the length before the data, or the reverse where one was
//! truncated: then zeroes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tombolo_test_support::history::{Loss, difference};

use crate::Result;
use crate::history::{History, WORKERS};

/// Checks that everything is present that was answered when the log had `cut` entries. `in_guest`: all
/// operations were made durable, and zeroes may appear where a file has grown or shrunk.
pub fn check(dir: &Path, times: &Path, cut: u64, in_guest: bool) -> Result<()> {
    let times = fs::read_to_string(times)?;
    let loss = Loss { lengths: true, zeroes: in_guest };
    for worker in 0..WORKERS {
        let lines = times.lines().map(|line| line.split(' ').map(str::parse).collect());
        let lines = lines.collect::<std::result::Result<Vec<Vec<u64>>, _>>()?;
        let own: Vec<_> = lines.iter().filter(|line| line[0] == worker as u64).collect();
        let history = History::of(worker, own.len());
        let is_stable = |number: &usize| (in_guest || history.actions[*number].1) && own[*number][3] <= cut;
        let stable = (0..own.len()).rev().find(is_stable).map_or(0, |number| number + 1);
        let begun = own.iter().take_while(|line| line[2] <= cut).count().max(stable);
        let found = listed(&dir.join(worker.to_string()))?;
        let differences: Vec<_> = (stable..=begun)
            .map(|number| difference(&found, &history.states[number..=begun], loss))
            .collect();
        if differences.iter().all(Option::is_some) {
            let next = &history.actions[stable..begun];
            return Err(format!(
                "worker {worker}: the first {stable} operations are stable, {begun} have begun, of them {next:?}:\n{differences:#?}"
            )
            .into());
        }
    }
    Ok(())
}

fn listed(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for (place, prefix) in [(dir.to_owned(), ""), (dir.join("sub"), "sub/")] {
        for entry in fs::read_dir(place)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if !["sub", "new"].contains(&&*name) {
                found.insert(name, fs::read(entry.path())?);
            }
        }
    }
    Ok(found)
}
