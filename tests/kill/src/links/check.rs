//! Comparison of the tree with the log.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::failure::{Failure, Result};
use crate::links::doer::{BLOCK_BYTES, BLOCKS, LOG, block};
use crate::links::model::{Action, Model};
use crate::links::records;

/// Checks that the tree contains what was answered, and of unanswered actions only possible outcomes.
pub fn check(tree: &Path, model: &Model) -> Result<()> {
    names(tree, model)?;
    records::check(&fs::read(tree.join(LOG))?, model)?;
    blocks(&fs::read(tree.join(BLOCKS))?, model)
}

fn names(tree: &Path, model: &Model) -> Result<()> {
    let mut there = BTreeMap::new();
    for entry in fs::read_dir(tree)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(number) = name.parse::<u64>() {
            there.insert(number, entry.file_type()?.is_dir());
        } else if name != LOG && name != BLOCKS {
            return Err(Failure::Tree(format!("{name} exists, but was never created")));
        }
    }
    for (name, is_dir) in &model.names {
        match there.remove(name) {
            Some(found) if found == *is_dir => {}
            found => {
                return Err(Failure::Tree(format!("{name} must exist, as a directory: {is_dir}; {found:?}")));
            }
        }
    }
    for doubt in &model.doubts {
        match doubt {
            Action::Mkdir(name) | Action::Create(name) | Action::Rmdir(name) | Action::Unlink(name) => {
                there.remove(name);
            }
            Action::Rename(from, to) => {
                let both = (there.remove(from).is_some(), there.remove(to).is_some());
                if both.0 == both.1 {
                    return Err(Failure::Tree(format!("one of {from} and {to} must exist: {both:?}")));
                }
            }
            Action::Append(..) | Action::Write(..) => {}
        }
    }
    match there.first_key_value() {
        None => Ok(()),
        Some((name, _)) => Err(Failure::Tree(format!("{name} must not exist"))),
    }
}

fn blocks(bytes: &[u8], model: &Model) -> Result<()> {
    for (which, number) in &model.blocks {
        let doubted = |action: &Action| matches!(action, Action::Write(block, _) if block == which);
        let at = (which * BLOCK_BYTES) as usize;
        let there = bytes.get(at..at + BLOCK_BYTES as usize).unwrap_or_default();
        if there != block(*number) && !model.doubts.iter().any(doubted) {
            return Err(Failure::Tree(format!("block {which} differs from its durable content {number}")));
        }
    }
    Ok(())
}
