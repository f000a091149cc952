//! `clients`: memory of a server, and cost of a change, by the number of notified clients.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_core::fs::NodeId;

use super::Plan;
use super::client::Client;
use crate::error::{Error, Result};
use crate::files::fill;
use crate::measure::{Clock, Held, Placement, go_on, mappings};
use crate::peer::Shm;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet, turns};

/// Interval between changes, so that all clients are notified of one before the next.
const REST: Duration = Duration::from_micros(200);
/// Time limit for clients to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// Name of the window's memory file.
const WINDOW_FILE: &str = "tombolo-window";

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, String, usize> = sheet!(plan, "vnfs-clients")?;
    let mut report = sheet.report();
    let tree = Tree::new(plan, sheet.number("files"))?;
    Placement::leave()?;
    for clients in turns(sheet.rounds(), &sheet.columns[..plan.scaled(sheet.columns.len(), 2)]) {
        go_on()?;
        let column = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        let values = measure(&tree, *clients, sheet.number("changes"))?;
        for (row, value) in sheet.rows.iter().zip(values) {
            let unit = if row.starts_with("chmod") { Unit::Nanoseconds } else { Unit::Bytes };
            report.add(row, "", &column, unit, value);
        }
    }
    Ok(sheet.finish(report))
}

/// A directory of files.
struct Tree {
    folder: TempDir,
    files: usize,
}

impl Tree {
    fn new(plan: &Plan, files: usize) -> Result<Self> {
        let tree = Self { folder: plan.folder()?, files };
        fill(&tree.shared(), tree.names().map(|name| (name, 0)))?;
        Ok(tree)
    }

    fn shared(&self) -> PathBuf {
        self.folder.path().join("shared")
    }

    fn names(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.files).map(|number| format!("f{number}").into())
    }

    /// Makes a client cache all of them.
    fn known_to(&self, client: &Client) -> Result<Vec<NodeId>> {
        client.watch()?;
        client.sees_all()?;
        self.names()
            .map(|name| {
                let node = client.find(&name)?;
                client.look(node)?;
                Ok(node)
            })
            .collect()
    }
}

/// Returns the rows' values with this number of clients, in the sheet's order.
fn measure(tree: &Tree, clients: usize, changes: usize) -> Result<[f64; 7]> {
    let server = Shm::tombolo(&tree.shared(), &tree.folder.path().join("link"), &["--host-watch"])?;
    let process = server.server().to_string();
    let changer = Client::linked(&server)?;
    let nodes = tree.known_to(&changer)?;
    let alone = price(&changer, &nodes, changes)?;
    let (before, own_before) = (Held::by(&process)?, Held::by("self")?);
    let told = (0..clients)
        .map(|_| {
            go_on()?;
            let client = Client::linked(&server)?;
            tree.known_to(&client).map(|_| client)
        })
        .collect::<Result<Vec<_>>>()?;
    let over = AtomicBool::new(false);
    let (after, own_after, window, price) = thread::scope(|scope| {
        let waiting: Vec<_> = told.iter().map(|client| scope.spawn(|| wait(client, &over))).collect();
        let found = (|| {
            let price = price(&changer, &nodes, changes)?;
            let window = mappings(&process, &[WINDOW_FILE])?;
            Ok((Held::by(&process)?, Held::by("self")?, window, price))
        })();
        over.store(true, Ordering::Relaxed);
        // Each client receives one more notice, and then checks for the end.
        let begun = Instant::now();
        while waiting.iter().any(|thread| !thread.is_finished()) && begun.elapsed() < PATIENCE {
            changer.chmod(nodes[0], 0o600 + (begun.elapsed().as_micros() as u32 & 7))?;
            thread::sleep(Duration::from_millis(5));
        }
        // The end of the server wakes them too.
        if waiting.iter().any(|thread| !thread.is_finished()) {
            drop(server);
        }
        for thread in waiting {
            thread.join().map_err(|_| lost("a thread"))??;
        }
        found
    })?;
    let each = |after: f64, before: f64| (after - before).max(0.0) / clients as f64;
    Ok([
        after.memory_bytes,
        after.shared_bytes,
        window.iter().map(|part| part.resident_bytes).sum::<u64>() as f64,
        each(after.memory_bytes, before.memory_bytes),
        each(own_after.memory_bytes, own_before.memory_bytes),
        alone,
        price,
    ])
}

fn lost(what: &str) -> Error {
    Error::Wrong { what: what.to_owned(), answer: "it is lost".to_owned() }
}

/// Receives notices as they arrive, until the end.
fn wait(client: &Client, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::Relaxed) {
        client.watch()?;
    }
    Ok(())
}

/// Returns the latency of a change, in nanoseconds.
fn price(changer: &Client, nodes: &[NodeId], changes: usize) -> Result<f64> {
    let mut clock = Clock::new();
    for (number, node) in nodes.iter().cycle().take(changes).enumerate() {
        // A new mode each time: setting the same mode is no change.
        let mode = 0o600 + (number / nodes.len().max(1)) as u32 % 8;
        clock.time(|| changer.chmod(*node, mode))?;
        thread::sleep(REST);
    }
    Ok(clock.quantile_ns(0.5))
}
