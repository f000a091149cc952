//! Comparison of the tree on the host with what was acknowledged: nothing missing, nothing extra.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::nfs::worker::{Entry, Worker};

/// Compares a worker's part of the tree.
pub fn compare(worker: &Worker, tree: &Path) -> Result<()> {
    let own = tree.join(&worker.name);
    let expected = worker.dirs().iter().map(|dir| dir.name.clone()).collect();
    same_names(&own, expected)?;
    for dir in worker.dirs() {
        let path = own.join(&dir.name);
        same_names(&path, dir.entries.keys().cloned().collect())?;
        for (name, entry) in &dir.entries {
            same_entry(worker, &path.join(name), entry)?;
        }
    }
    Ok(())
}

/// Compares the nodes behind handles with those behind names.
pub fn compare_numbers(numbers: &[(String, u64)], tree: &Path) -> Result<()> {
    for (path, number) in numbers {
        let found = fs::symlink_metadata(tree.join(path))?.ino();
        if found != *number {
            return Err(Failure::Tree(format!("{path} is inode {found}; its handle leads to {number}")));
        }
    }
    Ok(())
}

fn same_names(dir: &Path, mut expected: Vec<String>) -> Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.push(entry?.file_name().to_string_lossy().into_owned());
    }
    found.sort();
    expected.sort();
    if found == expected {
        return Ok(());
    }
    let only = |these: &[String], those: &[String]| -> Vec<String> {
        these.iter().filter(|name| !those.contains(name)).cloned().collect()
    };
    let (missing, foreign) = (only(&expected, &found), only(&found, &expected));
    Err(Failure::Tree(format!("{}: missing {missing:?}, not acknowledged {foreign:?}", dir.display())))
}

fn same_entry(worker: &Worker, path: &Path, entry: &Entry) -> Result<()> {
    let differs = |what: String| Err(Failure::Tree(format!("{}: {what}", path.display())));
    let facts = fs::symlink_metadata(path)?;
    match entry {
        Entry::Dir(_) if !facts.is_dir() => differs("is no directory".into()),
        Entry::Dir(_) => same_names(path, Vec::new()),
        Entry::Symlink(_, target) => match fs::read_link(path) {
            Ok(found) if found.as_os_str() == target.as_str() => Ok(()),
            other => differs(format!("leads to {other:?}, not to {target}")),
        },
        Entry::File(file) => {
            let file = worker.file(*file)?;
            let Some(expected) = file.content() else { return differs("is not committed".into()) };
            if facts.nlink() != u64::from(file.names) {
                return differs(format!("has {} names, not {}", facts.nlink(), file.names));
            }
            if !facts.is_file() || fs::read(path)? != expected {
                return differs(format!("{} bytes are not the {} acknowledged", facts.len(), expected.len()));
            }
            Ok(())
        }
    }
}

/// Returns the number of nodes of each kind, for the summary.
pub fn census(workers: &[Worker]) -> String {
    let mut counts = BTreeMap::new();
    for entry in workers.iter().flat_map(Worker::dirs).flat_map(|dir| dir.entries.values()) {
        let kind = match entry {
            Entry::File(_) => "names of files",
            Entry::Symlink(..) => "symbolic links",
            Entry::Dir(_) => "directories",
        };
        *counts.entry(kind).or_insert(0) += 1;
    }
    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}
