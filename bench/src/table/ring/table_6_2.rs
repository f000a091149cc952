//! The rows of the FSVA paper's Table 6.2 over links.

use tombolo_shm::bell::Mode;

use super::Plan;
use super::door::Door;
use super::server::{Meeting, Serving};
use super::session::attach;
use crate::error::Result;
use crate::files::Tree;
use crate::measure::{Clock, Place, Work};
use crate::report::Report;
use crate::table::table_6_2 as rows;
use crate::vfs::{Cycles, Operation, Waist};

/// Our columns in the paper's words: how they wait, where they run, and what stands beside them.
const LINKS: [(&str, Mode, Place, &str); 4] = [
    ("link, same core, event", Mode::Event, Place::SameCore, rows::PAPER[1]),
    ("link, two cores, event", Mode::Event, Place::TwoCores, rows::PAPER[2]),
    ("link, two cores, poll", Mode::Poll, Place::TwoCores, rows::PAPER[3]),
    ("link, two cores, adaptive", Mode::Adaptive, Place::TwoCores, rows::PAPER[4]),
];

/// Measures.
pub fn run(plan: &Plan) -> Result<Report> {
    let title = "The rows of the FSVA paper's Table 6.2, over a link in shared memory";
    let mut report = Report::new("ring-table-6.2", title, plan.command.clone(), plan.quick);
    let tree = Tree::new(&plan.within, 1)?;
    let serving = Serving::start(&tree.shared(), &tree.beside(""), Meeting::Sockets)?;
    let mut ways = vec![rows::local(&tree), rows::in_process(&tree)];
    for (column, mode, place, _) in LINKS {
        let door = serving.door(mode);
        ways.push(rows::way(column, place, Some(serving.id()), move |operation| {
            Ok(Linked { door: door.clone(), operation })
        }));
    }
    let contest =
        rows::measure(&mut report, plan, &ways, &LINKS.map(|(column, _, _, paper)| (column, paper)));
    drop(ways);
    Place::leave()?;
    // That of making the links is in it.
    report.figures.iter_mut().for_each(|figure| (figure.cost, figure.server_syscalls) = (None, None));
    report.condition_of(&contest);
    rows::conditions(&mut report, plan);
    report.condition(
        "over links as through the waist, an operation is one request; both sides wait alike, and `adaptive` stands beside the \
         paper's `mwait`. A link lives for a turn",
    );
    Ok(report)
}

/// An operation over a link that lives for a turn.
struct Linked {
    door: Door,
    operation: Operation,
}

impl Work for Linked {
    fn run(&mut self, count: u64, clock: &mut Clock) -> Result<()> {
        let (files, cx) = attach(self.door.clone())?;
        Cycles::new(Waist::over(files, cx)?, self.operation).run(count, clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::ring::server;

    #[test]
    fn every_operation_of_the_paper_is_done_over_a_link() {
        let within = tempfile::tempdir().unwrap();
        let tree = Tree::new(within.path(), 1).unwrap();
        let _listeners = server::listen(&tree.shared(), &tree.beside(""), Meeting::Sockets).unwrap();
        for operation in Operation::ALL {
            let door = server::door(&tree.beside(""), Meeting::Sockets, Mode::Adaptive);
            let mut clock = Clock::new();
            Linked { door, operation }.run(3, &mut clock).unwrap();
            assert_eq!(clock.count(), 3, "{operation:?}");
        }
    }
}
