//! The rows of the FSVA paper's Table 6.1: what a null request is made of, and what it costs. Where the paper asks a hypervisor, the row
//! says what stands in its place here.

use std::hint::black_box;

use tombolo_back_vrpc_client::Lent;
use tombolo_shm::bell::Mode;
use tombolo_shm::region::sealed::{Sealed, map_peer};

use super::bare::{Switch, Wake};
use super::door::Door;
use super::server::{Meeting, Serving};
use super::session::{Deed, Linked, attach};
use super::{AT_ONCE, Plan, speed, timed_by, wrong};
use crate::error::{Doing, Result};
use crate::measure::{Clock, Entrant, Place, Work};
use crate::report::{Figure, Report, Unit};
use crate::table::waist::null_in_process;

const HERE: &str = "here";
const PAPER: &str = "paper";

/// The paper's page, and what its requests lend each other.
const PAGE: usize = 4096;

const NULL_IN_PROCESS: &str = "null through the waist, in process";

/// The rows: the paper's word and what it is here, and the paper's figure in microseconds.
const ROWS: [(&str, Option<f64>); 13] = [
    ("null hypercall: here a null system call, getppid", Some(0.24)),
    ("send event (hypercall + IPI): here waking a sleeper on another core", Some(2.09)),
    ("create grant: here taking 4 KiB of the link's memory", Some(0.21)),
    ("destroy grant: here giving it back", Some(0.36)),
    (
        "map grant: here mapping a page of a peer and touching it, once for each link and not for each request",
        Some(1.99),
    ),
    ("unmap grant: here unmapping it, once for each link", Some(2.19)),
    ("4 KB memcopy", Some(0.80)),
    ("thread switch: here half a futex round trip on one core", Some(3.52)),
    (NULL_IN_PROCESS, None),
    ("null IPC, same core, event", Some(16.70)),
    ("null IPC, two cores, event", Some(21.21)),
    ("null IPC, two cores, polling", Some(4.04)),
    ("null IPC, two cores, mwait: here adaptive", Some(4.34)),
];

/// Measures.
pub fn run(plan: &Plan) -> Result<Report> {
    let title = "The rows of the FSVA paper's Table 6.1: what a null request costs, and its parts";
    let mut report = Report::new("ring-table-6.1", title, plan.command.clone(), plan.quick);
    let folder = tempfile::Builder::new().prefix("tombolo-bench.").tempdir_in(&plan.within);
    let folder = folder.doing_to("make a directory in", &plan.within)?;
    let (shared, _) = speed::lay_out(folder.path())?;
    let serving = Serving::start(&shared, folder.path(), Meeting::Sockets)?;
    let mut contest = plan.contest();
    contest.count_syscalls = false;
    let entrants = works(&serving)?.into_iter().zip(ROWS).map(|((place, work), (row, _))| Entrant {
        name: (row.to_owned(), String::new()),
        work,
        servers: vec![serving.id()],
        place: Some(place),
    });
    let (series, dropped) = contest.run(entrants.collect());
    Place::leave()?;
    report.take("", &series, &dropped);
    for figure in &mut report.figures {
        figure.row = std::mem::replace(&mut figure.column, HERE.to_owned());
        figure.cost = None;
    }
    for (row, us) in ROWS {
        let Some(us) = us else { continue };
        report.figures.push(Figure::single(row, "", PAPER, Unit::Nanoseconds, us * 1e3));
        let [ours, paper] = [HERE, PAPER].map(|column| report.figure(row, column, "").cloned());
        report.compare(ours.as_ref(), paper.as_ref(), None);
        if row.contains("IPC") {
            report.aim_beside(&format!("Table 6.1: {row}"), "printed", None, ours.as_ref(), paper.as_ref());
        }
    }
    report.condition_of(&contest);
    report.condition(
        "the paper (2010) measured two virtual machines under Xen, on a 1.86 GHz Xeon E5320: its figures are printed, not measured. Ours are \
         two processes of one kernel, whose requests and answers are one cache line each; the paper's had 512 bytes",
    );
    report.condition(format!(
        "null IPC: through the library, both sides wait alike; {AT_ONCE} operations between two looks at the clock, but one where waking, mapping \
         and unmapping is timed"
    ));
    Ok(report)
}

/// What is done in each row, and where.
fn works(serving: &Serving) -> Result<Vec<(Place, Box<dyn Work>)>> {
    let lending = |gives_back| Box::new(Lending { door: serving.door(Mode::Event), gives_back });
    let null = |mode| Box::new(Linked::new(serving.door(mode), Deed::Null));
    Ok(vec![
        (Place::SameCore, Box::new(Again(|| _ = black_box(std::os::unix::process::parent_id())))),
        (Place::TwoCores, Box::new(Wake)),
        (Place::TwoCores, lending(false)),
        (Place::TwoCores, lending(true)),
        (Place::SameCore, Box::new(Mapping { unmaps: false })),
        (Place::SameCore, Box::new(Mapping { unmaps: true })),
        (Place::SameCore, Box::new(Copy(vec![b'x'; PAGE], vec![0; PAGE]))),
        (Place::SameCore, Box::new(Switch)),
        (Place::SameCore, Box::new(null_in_process()?)),
        (Place::SameCore, null(Mode::Event)),
        (Place::TwoCores, null(Mode::Event)),
        (Place::TwoCores, null(Mode::Poll)),
        (Place::TwoCores, null(Mode::Adaptive)),
    ])
}

/// Something that cannot fail, over and over.
struct Again<F>(F);

impl<F: FnMut()> Work for Again<F> {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        timed_by(AT_ONCE, count, clock, || {
            (self.0)();
            Ok(())
        })
    }
}

/// A page from one place to another.
struct Copy(Vec<u8>, Vec<u8>);

impl Work for Copy {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let Self(from, to) = self;
        Again(|| black_box(&mut *to).copy_from_slice(black_box(from))).run(count, clock)
    }
}

/// Takes memory of a link, or gives it back.
struct Lending {
    door: Door,
    gives_back: bool,
}

impl Work for Lending {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let (files, _) = attach(self.door.clone())?;
        let mut held: Vec<Lent> = Vec::with_capacity(AT_ONCE as usize);
        for _ in 0..count.div_ceil(AT_ONCE).max(1) {
            clock.start();
            for _ in 0..AT_ONCE {
                held.push(files.lend(PAGE).map_err(|error| wrong("lend memory", &error))?);
            }
            if self.gives_back {
                clock.start();
            } else {
                clock.lap_of(AT_ONCE);
            }
            held.clear();
            if self.gives_back {
                clock.lap_of(AT_ONCE);
            }
        }
        Ok(())
    }
}

/// Maps a page that a peer writes, and looks into it; or unmaps it.
struct Mapping {
    unmaps: bool,
}

impl Work for Mapping {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let peer = Sealed::create("bench", PAGE as u64).map_err(|error| wrong("memory", &error))?;
        peer.region().write_at(0, b"x").map_err(|error| wrong("memory", &error))?;
        for _ in 0..count {
            clock.start();
            let page = map_peer(&peer, PAGE as u64).map_err(|error| wrong("map a peer's memory", &error))?;
            let mut byte = [0];
            page.read_at(0, &mut byte).map_err(|error| wrong("look into a peer's memory", &error))?;
            if self.unmaps {
                clock.start();
            } else {
                clock.lap();
            }
            drop(page);
            if self.unmaps {
                clock.lap();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ring::server;

    #[test]
    fn the_parts_of_a_request_are_done_as_often_as_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, _) = speed::lay_out(folder.path()).unwrap();
        let _listeners = server::listen(&shared, folder.path(), Meeting::Sockets).unwrap();
        let door = server::door(folder.path(), Meeting::Sockets, Mode::Event);
        let lending = |gives_back| Box::new(Lending { door: door.clone(), gives_back });
        let works: [Box<dyn Work>; 5] = [
            lending(false),
            lending(true),
            Box::new(Mapping { unmaps: false }),
            Box::new(Mapping { unmaps: true }),
            Box::new(Copy(vec![1; PAGE], vec![0; PAGE])),
        ];
        for (number, mut work) in works.into_iter().enumerate() {
            let mut clock = Clock::new();
            work.run(8, &mut clock).unwrap();
            assert_eq!(clock.count(), 8, "{number}");
        }
    }
}
