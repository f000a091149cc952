//! `nfs`: the NFS server compared with nfs-ganesha over loopback TCP, by a load generator of our own and by
//! libnfs, and with the costs of network and callers alone.

mod beside;
mod calls;
mod data;
mod held;
mod names;
mod sides;

use std::cell::RefCell;

use self::sides::Sides;
use super::Plan;
use crate::error::{Error, Result};
use crate::files::Tree;
use crate::measure::Placement;
use crate::report::Report;

const OURS: &str = "tombolo";
const PEER: &str = "nfs-ganesha";
/// Exchange of bytes of the same sizes as calls and replies.
const BARE: &str = "bare TCP";
/// Server with constant replies.
const NULL: &str = "null responder";
/// Number of small files in the tree.
const FILES: usize = 1_000;

/// Measures the table. `only` are prefixes of the selected rows; empty for all. `no_peer` is the reason to
/// omit the peer, where it would conflict with the host's rpcbind.
pub fn run(plan: &Plan, only: &[String], no_peer: Option<&str>) -> Result<Report> {
    let title = "NFS version 3 over loopback TCP";
    let mut report = plan.report("nfs", title);
    let tree = Tree::new(&plan.within, FILES)?;
    let sides = Sides::start(&tree, no_peer, &mut report);
    let mut table = Table { plan, only, asked: RefCell::default(), tree: &tree, sides, report };
    calls::one_outstanding(&mut table);
    calls::many_outstanding(&mut table);
    calls::by_libnfs(&mut table);
    data::transfers(&mut table);
    data::by_libnfs(&mut table);
    names::files_made(&mut table);
    names::listings(&mut table)?;
    beside::a_long_listing(&mut table)?;
    held::after_many_files(&mut table, no_peer)?;
    held::with_many_clients(&mut table)?;
    Placement::leave()?;
    unknown_row(only, &table.asked.borrow())?;
    conditions(&mut table);
    Ok(table.report)
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

fn conditions(table: &mut Table<'_>) {
    let (plan, report) = (table.plan, &mut table.report);
    report.condition_of(&plan.contest());
    report.condition(format!("the directory lies in {} (its pages are in memory)", plan.within.display()));
    report.condition(
        "servers and callers in a network namespace of their own; the caller, one thread unless the row says otherwise, has one core; \
         `two cores`: the server's threads have another; `server unpinned`: they run where they like",
    );
    report.condition(format!(
        "`{BARE}`: as many bytes for as many as the calls and replies have; `{NULL}`: GETATTR answered with the same bytes \
         always. Both look for a while before they sleep, as our server does, by the same code"
    ));
    report.condition(format!(
        "`{PEER}`: 4.3, FSAL VFS, version 3 over TCP only, transfers up to 1 MiB; `{OURS}`: as it comes, with --squash none. A target \
         holds against the peer's better placement, unless both placements are compared"
    ));
}

struct Table<'a> {
    plan: &'a Plan,
    only: &'a [String],
    /// All rows considered so far.
    asked: RefCell<Vec<String>>,
    tree: &'a Tree,
    sides: Sides,
    report: Report,
}

impl Table<'_> {
    fn wants(&self, row: &str) -> bool {
        let mut asked = self.asked.borrow_mut();
        if asked.iter().all(|known| known != row) {
            asked.push(row.to_owned());
        }
        self.only.is_empty() || self.only.iter().any(|beginning| row.starts_with(beginning.as_str()))
    }

    /// Compares our best with another's best.
    fn compare_best(&mut self, row: &str, other: &str, target: Option<f64>) {
        self.report.compare_best(row, OURS, other, target);
    }

    /// Compares ours with another in the same variant.
    fn compare_alike(&mut self, row: &str, other: &str, variant: &str, target: Option<f64>) {
        self.report.compare_cells(row, (OURS, variant), (other, variant), target);
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
