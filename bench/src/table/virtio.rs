//! `fuse --virtio`: virtio-fs directly on the queues, Tombolo's server compared with virtiofsd, without a
//! guest.

use std::cell::RefCell;
use std::rc::Rc;

use serde::Deserialize;

use super::Plan;
use super::sides::{Side, measure};
use crate::error::Result;
use crate::files::Tree;
use crate::guest::{
    Guest, SharedGuest, Wait, create_unlink, getattr, lookup, open_release, outstanding, read, write,
};
use crate::measure::{Placement, Work};
use crate::peer::{AtSocket, Program};
use crate::report::Report;
use crate::sheet::{Row, Sheet, sheet};

/// Number of small files in the tree.
const FILES: usize = 1_000;
const LARGE: u32 = 1 << 20;
const SMALL: u32 = 4096;
/// Requests in flight in the rows that pipeline.
const WINDOW: usize = 16;

/// Operation of a row.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    Getattr,
    Lookup,
    Open,
    Create,
    ReadSmall,
    Outstanding,
    ReadLarge,
    WriteLarge,
}

/// Waiting mode of the guest, and placement. A polling guest cannot share its core.
const VARIANTS: [(&str, Wait, Placement); 3] = [
    ("guest polls, two cores", Wait::Poll, Placement::TwoCores),
    ("guest sleeps, two cores", Wait::Event, Placement::TwoCores),
    ("guest sleeps, same core", Wait::Event, Placement::SameCore),
];

pub fn run(plan: &Plan) -> Result<Report> {
    let sheet: Sheet<'_, Row<Request>> = sheet!(plan, "virtio")?;
    let tree = Tree::new(&plan.within, FILES)?;
    let each = sheet.columns.iter().flat_map(|column| VARIANTS.map(|variant| (column, variant)));
    let sides = each.map(|(column, variant)| side(column, variant, &tree)).collect();
    measure(sheet, &plan.contest(), sides)
}

/// Starts a server and a guest.
fn side(column: &str, (variant, wait, place): (&str, Wait, Placement), tree: &Tree) -> Result<Side<Request>> {
    let name = format!("{column}-{variant}").replace([' ', ','], "-");
    let (program, mode) = column.split_once(' ').unwrap_or((column, "auto"));
    let is_ours = program == Program::Tombolo.name();
    let program = if is_ours { Program::Tombolo } else { Program::Virtiofsd };
    let server = AtSocket::virtio_fs(program, &tree.shared(), &tree.beside(&name), mode, &[])?;
    let guest = Rc::new(RefCell::new(Guest::connect(server.socket(), wait, WINDOW, LARGE)?));
    Ok(Side {
        column: column.to_owned(),
        variant: variant.to_owned(),
        place: Some(place),
        server: server.server(),
        work: Box::new(move |request| work(&guest, request, &name)),
        _kept: Box::new(server),
    })
}

fn work(guest: &SharedGuest, request: Request, name: &str) -> Result<Work<'static>> {
    match request {
        Request::Getattr => getattr(guest),
        Request::Lookup => lookup(guest),
        Request::Open => open_release(guest),
        Request::Create => create_unlink(guest, name),
        Request::ReadSmall => read(guest, SMALL),
        Request::Outstanding => outstanding(guest),
        Request::ReadLarge => read(guest, LARGE),
        Request::WriteLarge => write(guest, LARGE),
    }
}
