//! Number of copies of each byte between file and program, observed from outside: the server's system calls
//! show the kernel's destination, and the caller's page tables show which pages of the link it has accessed.

use std::fs;

use tombolo_shm::doorbell::Mode;

use super::endpoint::Endpoint;
use super::session::{Operation, Session};
use super::{FILE_BYTES, Plan, speed};
use crate::error::{Doing, Result};
use crate::measure::{Moved, MovedMeter, mappings};
use crate::peer::Shm;
use crate::report::{Report, Unit};
use crate::sheet::{Sheet, sheet};

const COPIES: &str = "copies of a byte";
const KERNEL: &str = "the server's kernel, between the file and the link's memory";
const ELSEWHERE: &str = "the server's kernel, between the file and other memory";
const TOUCHED: &str = "the link's memory that the caller touched";

/// Rows: the operation, and whether the data end in the program's own memory or stay in the link's.
const ROWS: [(&str, &str, Operation); 4] = [
    ("read, 1 MiB", speed::IN_PLACE, Operation::ReadInPlace(FILE_BYTES)),
    ("read, 1 MiB", speed::COPIED, Operation::Read(FILE_BYTES)),
    ("write, 1 MiB", speed::IN_PLACE, Operation::WriteInPlace(FILE_BYTES)),
    ("write, 1 MiB", speed::COPIED, Operation::Write(FILE_BYTES)),
];
/// Memory files of links.
const LINK_FILES: [&str; 2] = ["/memfd:tombolo-client", "/memfd:tombolo-server"];
/// Tolerance for the link's own pages besides data.
const ONE: f64 = 1.1;

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_> = sheet!(plan, "ring-copies")?;
    let mut report = sheet.report();
    let folder = plan.folder()?;
    for (number, (row, column, operation)) in ROWS.into_iter().enumerate() {
        let at = folder.path().join(number.to_string());
        fs::create_dir(&at).doing_to("make", &at)?;
        let (shared, _) = speed::lay_out(&at)?;
        let server = Shm::waiting(&shared, &at.join("socket"), Mode::Adaptive)?;
        let Counted { moved, touched_bytes } = count(&server, operation)?;
        let share = |bytes: u64| bytes as f64 / FILE_BYTES as f64;
        let inside = share(moved.received_inside + moved.sent_inside);
        let outside = share(moved.received_outside + moved.sent_outside);
        let touched = share(touched_bytes);
        // Data that bypassed the link's memory were copied through other memory.
        let copies = inside + 2.0 * outside + touched;
        for (part, value) in [(COPIES, copies), (KERNEL, inside), (ELSEWHERE, outside), (TOUCHED, touched)] {
            report.add(row, part, column, Unit::Times, value);
        }
        let (target, met) = match column {
            speed::IN_PLACE => ("one copy", Some(copies <= ONE && inside + outside >= 1.0)),
            _ => ("printed", None),
        };
        report.target(&format!("{row}, {column}: {COPIES}"), target, format!("{copies:.2}"), met);
    }
    Ok(sheet.finish(report))
}

struct Counted {
    moved: Moved,
    touched_bytes: u64,
}

fn count(server: &Shm, operation: Operation) -> Result<Counted> {
    let session = Session::begin(&Endpoint::of(server, Mode::Adaptive), FILE_BYTES)?;
    (0..10).try_for_each(|_| session.ask(Operation::Null))?;
    let meter = MovedMeter::follow(server.server())?;
    let of_link: Vec<_> =
        mappings(&server.server().to_string(), &LINK_FILES)?.into_iter().map(|part| part.range).collect();
    meter.look_at(&of_link);
    let before = touched_bytes()?;
    session.ask(operation)?;
    let touched_bytes = touched_bytes()?.saturating_sub(before);
    Ok(Counted { moved: meter.moved(), touched_bytes })
}

/// Returns how many bytes of link memory this process has accessed.
fn touched_bytes() -> Result<u64> {
    Ok(mappings("self", &LINK_FILES)?.into_iter().map(|part| part.resident_bytes).sum())
}
