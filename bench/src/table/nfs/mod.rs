//! `nfs`: the NFS server compared with nfs-ganesha over loopback TCP, by a load generator of our own and by
//! libnfs, and with the costs of network and callers alone.

mod beside;
mod held;
mod rows;
mod sides;

use std::cell::RefCell;
use std::mem;

use self::rows::Load;
use self::sides::Sides;
use super::Plan;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::measure::Placement;
use crate::report::Report;
use crate::sheet::{Sheet, sheet};

const OURS: &str = "tombolo";
const PEER: &str = "nfs-ganesha";
/// Exchange of bytes of the same sizes as calls and replies.
const BARE: &str = "bare TCP";
/// Server with constant replies.
const NULL: &str = "null responder";
/// Number of small files in the tree.
const FILES: usize = 1_000;

/// Measures the rows that begin with a selected prefix; all, if there are none. `no_peer` is the reason to
/// omit the peer, where it would conflict with the host's rpcbind.
pub fn run(plan: &Plan, no_peer: Option<&str>) -> Result<Report> {
    let sheet = sheet!(plan, "nfs")?;
    let mut report = sheet.report();
    let tree = Tree::new(&plan.within, FILES)?;
    let sides = Sides::start(&tree, no_peer, &mut report);
    let mut table = Table { plan, asked: RefCell::default(), tree: &tree, sides, sheet, report };
    let rows = mem::take(&mut table.sheet.rows);
    rows.iter().try_for_each(|row| rows::measure(&mut table, row))?;
    table.sheet.rows = rows;
    beside::a_long_listing(&mut table)?;
    held::after_many_files(&mut table, no_peer)?;
    held::with_many_clients(&mut table)?;
    Placement::leave()?;
    unknown_row(&plan.only, &table.asked.borrow())?;
    Ok(table.sheet.finish(table.report))
}

/// Fails if a prefix matches none of the `rows`.
fn unknown_row(only: &[String], rows: &[String]) -> Result<()> {
    let is_unknown = |beginning: &&String| rows.iter().all(|row| !row.starts_with(beginning.as_str()));
    match only.iter().find(is_unknown) {
        Some(unknown) => {
            Err(Error::Absent(format!("no row begins with {unknown}; available: {}", rows.join("; "))))
        }
        None => Ok(()),
    }
}

struct Table<'a> {
    plan: &'a Plan,
    /// All rows considered so far.
    asked: RefCell<Vec<String>>,
    tree: &'a Tree,
    sides: Sides,
    sheet: Sheet<'a, Load>,
    report: Report,
}

impl Table<'_> {
    fn wants(&self, row: &str) -> bool {
        let mut asked = self.asked.borrow_mut();
        if asked.iter().all(|known| known != row) {
            asked.push(row.to_owned());
        }
        self.plan.only.is_empty()
            || self.plan.only.iter().any(|beginning| row.starts_with(beginning.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_row_is_an_error_listing_known_rows() {
        let rows = ["GETATTR, 1 outstanding", "READ 1 MiB"].map(str::to_owned);
        let told =
            |only: &[&str]| unknown_row(&only.iter().map(|&only| only.to_owned()).collect::<Vec<_>>(), &rows);
        assert!(told(&[]).is_ok() && told(&["GETATTR", "READ"]).is_ok());
        let error = told(&["READ", "WRITE"]).expect_err("none").to_string();
        assert!(error.contains("WRITE") && error.contains("READ 1 MiB"), "{error}");
    }
}
