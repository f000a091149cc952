//! `fuse --table-6.2`: the rows of the FSVA paper's Table 6.2, beside the paper's own figures.

use std::cell::RefCell;
use std::rc::Rc;

use super::Plan;
use crate::error::Result;
use crate::files::Tree;
use crate::guest::{Guest, SharedGuest, Wait};
use crate::measure::{Entrant, Place, Work};
use crate::peer::{Mount, Program, VirtioFs};
use crate::report::{Figure, Report, Unit};
use crate::vfs::{Calls, Cycles, Operation, Virtio, Waist};

/// The paper's columns, and its figures in microseconds, row by row.
const PAPER: [&str; 5] = [
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

const LOCAL: &str = "local, by system call";
const IN_PROCESS: &str = "waist, in process";
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
    let ways = Ways::start(&tree, &mut report);
    let contest = plan.contest();
    for (operation, paper) in Operation::ALL.into_iter().zip(PAPER_US) {
        let row = operation.label();
        let mut entrants = Vec::new();
        for entrant in ways.entrants(operation, &tree) {
            match entrant {
                Ok(entrant) => entrants.push(entrant),
                Err(error) => report.absent(format!("{row}: {error}")),
            }
        }
        let (series, dropped) = contest.run(entrants);
        report.take(row, &series, &dropped);
        for (column, us) in PAPER.into_iter().zip(paper) {
            report.figures.push(Figure::single(row, "", column, Unit::Nanoseconds, us * 1e3));
        }
        for (ours, theirs) in BESIDE {
            let (ours, theirs) =
                (report.figure(row, ours, "").cloned(), report.figure(row, theirs, "").cloned());
            report.compare(ours.as_ref(), theirs.as_ref(), None);
        }
    }
    Place::leave()?;
    report.condition_of(&contest);
    report.condition(format!("the directory lies in {} (its pages are in memory)", plan.within.display()));
    report.condition(
        "the paper (2010) ran a kernel's file system in a virtual machine of its own under Xen, on a 1.86 GHz Xeon E5320: \
         its figures are printed, not measured, and its machine is not this one",
    );
    report.condition(
        "virtio-fs and the waist: one request each. By system call: what the kernel makes of the call, often a look-up \
         first; `release` there is close(2), which waits for FLUSH only. The mount caches nothing (strict)",
    );
    report.condition("two looks at the clock, 40 to 60 ns, are part of each figure of ours");
    Ok(report)
}

/// The ways in, as far as they could be started.
struct Ways {
    mount: Option<Mount>,
    guests: Vec<(&'static str, Place, SharedGuest, VirtioFs)>,
}

impl Ways {
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

    fn entrants(&self, operation: Operation, tree: &Tree) -> Vec<Result<Entrant<'static>>> {
        let shared = tree.shared();
        let mut entrants = vec![
            Calls::new(&shared, "local").map(|calls| entrant(LOCAL, Cycles::new(calls, operation))),
            Waist::new(&shared).map(|waist| entrant(IN_PROCESS, Cycles::new(waist, operation))),
        ];
        for (column, place, guest, server) in &self.guests {
            let name = column.replace([' ', ','], "-");
            entrants.push(Virtio::new(guest, &format!("{name}-{}", operation.label())).map(|virtio| {
                Entrant {
                    servers: vec![server.server()],
                    place: Some(*place),
                    ..entrant(column, Cycles::new(virtio, operation))
                }
            }));
        }
        if let Some(mount) = &self.mount {
            entrants.push(Calls::new(mount.point(), "mount").map(|calls| Entrant {
                servers: vec![mount.server()],
                ..entrant(MOUNT, Cycles::new(calls, operation))
            }));
        }
        entrants
    }
}

fn connect(tree: &Tree, column: &str, wait: Wait) -> Result<(SharedGuest, VirtioFs)> {
    let socket = tree.beside(&column.replace([' ', ','], "-"));
    let server = VirtioFs::tombolo(&tree.shared(), &socket, "strict")?;
    let guest = Guest::connect(server.socket(), wait, 1, 4096)?;
    Ok((Rc::new(RefCell::new(guest)), server))
}

fn entrant(column: &str, work: impl Work + 'static) -> Entrant<'static> {
    Entrant {
        name: (column.to_owned(), String::new()),
        work: Box::new(work),
        servers: Vec::new(),
        place: Some(Place::SameCore),
    }
}
