//! Required state after a power loss: for each worker everything up to its last durable operation that had
//! ended, as of one moment since then; of data being written at that time the old or the new, byte by byte.
//! Where a file has grown, a file system may have the length before the data, or the reverse where one was
//! truncated: then zeroes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::Result;
use crate::history::{History, State, WORKERS};

/// Checks that everything is present that was answered when the log had `cut` entries. `in_guest`: all
/// operations were made durable, and zeroes may appear where a file has grown or shrunk.
pub fn check(dir: &Path, times: &Path, cut: u64, in_guest: bool) -> Result<()> {
    let times = fs::read_to_string(times)?;
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
            .map(|number| difference(&found, &history.states[number..=begun], in_guest))
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

/// Describes why a tree is none of these states: it must have the names of the first, and each file a length
/// and bytes that it has then or later.
fn difference(found: &BTreeMap<String, Vec<u8>>, all: &[State], in_guest: bool) -> Option<String> {
    let names = &all[0].names;
    if !names.keys().eq(found.keys()) {
        return Some(format!("{:?} and not {:?}", found.keys(), names.keys()));
    }
    for (name, bytes) in found {
        let file = names[name];
        let versions: Vec<_> = all.iter().filter_map(|state| state.files.get(&file)).collect();
        let lens = versions.iter().map(|version| version.len());
        if bytes.len() < lens.clone().min()? || bytes.len() > lens.max()? {
            return Some(format!("{name} has {} bytes and not {}", bytes.len(), versions[0].len()));
        }
        let is_none = |(at, byte): &(usize, &u8)| {
            let is_at_end = || versions.iter().any(|version| version.len() <= *at);
            let is_one = versions.iter().any(|version| version.get(*at) == Some(*byte));
            !(is_one || in_guest && **byte == 0 && is_at_end())
        };
        if let Some((at, byte)) = bytes.iter().enumerate().find(is_none) {
            return Some(format!("{name} has {byte} at {at}, and not {:?}", versions[0].get(at)));
        }
    }
    None
}
