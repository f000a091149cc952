//! `clients`: memory of a server, and cost of a change, by the number of notified clients.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tombolo_core::fs::NodeId;

use super::Plan;
use super::client::Client;
use crate::args::VnfsArgs;
use crate::error::{Doing, Error, Result};
use crate::measure::{Clock, Placement, go_on};
use crate::peer::Shm;
use crate::report::{Figure, Report, Unit};

// One user may have 64 links, of which one makes the changes.
const CLIENTS: [usize; 4] = [1, 4, 16, 63];
/// Number of files that each client has cached, in a directory.
const FILES: usize = 1_000;
const QUICK_FILES: usize = 50;
const CHANGES: usize = 2_000;
const QUICK_CHANGES: usize = 100;
const ROUNDS: usize = 3;
/// Interval between changes, so that all clients are notified of one before the next.
const REST: Duration = Duration::from_micros(200);
/// Time limit for clients to end.
const PATIENCE: Duration = Duration::from_secs(10);

const SERVER: &str = "the server's resident memory";
const SHARED: &str = "of it shared with clients";
const WINDOW: &str = "of that the window";
const EACH: &str = "more for each client, at the server";
const CLIENT: &str = "more for each client, at the client";
const ALONE: &str = "chmod by a client, no other there";
const TOLD: &str = "chmod by a client, all told";
const ROWS: [(&str, Unit); 7] = [
    (SERVER, Unit::Bytes),
    (SHARED, Unit::Bytes),
    (WINDOW, Unit::Bytes),
    (EACH, Unit::Bytes),
    (CLIENT, Unit::Bytes),
    (ALONE, Unit::Nanoseconds),
    (TOLD, Unit::Nanoseconds),
];

pub fn run(plan: &Plan, _wanted: &VnfsArgs) -> Result<Report> {
    let mut report = plan.report("vnfs-clients", "Costs by the number of notified clients");
    let files = plan.scaled(FILES, QUICK_FILES);
    let changes = plan.scaled(CHANGES, QUICK_CHANGES);
    let tree = Tree::new(plan, files)?;
    Placement::leave()?;
    let counts = if plan.quick { &CLIENTS[..2] } else { &CLIENTS[..] };
    let rounds = if plan.quick { 1 } else { plan.rounds_of(ROUNDS) };
    let mut found = vec![[const { Vec::new() }; ROWS.len()]; counts.len()];
    for round in 0..rounds {
        for turn in 0..counts.len() {
            go_on()?;
            let at = (turn + round) % counts.len();
            let values = measure(&tree, counts[at], changes)?;
            found[at]
                .iter_mut()
                .zip(values)
                .for_each(|(rounds, value): (&mut Vec<f64>, _)| rounds.push(value));
        }
    }
    for (clients, rows) in counts.iter().zip(found) {
        let column = if *clients == 1 { "1 client".to_owned() } else { format!("{clients} clients") };
        for ((row, unit), rounds) in ROWS.into_iter().zip(rows) {
            report.figures.extend(Figure::of_rounds(row, "", &column, unit, rounds));
        }
    }
    report.condition(format!(
        "{rounds} rounds, in each of which every column has one turn, with a server of its own (--host-watch, over links, one for each client). Each client has \
         looked at all {files} files of a directory below {}, and a thread that waits for what it is told; all clients are in one process",
        plan.within.display()
    ));
    report.condition(format!(
        "memory: VmRSS, in which what is shared counts as far as the process has touched it (RssShmem); the window: what of it is resident in the server. More for \
         each: divided by the clients. `{CLIENT}`: of this process, with what it shares"
    ));
    report.condition(format!(
        "`{ALONE}`, `{TOLD}`: a further client changes one file after the other, {changes} changes {} µs apart, each a request over its link, until it is answered; the median. \
         Nothing is pinned: those that are told wake on the same cores",
        REST.as_micros()
    ));
    Ok(report)
}

/// A directory of files.
struct Tree {
    folder: TempDir,
    files: usize,
}

impl Tree {
    fn new(plan: &Plan, files: usize) -> Result<Self> {
        let tree = Self { folder: plan.folder()?, files };
        fs::create_dir(tree.shared()).doing_to("make", &tree.shared())?;
        for name in tree.names() {
            let path = tree.shared().join(name);
            fs::write(&path, "").doing_to("make", &path)?;
        }
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

/// Returns the rows' values with this number of clients.
fn measure(tree: &Tree, clients: usize, changes: usize) -> Result<[f64; ROWS.len()]> {
    let server = Shm::tombolo(&tree.shared(), &tree.folder.path().join("link"), &["--host-watch"])?;
    let process = server.server().to_string();
    let changer = Client::linked(&server)?;
    let nodes = tree.known_to(&changer)?;
    let alone = price(&changer, &nodes, changes)?;
    let (before, own_before) = (Resident::of(&process)?, Resident::of("self")?);
    let told = (0..clients)
        .map(|_| {
            go_on()?;
            let client = Client::linked(&server)?;
            tree.known_to(&client).map(|_| client)
        })
        .collect::<Result<Vec<_>>>()?;
    let over = AtomicBool::new(false);
    let (after, own_after, price) = thread::scope(|scope| {
        let waiting: Vec<_> = told.iter().map(|client| scope.spawn(|| wait(client, &over))).collect();
        let found = (|| {
            let price = price(&changer, &nodes, changes)?;
            Ok((Resident::of(&process)?, Resident::of("self")?, price))
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
        after.bytes,
        after.shared_bytes,
        after.window_bytes,
        each(after.bytes, before.bytes),
        each(own_after.bytes, own_before.bytes),
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

/// Resident memory of a process.
#[derive(Clone, Copy, Debug)]
struct Resident {
    bytes: f64,
    shared_bytes: f64,
    window_bytes: f64,
}

/// Name of the window's memory file.
const WINDOW_FILE: &str = "tombolo-window";

impl Resident {
    fn of(process: &str) -> Result<Self> {
        let read = |name: &str| {
            let path = format!("/proc/{process}/{name}");
            fs::read_to_string(&path).doing_to("read", Path::new(&path))
        };
        let status = read("status")?;
        Ok(Self {
            bytes: field(&status, "VmRSS:"),
            shared_bytes: field(&status, "RssShmem:"),
            window_bytes: of_file(&read("smaps")?, WINDOW_FILE),
        })
    }
}

/// Returns the sum in bytes of the fields of this name, which are in KiB.
fn field(text: &str, name: &str) -> f64 {
    let lines = text.lines().filter_map(|line| line.strip_prefix(name));
    let kib = lines.filter_map(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
    kib.sum::<f64>() * 1024.0
}

/// Returns the resident size of a file's mappings in /proc/PID/smaps.
fn of_file(smaps: &str, file: &str) -> f64 {
    let mut inside = false;
    let of_it = smaps.lines().filter(|line| {
        // The first line of a mapping has its range; the fields have names that end in a colon.
        if line.split_whitespace().next().is_some_and(|word| !word.ends_with(':')) {
            inside = line.contains(file);
        }
        inside && line.starts_with("Rss:")
    });
    of_it.map(|line| field(line, "Rss:")).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mappings_of_the_file_count() {
        let smaps = "1000-2000 rw-s 00000000 00:01 7 /memfd:tombolo-window (deleted)\nSize: 8 kB\nRss: 4 kB\nShared_Clean: 4 kB\n\
                     2000-3000 rw-p 00000000 00:00 0 \nRss: 100 kB\n\
                     3000-4000 r--s 00000000 00:01 7 /memfd:tombolo-window (deleted)\nRss: 2 kB\n";
        assert_eq!(of_file(smaps, WINDOW_FILE), 6.0 * 1024.0);
        assert_eq!(field("VmRSS:\t  12 kB\nRssShmem:\t 3 kB\n", "RssShmem:"), 3.0 * 1024.0);
    }
}
