//! The rows of the FSVA paper's Table 6.2, beside the paper's own figures: through the FUSE front end (`fuse --table-6.2`), and by
//! [`measure`] through any other ways.

use std::cell::RefCell;
use std::rc::Rc;

use super::Plan;
use crate::error::Result;
use crate::files::Tree;
use crate::guest::{Guest, SharedGuest, Wait};
use crate::measure::{Contest, Entrant, Place, Work};
use crate::peer::{Mount, Program, VirtioFs};
use crate::report::{Figure, Report, Unit};
use crate::vfs::{Calls, Cycles, Operation, Virtio, Waist};

/// The paper's columns, and its figures in microseconds, row by row.
pub const PAPER: [&str; 5] = [
    "paper: native",
    "paper: same core",
    "paper: two cores, events",
    "paper: two cores, polling",
    "paper: two cores, mwait",
];
const PAPER_US: [[f64; 5]; 13] = [
    [2.20, 22.24, 31.24, 6.95, 7.89],
    [0.09, 26.25, 28.50, 4.61, 5.65],
    [19.70, 40.45, 53.45, 19.89, 25.68],
    [742.60, 783.0, 730.8, 777.0, 746.0],
    [0.08, 18.05, 27.20, 4.90, 5.61],
    [0.10, 20.40, 29.82, 6.22, 6.97],
    [2.24, 31.59, 36.57, 9.35, 10.32],
    [0.17, 19.36, 29.72, 5.10, 5.91],
    [1.50, 21.03, 32.09, 6.95, 7.69],
    [1.14, 23.32, 28.13, 5.66, 6.49],
    [0.22, 22.62, 28.25, 4.84, 5.46],
    [0.88, 20.56, 29.67, 6.07, 6.99],
    [4.30, 31.21, 39.04, 11.37, 12.24],
];

/// By system calls on the directory itself.
pub const LOCAL: &str = "local, by system call";
/// Through the waist over local-dir, in the caller's process.
pub const IN_PROCESS: &str = "waist, in process";
const POLLING: &str = "virtio-fs, two cores, polling";
const EVENTS: &str = "virtio-fs, two cores, events";
const SAME_CORE: &str = "virtio-fs, same core";
const MOUNT: &str = "FUSE mount, same core";

/// Our columns that go to a server, and the paper's beside which each stands.
const BESIDE: [(&str, &str); 3] = [(SAME_CORE, PAPER[1]), (EVENTS, PAPER[2]), (POLLING, PAPER[3])];

/// Measures.
pub fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new(
        "table-6.2",
        "The rows of the FSVA paper's Table 6.2, through each transport",
        plan.command.clone(),
        plan.quick,
    );
    let tree = Tree::new(&plan.within, 1)?;
    let peers = Peers::start(&tree, &mut report);
    let contest = measure(&mut report, plan, &peers.ways(&tree), &BESIDE);
    Place::leave()?;
    report.condition_of(&contest);
    conditions(&mut report, plan);
    report.condition(
        "virtio-fs and the waist: one request each. By system call: what the kernel makes of the call, often a look-up \
         first; `release` there is close(2), which waits for FLUSH only. The mount caches nothing (strict)",
    );
    Ok(report)
}

/// A column: a way to the directory, and where both sides run.
pub struct Way<'a> {
    /// Its column.
    pub column: &'static str,
    /// Where.
    pub place: Place,
    /// The processes that serve it.
    pub servers: Vec<u32>,
    /// What does an operation over and over.
    pub work: Box<dyn Fn(Operation) -> Result<Box<dyn Work + 'a>> + 'a>,
}

/// Does each row by all ways in turn, with the paper's figures behind; `beside` says which of our columns stands beside which of the
/// paper's.
pub fn measure(report: &mut Report, plan: &Plan, ways: &[Way<'_>], beside: &[(&str, &str)]) -> Contest {
    let contest = plan.contest();
    for (operation, paper) in Operation::ALL.into_iter().zip(PAPER_US) {
        let row = operation.label();
        let mut entrants = Vec::new();
        for way in ways {
            match (way.work)(operation) {
                Ok(work) => entrants.push(Entrant {
                    name: (way.column.to_owned(), String::new()),
                    work,
                    servers: way.servers.clone(),
                    place: Some(way.place),
                }),
                Err(error) => report.absent(format!("{row}, {}: {error}", way.column)),
            }
        }
        let (series, dropped) = contest.run(entrants);
        report.take(row, &series, &dropped);
        for (column, us) in PAPER.into_iter().zip(paper) {
            report.figures.push(Figure::single(row, "", column, Unit::Nanoseconds, us * 1e3));
        }
        for (ours, theirs) in beside {
            let (ours, theirs) =
                (report.figure(row, ours, "").cloned(), report.figure(row, theirs, "").cloned());
            report.compare(ours.as_ref(), theirs.as_ref(), None);
        }
    }
    contest
}

/// What holds of any such table.
pub fn conditions(report: &mut Report, plan: &Plan) {
    report.condition(format!("the directory lies in {} (its pages are in memory)", plan.within.display()));
    report.condition(
        "the paper (2010) ran a kernel's file system in a virtual machine of its own under Xen, on a 1.86 GHz Xeon E5320: \
         its figures are printed, not measured, and its machine is not this one",
    );
    report.condition("two looks at the clock, 40 to 60 ns, are part of each figure of ours");
}

/// By system calls on the directory itself.
pub fn local<'a>(tree: &Tree) -> Way<'a> {
    let shared = tree.shared();
    way(LOCAL, Place::SameCore, None, move |operation| {
        Ok(Cycles::new(Calls::new(&shared, "local")?, operation))
    })
}

/// Through the waist over local-dir, with nothing in between.
pub fn in_process<'a>(tree: &Tree) -> Way<'a> {
    let shared = tree.shared();
    way(IN_PROCESS, Place::SameCore, None, move |operation| Ok(Cycles::new(Waist::new(&shared)?, operation)))
}

/// A way whose work is of one kind.
pub fn way<'a, W: Work + 'a>(
    column: &'static str,
    place: Place,
    server: Option<u32>,
    work: impl Fn(Operation) -> Result<W> + 'a,
) -> Way<'a> {
    let servers = server.into_iter().collect();
    Way { column, place, servers, work: Box::new(move |operation| Ok(Box::new(work(operation)?))) }
}

/// The servers, as far as they could be started.
struct Peers {
    mount: Option<Mount>,
    guests: Vec<(&'static str, Place, SharedGuest, VirtioFs)>,
}

impl Peers {
    fn start(tree: &Tree, report: &mut Report) -> Self {
        let point = tree.beside("mount");
        let strict = ["-o", "coherence=strict"];
        let mount = Mount::with(Program::Tombolo, &tree.shared(), &point, &strict);
        let mount = mount.map_err(|error| report.absent(error.to_string())).ok();
        let mut guests = Vec::new();
        for (column, wait, place) in [
            (POLLING, Wait::Poll, Place::TwoCores),
            (EVENTS, Wait::Event, Place::TwoCores),
            (SAME_CORE, Wait::Event, Place::SameCore),
        ] {
            match connect(tree, column, wait) {
                Ok((guest, server)) => guests.push((column, place, guest, server)),
                Err(error) => report.absent(error.to_string()),
            }
        }
        Self { mount, guests }
    }

    fn ways(&self, tree: &Tree) -> Vec<Way<'_>> {
        let mut ways = vec![local(tree), in_process(tree)];
        for (column, place, guest, server) in &self.guests {
            let name = column.replace([' ', ','], "-");
            ways.push(way(column, *place, Some(server.server()), move |operation| {
                let virtio = Virtio::new(guest, &format!("{name}-{}", operation.label()))?;
                Ok(Cycles::new(virtio, operation))
            }));
        }
        if let Some(mount) = &self.mount {
            ways.push(way(MOUNT, Place::SameCore, Some(mount.server()), |operation| {
                Ok(Cycles::new(Calls::new(mount.point(), "mount")?, operation))
            }));
        }
        ways
    }
}

fn connect(tree: &Tree, column: &str, wait: Wait) -> Result<(SharedGuest, VirtioFs)> {
    let socket = tree.beside(&column.replace([' ', ','], "-"));
    let server = VirtioFs::tombolo(&tree.shared(), &socket, "strict")?;
    let guest = Guest::connect(server.socket(), wait, 1, 4096)?;
    Ok((Rc::new(RefCell::new(guest)), server))
}
